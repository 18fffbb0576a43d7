"""How likely a model finds a continuation: the arithmetic of every multiple-choice task.

Splitting text into context and continuation, and cutting what is too long from the left, are done as the LM
evaluation harness does them, so that the same items get the same tokens.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gmt.model.language_model import GraphMemoryLM


class Request(NamedTuple):
    context: list[int]
    continuation: list[int]


class Score(NamedTuple):
    total: float  # the sum of the log-probabilities of the continuation's tokens
    tokens: int  # how many were scored


def encode_pair(encode: Callable[[str], list[int]], context: str, continuation: str) -> Request:
    """Spaces at the end of the context belong to the continuation; the tokens are those of the whole text."""
    bare = context.rstrip()
    continuation, context = context[len(bare) :] + continuation, bare
    whole, before = encode(context + continuation), encode(context)
    return Request(before, whole[len(before) :])


@torch.no_grad()
def log_likelihoods(
    lm: GraphMemoryLM,
    requests: Sequence[Request],
    batch: int = 8,
    *,
    side: str = "right",
    autocast: Any = None,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Score]:
    """One score a request, in the requests' order. Longest first, so that what does not fit fails at once."""
    scores: list[Score | None] = [None] * len(requests)
    order = sorted(range(len(requests)), key=lambda i: -len(requests[i].context) - len(requests[i].continuation))
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        for row, score in zip(rows, _score(lm, [requests[i] for i in rows], side, autocast), strict=True):
            scores[row] = score
        tell(len(rows))
    return [score for score in scores if score is not None]


def _score(lm: GraphMemoryLM, requests: list[Request], side: str, autocast: Any) -> list[Score]:
    context = lm.cfg.model.context
    # T inputs predict T tokens: the last of T + 1 is no input
    whole = [torch.tensor((r.context + r.continuation)[-(context + 1) :]) for r in requests]
    ids, mask = _pad([text[:-1] for text in whole], side)
    labels, _ = _pad([text[1:] for text in whole], side)
    counted = [min(len(r.continuation), len(text) - 1) for r, text in zip(requests, whole, strict=True)]
    ends = [ids.shape[1] if side == "left" else len(text) - 1 for text in whole]
    keep = ids.shape[1] - min(end - count for end, count in zip(ends, counted, strict=True))
    device = lm.tau.device
    with autocast or nullcontext():
        # padding on the right is seen by no token before it, so that it needs no mask
        seen = mask.to(device) if side == "left" else None
        logits = lm(ids.to(device), mask=seen, observe=False, logits_to_keep=keep).logits
    chosen = F.log_softmax(logits.float(), dim=-1).gather(-1, labels[:, -keep:, None].to(device))[..., 0].cpu()
    offset = ids.shape[1] - keep
    return [
        Score(float(row[end - count - offset : end - offset].sum()), count)
        for row, end, count in zip(chosen, ends, counted, strict=True)
    ]


def _pad(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    longest = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[index, place], mask[index, place] = row, True
    return ids, mask
