"""GMTForCausalLM: GraphMemoryLM with the interface that `transformers` expects."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from gmt.hf.card import GENERATED, model_card
from gmt.hf.configuration import GMTPretrainedConfig
from gmt.memory.cell import Route
from gmt.memory.writeback import Writes
from gmt.model.language_model import IGNORED, GraphMemoryLM


@dataclass
class GMTCausalLMOutput(CausalLMOutputWithPast):
    """`loss` is the whole objective while training and the cross-entropy in eval mode, as evaluations expect."""

    task_loss: Tensor | None = None
    aux: dict[str, Tensor] | None = None
    writes: Writes | None = None
    routes: tuple[Route, ...] | None = None


class GMTForCausalLM(PreTrainedModel, GenerationMixin):
    """A graph memory language model. Like GraphMemoryLM, forward changes nothing and `commit` writes memory."""

    config_class = GMTPretrainedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # the Trainer then passes num_items_in_batch, and the objective is token-weighted
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _no_split_modules = ["Block"]
    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}
    # memory state stays float32 when weights are loaded in less; KeepsFloat32 does the same for later casts
    _keep_in_fp32_modules_strict = [
        "memory.centroids",
        "memory.usage",
        "memory.age",
        "model.tau",
    ]

    config: GMTPretrainedConfig

    def __init__(self, config: GMTPretrainedConfig) -> None:
        super().__init__(config)
        if not config.tie_word_embeddings:
            raise ValueError("a graph memory model's output head is its token embedding: keep tie_word_embeddings true")
        self.model = GraphMemoryLM(config.to_gmt())
        # the model itself multiplies with the embedding; the head is there for those who look for one
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.post_init()

    @classmethod
    def from_lm(cls, lm: GraphMemoryLM, **config: Any) -> "GMTForCausalLM":
        """Wrap a model without copying it; `config` may give facts, token ids and the like."""
        with torch.device("meta"):
            wrapped = cls(GMTPretrainedConfig.from_gmt(lm.cfg, **config))
        wrapped.model = lm
        wrapped.lm_head.weight = lm.token_embedding.weight
        return wrapped.train(lm.training)

    def _init_weights(self, module: nn.Module) -> None:
        GraphMemoryLM.init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.token_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.token_embedding = value  # pyright: ignore

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        tau: Tensor | float | None = None,
        output_routes: bool = False,
        observe: bool | None = None,
        reseed: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        token_type_ids: Tensor | None = None,  # some tokenizers give them; they mean nothing here
    ) -> GMTCausalLMOutput | tuple[Any, ...]:
        """labels are not shifted yet: position t is scored on labels[t + 1], as everywhere in `transformers`."""
        if output_attentions or output_hidden_states:
            raise ValueError("attentions and hidden states are not returned; output_routes=True returns the routes")
        training_pass = self.training or labels is not None
        use_cache = use_cache if use_cache is not None else self.config.use_cache and not training_pass
        use_cache = use_cache and not (self.training and self.model.gradient_checkpointing)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        shifted = None if labels is None else _shift(labels, attention_mask)
        attend = self._attend(input_ids, attention_mask, position_ids, past_key_values)
        # no mask for attention means that nothing is padded; a 4D mask says which keys are seen, not what is padding
        padded = attend is not None and attention_mask is not None and attention_mask.dim() == 2
        out = self.model(
            input_ids,
            labels=shifted,
            mask=attention_mask if padded else None,
            tau=tau,
            return_routes=output_routes,
            observe=self.training if observe is None else observe,
            reseed=reseed,
            cache=past_key_values,
            positions=None if position_ids is None else position_ids.expand(input_ids.shape),
            attend=attend,
            logits_to_keep=logits_to_keep,
        )
        loss = out.loss if self.training else out.task_loss
        if loss is not None and shifted is not None and num_items_in_batch is not None:
            # the Trainer's share of one micro-batch: token-weighted, as the objective of a step is
            loss = loss * (shifted != IGNORED).sum() / num_items_in_batch
        result = GMTCausalLMOutput(
            loss=loss,
            logits=out.logits,
            past_key_values=past_key_values if use_cache else None,  # pyright: ignore
            task_loss=out.task_loss,
            aux=out.aux or None,
            writes=out.writes,
            routes=out.routes,
        )
        return result if return_dict is not False else result.to_tuple()

    def _attend(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Cache | None) -> Tensor | None:
        """The mask for whatever layout the cache has, and for rows packed of several documents by their positions."""
        shape_only = torch.empty((*ids.shape, 0), dtype=self.dtype, device=ids.device)
        return create_causal_mask(
            config=self.config,
            inputs_embeds=shape_only,
            attention_mask=mask,
            past_key_values=cache,
            position_ids=positions,
        )  # pyright: ignore

    def commit(self, writes: Writes | None) -> None:
        """Write what one forward pass saw into memory; see GraphMemoryLM.commit."""
        self.model.commit(writes)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.model.cfg = self.config.to_gmt()  # which has the new vocabulary
        return embeddings

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        push_to_hub: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Weights, config and a model card made from the run's facts; a card that somebody wrote is left."""
        repo_id = kwargs.pop("repo_id", Path(save_directory).name) if push_to_hub else None
        super().save_pretrained(save_directory, is_main_process, state_dict, False, *args, **kwargs)
        path = Path(save_directory, "README.md")
        if is_main_process and (not path.exists() or GENERATED in path.read_text(encoding="utf-8")):
            path.write_text(model_card(self.config, self.num_parameters(), repo_id), encoding="utf-8")
        if repo_id is not None and is_main_process:
            self.push_to_hub(repo_id)

    def push_to_hub(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: bool | str | None = None,
        commit_message: str = "Upload a graph memory model",
        revision: str | None = None,
        create_pr: bool = False,
        **kwargs: Any,
    ) -> str:
        """Upload what `save_pretrained` writes, card included (the inherited method would put an empty one over it)."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        name = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **kwargs)
            card = model_card(self.config, self.num_parameters(), name)
            Path(folder, "README.md").write_text(card, encoding="utf-8")
            info = api.upload_folder(
                repo_id=name, folder_path=folder, commit_message=commit_message, revision=revision, create_pr=create_pr
            )
        return str(info)


def _shift(labels: Tensor, mask: Tensor | None) -> Tensor:
    """labels[t + 1] at t; the last position has none, and padding is never a label."""
    if mask is not None and mask.dim() == 2:
        labels = labels.masked_fill(mask[:, -labels.shape[1] :] == 0, IGNORED)
    return torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), IGNORED)], dim=1)
