"""Attention with dropout on a GPU: our kernel against torch's backends, after a check against the equations.

    python benchmarks/attention_gpu.py [--tune] [--out attention.json]

`--tune` times the kernels over tiles, warps and stages, one at a time with the others as they are; kernels compile in
processes of their own, side by side.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gmt.bench.timing import in_turns
from gmt.config import GMTConfig
from gmt.kernels import attention
from gmt.model.parity import MOST, attention_distances

HEADS, SIZE, LENGTH, DROPOUT = 12, 64, 1024, 0.1
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def ours(batch: int) -> Any:
    qkv, grad = _inputs(batch)
    seed = torch.tensor([1], device="cuda")

    def work() -> None:
        out, log = torch.ops.gmt.attention_forward(qkv, seed, HEADS, DROPOUT)
        torch.ops.gmt.attention_backward(grad, qkv, seed, out, log, HEADS, DROPOUT)

    return work


def theirs(batch: int, backend: SDPBackend) -> Any:
    """From packed q, k, v to their packed gradient, as a layer needs it."""
    qkv, grad = _inputs(batch)
    qkv.requires_grad_()

    def work() -> None:
        q, k, v = qkv.view(batch, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=DROPOUT)
        torch.autograd.grad(out.transpose(1, 2).reshape(batch, LENGTH, -1), qkv, grad)

    return work


def _inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = HEADS * SIZE
    shape = (batch, LENGTH, 3 * width), (batch, LENGTH, width)
    qkv, grad = (torch.randn(one, device="cuda", dtype=torch.bfloat16) for one in shape)
    return qkv, grad


def tiles(kernel: str) -> list[dict[str, int]]:
    sizes = itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3))
    return [
        {"BM": m, "BN": n, "num_warps": warps, "num_stages": stages}
        for m, n, warps, stages in sizes
        if (m * n <= 128 * 64 or warps == 8) and (kernel == "keys" or m >= n)
    ]


def time_tile(kernel: str, tile: dict[str, int]) -> float | None:
    """Milliseconds of forward and backward with it; None where it does not fit, or comes out wrong."""
    before = attention.TILES[kernel]
    attention.TILES[kernel] = tile
    try:
        found = attention_distances(GMTConfig.preset("gmt-v7-base"), torch.device("cuda"), "bf16")
        if not max(found.values()) < MOST["bf16"]:
            print(kernel, tile, "wrong", found, flush=True)
            return None
        return in_turns({"one": ours(32)}, torch.device("cuda"), 5)["one"].median * 1e3
    except Exception as error:
        print(kernel, tile, type(error).__name__, flush=True)
        return None
    finally:
        attention.TILES[kernel] = before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    device = torch.device("cuda")
    found = attention_distances(GMTConfig.preset("gmt-v7-base"), device, "bf16")
    print(found, flush=True)
    assert max(found.values()) < MOST["bf16"], "not timed: it does not compute the same"
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "parity": found}
    if args.tune:
        tried = [(kernel, tile) for kernel in attention.TILES for tile in tiles(kernel)]
        with concurrent.futures.ProcessPoolExecutor(14, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(time_tile, *zip(*tried, strict=True)))  # compiles: the cache on disk is shared
        rows = [(time_tile(kernel, tile), kernel, tile) for kernel, tile in tried]
        result["tiles"] = sorted((row for row in rows if row[0] is not None), key=lambda row: (row[1], row[0]))
        for kernel in attention.TILES:
            best = [row for row in result["tiles"] if row[1] == kernel][:4]
            print(*best, sep="\n", flush=True)
            attention.TILES[kernel] = best[0][2]
    for batch in (8, 32):
        works = {name: theirs(batch, backend) for name, backend in BACKENDS.items()} | {"ours": ours(batch)}
        result[f"batch {batch}, ms"] = {name: t.median * 1e3 for name, t in in_turns(works, device, 20).items()}
        print(batch, result[f"batch {batch}, ms"], flush=True)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
