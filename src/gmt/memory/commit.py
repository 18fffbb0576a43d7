"""The one place that says how memory is written: what a forward pass saw, into all blocks at once.

kernels/commit.py does the same in one launch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gmt.memory.cell import MemoryCell
from gmt.memory.maintenance import track_usage
from gmt.memory.writeback import Writes, write_back


@torch.no_grad()
def commit(cells: Sequence[MemoryCell], writes: Writes, keep: Tensor | None = None) -> None:
    """C, usage and age of every block. A few operations on all of them, not a few on each."""
    settings = cells[0].cfg.memory
    if settings.write_back:
        centroids, momentum = (
            torch.stack([getattr(cell, name) for cell in cells]) for name in ("centroids", "momentum")
        )
        new = write_back(centroids, momentum, writes.slot_sum, writes.slot_count, keep)
        _copy([cell.centroids for cell in cells], list(new.unbind()))
    usage, age = (torch.stack([getattr(cell, name) for cell in cells]) for name in ("usage", "age"))
    track_usage(usage, age, writes.mean_usage.detach(), writes.tokens, settings.usage_decay, keep)
    _copy([cell.usage for cell in cells], list(usage.unbind()))
    _copy([cell.age for cell in cells], list(age.unbind()))


def _copy(to: list[Tensor], new: list[Tensor]) -> None:
    torch._foreach_copy_(to, new)  # pyright: ignore[reportPrivateImportUsage]
