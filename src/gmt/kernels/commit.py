"""The commit of all blocks in one launch: the same numbers as memory/commit.py, which is the reference."""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence

import torch

from gmt.kernels.available import machine_lacks
from gmt.memory.cell import MemoryCell
from gmt.memory.writeback import Writes


def commits_fused(cells: Sequence[MemoryCell]) -> bool:
    """By the setting `memory.kernels`, where memory is in float32."""
    kernels, memory = cells[0].cfg.memory.kernels, cells[0].centroids
    lacks = kernels == "plain" or machine_lacks(memory.device, interpreter=kernels == "fused")
    return not lacks and memory.dtype == torch.float32


@torch.no_grad()
def fused_commit(cells: Sequence[MemoryCell], writes: Writes, keep: torch.Tensor | None = None) -> None:
    from gmt.kernels.triton_small import commit_kernel

    settings, (slots, hidden) = cells[0].cfg.memory, cells[0].centroids.shape
    changed = [(cell.centroids, cell.usage, cell.age) for cell in cells]
    rows = slots if settings.write_back else 0
    with torch.cuda.device_of(cells[0].centroids):
        commit_kernel[(rows + 1, len(cells))](
            *map(tuple, zip(*changed, strict=True)), tuple(cell.momentum for cell in cells),
            writes.slot_sum.contiguous(), writes.slot_count.contiguous(), writes.usage_sum.detach().contiguous(),
            writes.tokens, writes.tokens if keep is None else keep, settings.usage_decay, rows,
            H=hidden, HP=1 << (hidden - 1).bit_length(), F=slots, FP=1 << (slots - 1).bit_length(), BLOCKS=len(cells),
            HAS_KEEP=keep is not None, num_warps=4,
        )  # fmt: skip
    # a kernel's write is none that autograd sees, and what was saved before it must be known to be old
    torch.autograd.graph.increment_version(
        [t for block in changed for t in block[0 if rows else 1 :] if not t.is_inference()]
    )
