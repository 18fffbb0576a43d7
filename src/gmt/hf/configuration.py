"""The settings of a model as `transformers` stores them in config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from gmt.config import GMTConfig, ModelConfig
from gmt.config.migrate import old_names, translate
from gmt.config.parse import Problems, flatten, of_section

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

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a config.json of this version or an earlier one."""
        return super().from_dict(_migrated(config_dict), **kwargs)

    def to_gmt(self) -> GMTConfig:
        """Return the settings, validated: a config.json may have been edited by hand."""
        return GMTConfig.from_dict(_tree(vars(self)))


def _model_names() -> list[str]:
    """Every name, present or former, of a setting of the model section."""
    return [entry.name for entry in dataclasses.fields(ModelConfig)] + list(of_section(old_names(), "model"))


def _tree(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a flat configuration."""
    tree = {section: stored[name] for name, section in SECTIONS.items() if stored.get(name)}
    return {"model": {name: stored[name] for name in _model_names() if name in stored}} | tree


def _migrated(stored: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with every setting under its present name."""
    tree, problems = _tree(stored), Problems()
    current = translate(flatten(tree), problems)
    if problems:
        GMTConfig.from_dict(tree)  # raises: these problems, together with all others of the file
    found = {name: value for name, value in stored.items() if name not in _model_names()}
    for name, section in SECTIONS.items():
        if isinstance(stored.get(name), Mapping) or of_section(current, section):
            found[name] = of_section(current, section)
    return found | of_section(current, "model")
