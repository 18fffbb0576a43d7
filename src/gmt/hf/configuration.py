"""The settings of a model as `transformers` stores them in config.json."""

import dataclasses
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from gmt.config import GMTConfig, ModelConfig

# the Hugging Face name of each section that is kept whole; `temperature` alone would be a generation setting there
SECTIONS = {
    "memory": "memory",
    "routing_temperature": "temperature",
    "losses": "losses",
    "maintenance": "maintenance",
}


class GMTPretrainedConfig(PreTrainedConfig):
    """GMTConfig with its model section flat, and the facts of the run that made the weights."""

    model_type = "gmt"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "task_loss", "aux", "writes", "routes"]
    attribute_map: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "blocks",
        "hidden_size": "hidden",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context",
        "vocab_size": "vocab",
    }

    sublayer: str = ModelConfig.sublayer
    blocks: int = ModelConfig.blocks
    hidden: int = ModelConfig.hidden
    heads: int = ModelConfig.heads
    context: int = ModelConfig.context
    vocab: int = ModelConfig.vocab
    dense_width: int = ModelConfig.dense_width
    residual_init: str = ModelConfig.residual_init
    attention: str = ModelConfig.attention
    dropout: float = ModelConfig.dropout
    memory: dict[str, Any] | None = None
    routing_temperature: dict[str, Any] | None = None
    losses: dict[str, Any] | None = None
    maintenance: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None  # what the model card tells: data, steps, losses, ...
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    @classmethod
    def from_gmt(cls, cfg: GMTConfig, **kwargs: Any) -> "GMTPretrainedConfig":
        tree = cfg.to_dict()
        sections = {name: tree[section] for name, section in SECTIONS.items()}
        if cfg.model.vocab == 50257:  # GPT-2's vocabulary ends with its end-of-text token
            kwargs = {"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256} | kwargs
        return cls(**tree["model"], **sections, **kwargs)

    def to_gmt(self) -> GMTConfig:
        """The settings, validated: a config.json edited by hand is told what is wrong with it."""
        tree = {section: getattr(self, name) or {} for name, section in SECTIONS.items()}
        tree["model"] = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(ModelConfig)}
        return GMTConfig.from_dict(tree)
