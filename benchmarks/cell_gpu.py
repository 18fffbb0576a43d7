"""The fused cell's kernels on a GPU over tiles, warps and stages: each checked, then timed by the profiler.

    python benchmarks/cell_gpu.py [--out tiles.json]

One kernel's tile is changed, the others stay as they are. Kernels compile in processes of their own, side by side.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from profile_gpu import kernels

from gmt.config import GMTConfig
from gmt.kernels import operators
from gmt.kernels.cell import fused_forward
from gmt.model.device import autocast
from gmt.model.parity import MOST, cell_distances, make_cell, make_norm, sum_distances

KERNELS = {
    "route": "route_kernel",
    "move": "move_kernel",
    "sums": "slot_sum_kernel",
    "backward": "backward_kernel",
    "products": "products_kernel",
}
BATCHES = (32, 8)


def tiles(kernel: str) -> list[dict[str, int]]:
    shapes: list[tuple[int, ...]]
    if kernel in ("route", "backward"):
        names, shapes, stages = ("BM", "num_warps"), [(64, 4), (64, 8), (128, 8), (32, 4), (32, 8)], (1,)
    elif kernel == "products":
        names, stages = ("BT", "BI", "BJ", "num_warps"), (2, 3, 4)
        shapes = [(64, 128, 128, 8), (32, 128, 128, 8), (64, 128, 128, 4), (64, 128, 64, 4), (64, 128, 256, 8)]
    else:
        names, stages = ("BT" if kernel == "sums" else "BM", "BH", "num_warps"), (2, 3, 4)
        shapes = [(64, 32, 4), (64, 64, 4), (128, 32, 8), (128, 64, 8), (64, 64, 8), (32, 64, 4), (64, 128, 8)]
    return [
        {**dict(zip(names, shape, strict=True)), "num_stages": count}
        for shape, count in itertools.product(shapes, stages)
    ]


def cell_work(batch: int) -> Callable[[], object]:
    """Forward and backward of one cell as a block calls it, not compiled."""
    cfg, device = GMTConfig.preset("gmt-v7-base"), torch.device("cuda")
    cell, norm = make_cell(cfg, device), make_norm(cfg.model.hidden, device)
    shape = batch, cfg.model.context, cfg.model.hidden
    x = torch.randn(shape, device=device, requires_grad=True)
    update = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad, tau, one = torch.randn_like(x), torch.tensor(0.5, device=device), torch.ones((), device=device)

    def work() -> object:
        with autocast(device, "bf16"):
            out, seen = fused_forward(cell, norm, x, update, tau)
        assert seen is not None
        return torch.autograd.grad((out, seen.track + seen.usage_sum.square().mean()), [x, update], [grad, one])

    return work


def error(kernel: str, tile: dict[str, int]) -> float | str:
    """How far it is from plain PyTorch, with full tiles and with others; why it cannot run, if it cannot."""
    before = operators.TILES[kernel]
    operators.TILES[kernel] = tile
    operators.WIDER_MOVE["tokens"] = 0  # in a process of its own, too
    try:
        cfg, device = GMTConfig.preset("gmt-v7-base"), torch.device("cuda")
        checks = [check(cfg, device, "bf16", n) for check in (cell_distances, sum_distances) for n in (1000, 1024)]
        return max(value for found in checks for value in found.values())
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:120]
    finally:
        operators.TILES[kernel] = before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    args = parser.parse_args()
    operators.WIDER_MOVE["tokens"] = 0  # the tile that is asked for, and not a wider one for few tokens
    tried = [(kernel, tile) for kernel in KERNELS for tile in tiles(kernel)]
    with concurrent.futures.ProcessPoolExecutor(12, multiprocessing.get_context("spawn")) as pool:
        errors = list(pool.map(error, *zip(*tried, strict=True)))
    works, rows = {batch: cell_work(batch) for batch in BATCHES}, []
    for (kernel, tile), wrong in zip(tried, errors, strict=True):
        row: dict[str, Any] = {"kernel": kernel, **tile, "error": wrong}
        if isinstance(wrong, float) and wrong < MOST["bf16"]:
            before, operators.TILES[kernel] = operators.TILES[kernel], tile
            row["us"] = {batch: kernels(work)[KERNELS[kernel]][0] for batch, work in works.items()}
            operators.TILES[kernel] = before
        rows.append(row)
    for row in sorted(rows, key=lambda row: (row["kernel"], row.get("us", {}).get(BATCHES[0], 1e9))):
        print(row, flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file)


if __name__ == "__main__":
    main()
