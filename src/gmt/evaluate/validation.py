"""Validation loss over a stream, in three memory modes.

frozen: no writes. adaptive: memory takes writes while it validates, and is restored. adaptive-carry: the paper's;
what the writes changed stays. Cross-entropy only; the loss is the mean over all tokens, so that it does not depend on
the batch size when memory is frozen.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gmt.data.batches import ValidationBatches
from gmt.errors import GMTError
from gmt.memory.writeback import Writes
from gmt.model.language_model import GraphMemoryLM
from gmt.model.memory_state import restore, snapshot

MODES = ("frozen", "adaptive", "adaptive-carry")


class Validation(NamedTuple):
    loss: float
    batches: int
    mode: str
    losses: tuple[float, ...] = ()  # of each batch
    nats: float = 0.0  # the sum over all tokens
    tokens: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 20.0))


Share = Callable[[Writes | None, Tensor], tuple[Writes | None, Tensor]]


def alone(writes: Writes | None, numbers: Tensor) -> tuple[Writes | None, Tensor]:
    return writes, numbers


@torch.no_grad()
def validate(
    lm: GraphMemoryLM,
    batches: ValidationBatches,
    mode: str = "frozen",
    *,
    share: Share = alone,
    autocast: Any = None,
    interrupted: Callable[[], bool] = lambda: False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Validation | None:
    """The validation loss, or None where it was interrupted: then memory is as it was, in every mode."""
    if mode not in MODES:
        raise ValueError(f"there is no memory mode {mode!r}; there are {', '.join(MODES)}")
    device, training = lm.tau.device, lm.training
    before = snapshot(lm) if mode != "frozen" else None
    losses, nats, tokens = [], 0.0, 0
    lm.eval()
    try:
        for index in range(len(batches)):
            batch = batches.at(index)
            if interrupted():
                restore(lm, before)
                return None
            count = len(batch.windows) * batches.context
            ids, labels = (torch.from_numpy(part).to(device) for part in (batch.ids, batch.labels))
            with autocast or nullcontext():
                # a rank without rows in a short batch still takes part, with a row that counts for nothing
                mask = None if count else torch.zeros(1, batches.context, dtype=torch.bool, device=device)
                if mask is not None:
                    ids = labels = torch.zeros(1, batches.context, dtype=torch.long, device=device)
                out = lm(ids, labels, mask=mask, observe=mode != "frozen", return_logits=False)
            assert out.task_loss is not None
            numbers = torch.stack([out.task_loss * count, out.task_loss.new_tensor(count)])
            writes, numbers = share(out.writes, numbers)
            loss = float((numbers[0] / numbers[1]).cpu())
            if not math.isfinite(loss):  # it must not reach memory, nor be taken for the best
                raise GMTError(f"the validation loss of batch {index + 1} is not finite; memory is as it was before")
            if mode != "frozen":
                lm.commit(writes)
            losses.append(loss)
            tokens += int(numbers[1])
            nats += loss * int(numbers[1])
            tell(index + 1, len(batches))
    except BaseException:
        restore(lm, before)
        raise
    finally:
        lm.train(training)
    if mode == "adaptive":
        restore(lm, before)
    return Validation(nats / max(tokens, 1), len(losses), mode, tuple(losses), nats, tokens)
