"""The commit of all blocks in one launch: the same numbers as memory/commit.py, which is the reference."""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence

import torch
from torch import Tensor

from gmt.kernels.available import machine_lacks
from gmt.memory.cell import MemoryCell
from gmt.memory.writeback import Writes


def commits_fused(cells: Sequence[MemoryCell]) -> bool:
    """By the setting `memory.kernels`, where all of memory is in float32 and lies in one piece. Inference tensors are
    left to torch's own operations, which know when they may be written."""
    kernels = cells[0].cfg.memory.kernels
    if kernels == "plain" or machine_lacks(cells[0].centroids.device, interpreter=kernels == "fused"):
        return False
    state = (t for cell in cells for t in (cell.centroids, cell.usage, cell.age))
    return all(t.dtype == torch.float32 and t.is_contiguous() and not t.is_inference() for t in state)


@torch.library.custom_op("gmt::commit", mutates_args=("centroids", "usage", "age"))
def _commit(
    centroids: list[Tensor],
    usage: list[Tensor],
    age: list[Tensor],
    momentum: list[Tensor],
    slot_sum: Tensor,
    slot_count: Tensor,
    usage_sum: Tensor,
    tokens: Tensor,
    keep: Tensor | None,
    decay: float,
) -> None:
    """No centroids are given where none are written: what is given counts as changed."""
    from gmt.kernels.triton_small import commit_kernel

    blocks, slots, hidden = slot_sum.shape
    rows = slots if centroids else 0
    with torch.cuda.device_of(slot_sum):
        commit_kernel[(rows + 1, blocks)](
            tuple(centroids or usage), tuple(usage), tuple(age), tuple(momentum), slot_sum, slot_count, usage_sum,
            tokens, tokens if keep is None else keep, decay, rows,
            H=hidden, HP=1 << (hidden - 1).bit_length(), F=slots, FP=1 << (slots - 1).bit_length(), BLOCKS=blocks,
            HAS_KEEP=keep is not None, num_warps=4,
        )  # fmt: skip


@_commit.register_fake
def _(*given):  # type: ignore
    return None


@torch.no_grad()
def fused_commit(cells: Sequence[MemoryCell], writes: Writes, keep: Tensor | None = None) -> None:
    shape = len(cells), *cells[0].centroids.shape
    for name, wanted in (("slot_sum", shape), ("slot_count", shape[:2]), ("usage_sum", shape[:2])):
        if (found := getattr(writes, name).shape) != wanted:
            raise ValueError(f"{name} has shape {list(found)}, not {list(wanted)}: it was seen by another model")
    settings = cells[0].cfg.memory
    torch.ops.gmt.commit(
        [cell.centroids for cell in cells] if settings.write_back else [],
        *([getattr(cell, name) for cell in cells] for name in ("usage", "age", "momentum")),
        *(getattr(writes, name).detach().float().contiguous() for name in ("slot_sum", "slot_count", "usage_sum")),
        writes.tokens.float(), keep, settings.usage_decay,
    )  # fmt: skip
