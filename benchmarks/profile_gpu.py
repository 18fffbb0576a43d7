"""Where the time of a training step, or of second sublayers in a row, goes on a GPU: its kernels, longest first.

python benchmarks/profile_gpu.py [step|cells] [--model memory|dense-1050] [--batch 32] [--out profile.json]
"""

import argparse
import json
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gmt.bench import cases
from gmt.bench.run import configs
from gmt.bench.timing import Work, in_turns

REPEATS = 3


def kernels(work: Work) -> dict[str, tuple[float, float]]:
    """Microseconds of one call, and launches, by kernel."""
    work()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
    found = {row.key: (row.device_time_total / REPEATS, row.count / REPEATS) for row in seen.key_averages()}
    return {name: times for name, times in found.items() if times[0] > 0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="?", default="step", choices=("step", "cells"))
    parser.add_argument("--model", default="memory")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out")
    args = parser.parse_args()
    cfg, device = configs("base")[args.model], torch.device("cuda")
    if args.kind == "step":
        work = cases.step(cfg, args.batch, device, "bf16", compiled=True, plain=False)
    else:
        work = cases.layer(cfg, args.batch, device, "bf16", compiled=True, depth=cfg.model.blocks)
    times = in_turns({"it": work}, device, 20)["it"]
    found = sorted(kernels(work).items(), key=lambda row: -row[1][0])
    rows: list[dict[str, Any]] = [{"kernel": name, "us": us, "launches": count} for name, (us, count) in found]
    total = sum(row["us"] for row in rows)
    print(f"{args.kind}, {args.model}, batch {args.batch}: {times.median * 1e3:.2f} ms, kernels {total / 1e3:.2f} ms")
    for row in rows[:40]:
        print(f"{row['us']:10.1f} us {row['launches']:7.1f}  {row['kernel'][:90]}")
    if args.out:
        asked = {"kind": args.kind, "model": args.model, "batch": args.batch}
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **asked}
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(facts | {"ms": times.median * 1e3, "kernels": rows}, file, indent=1)


if __name__ == "__main__":
    main()
