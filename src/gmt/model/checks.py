"""Bad input told in one sentence, before it becomes a strange number or an index error somewhere inside."""

import torch
from torch import Tensor

from gmt.config import TAU_LEAST, TAU_MOST


def check_shapes(ids: Tensor, labels: Tensor | None, mask: Tensor | None, past: int | Tensor, context: int) -> None:
    if ids.dim() != 2:
        raise ValueError(f"ids must be [batch, tokens], not of shape {list(ids.shape)}")
    if ids.numel() == 0:
        raise ValueError(f"the batch is empty: ids have shape {list(ids.shape)}")
    length = ids.shape[1] + (past if isinstance(past, int) else 0)
    if length > context:
        raise ValueError(f"a sequence of {length} tokens is longer than this model's context of {context}")
    if labels is not None and labels.shape != ids.shape:
        raise ValueError(f"labels have shape {list(labels.shape)}, ids {list(ids.shape)}")
    wanted = [ids.shape[0], length]
    if mask is not None and isinstance(past, int) and list(mask.shape) != wanted:
        raise ValueError(f"the mask has shape {list(mask.shape)}, not {wanted}: one entry for each token so far")


def check_values(
    ids: Tensor, labels: Tensor | None, positions: Tensor, tau: Tensor | float | None, vocab: int, context: int
) -> None:
    if isinstance(tau, float | int):
        check_temperature(tau)
    # looking into a tensor would stall a GPU and break a compiled graph; there the embedding's own check is left
    if ids.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_range("token id", ids, 0, vocab)
        _check_range("position", positions, 0, context)
        if labels is not None:
            _check_range("label", labels.masked_fill(labels == -100, 0), 0, vocab)
        if isinstance(tau, Tensor):
            check_temperature(float(tau))


def check_temperature(tau: float) -> None:
    if not TAU_LEAST <= tau <= TAU_MOST:
        raise ValueError(f"the routing temperature must lie between {TAU_LEAST:g} and {TAU_MOST:g}, not be {tau:g}")


def _check_range(what: str, values: Tensor, low: int, high: int) -> None:
    least, most = (int(v) for v in torch.aminmax(values))
    if least < low or most >= high:
        wrong = least if least < low else most
        raise ValueError(f"the {what} {wrong} is outside this model's range of {low} to {high - 1}")
