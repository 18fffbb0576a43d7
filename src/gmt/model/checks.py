"""Bad input told in one sentence, before it becomes a strange number or an index error somewhere inside."""

import torch
from torch import Tensor

from gmt.config import GMTConfig


def check_inputs(
    cfg: GMTConfig,
    ids: Tensor,
    labels: Tensor | None,
    mask: Tensor | None,
    tau: Tensor | float | None,
    positions: Tensor | None,
    past: int | Tensor,
) -> None:
    if ids.dim() != 2:
        raise ValueError(f"ids must be [batch, tokens], not of shape {list(ids.shape)}")
    if ids.numel() == 0:
        raise ValueError(f"the batch is empty: ids have shape {list(ids.shape)}")
    length, context = ids.shape[1] + (past if isinstance(past, int) else 0), cfg.model.context
    if length > context:
        raise ValueError(f"a sequence of {length} tokens is longer than this model's context of {context}")
    if labels is not None and labels.shape != ids.shape:
        raise ValueError(f"labels have shape {list(labels.shape)}, ids {list(ids.shape)}")
    if mask is not None and (mask.dim() != 2 or mask.shape[0] != ids.shape[0] or mask.shape[1] < ids.shape[1]):
        raise ValueError(f"the mask has shape {list(mask.shape)}, which does not cover ids of shape {list(ids.shape)}")
    if isinstance(tau, float | int) and not 0 < tau < float("inf"):
        raise ValueError(f"the routing temperature must be positive and finite, not {tau}")
    # looking at values would stall a GPU and break a compiled graph; there the embedding's own check is left
    if ids.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_range("token id", ids, 0, cfg.model.vocab)
        if positions is not None:
            _check_range("position", positions, 0, context)
        if labels is not None:
            _check_range("label", labels.masked_fill(labels == -100, 0), 0, cfg.model.vocab)


def _check_range(what: str, values: Tensor, low: int, high: int) -> None:
    least, most = (int(v) for v in torch.aminmax(values))
    if least < low or most >= high:
        wrong = least if least < low else most
        raise ValueError(f"the {what} {wrong} is outside this model's range of {low} to {high - 1}")
