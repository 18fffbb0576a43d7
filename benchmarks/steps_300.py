"""300 steps with the fused kernels, the same again, and with plain PyTorch: how far apart they end.

    python benchmarks/steps_300.py --data DATA --out OUT [--one-cache] [gmt-v7-stable train.learning_rate=5e-5 ...]

DATA is a folder of `gmt prepare`; what follows is a preset and settings as `gmt train` takes them. The three run side
by side, each in a process of its own that compiles anew: the second is a CUDA graph, which must change nothing. With
--one-cache they run one after the other, and the later find on disk what the first had compiled, and timed. Prints
losses at the last step, in validation and in the mean of the last 50 steps, from which step on a pair is further apart
than so much, and whether two runs wrote the same bits; exits with 1 where one of the first two ends more than 0.01 nats
from the third in validation.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gmt.checkpoint.format import MANIFEST
from gmt.checkpoint.store import list_checkpoints
from gmt.train.metrics import read_metrics

RUNS = {"fused": [], "as a graph": ["train.graphs=true"], "plain": ["memory.kernels=plain"]}
MOST = 0.01
CLOCK = {"tokens_per_second", "tflops"}
SETTINGS = ["train.accumulation=1", "train.compile=true", "validation.mode=frozen", "validation.batches=60"]


def start(name: str, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    steps = [f"{setting}={args.steps}" for setting in ("train.steps", "validation.every", "save.every")]
    out = args.out / name.replace(" ", "_")
    preset, *settings = args.settings
    command = [sys.executable, "-m", "gmt", "train", preset, *SETTINGS, *steps, *settings, *RUNS[name]]
    cache = args.out / "cache" / ("" if args.one_cache else out.name)
    caches = {f"{kind}_CACHE_DIR": str(cache / kind) for kind in ("TORCHINDUCTOR", "TRITON")}
    with (args.out / f"{out.name}.log").open("wb") as log:
        where = ["--data", str(args.data), "--out", str(out)]
        return subprocess.Popen([*command, *where], env=os.environ | caches, stdout=log, stderr=log)


def digest(run: Path) -> str:
    """Of the model and the optimizer as they were saved last, by the checkpoint's own manifest."""
    hashes = json.loads((list_checkpoints(run)[0].path / MANIFEST).read_text("utf-8"))["sha256"]
    return " ".join(hashes[name] for name in ("model.safetensors", "optimizer.safetensors"))


def first_differences(lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """The first step in which anything recorded differs by a bit, and what does: the norm of the gradient before the
    loss says that a backward did, the loss first that a forward did."""
    for line, other in zip(lines, others, strict=True):
        names = [name for name, value in line.items() if name not in CLOCK and value != other.get(name)]
        if names:
            return f"the first bit in step {line['step']}, in {', '.join(names)}"
    return "no bit of what was recorded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="*", default=["gmt-v7-stable", "train.micro_batch=32", "train.learning_rate=5e-5"]
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--one-cache", action="store_true")
    args = parser.parse_intermixed_args()
    args.out.mkdir(parents=True)
    if args.one_cache:
        failed = [name for name in RUNS if start(name, args).wait()]
    else:
        started = {name: start(name, args) for name in RUNS}
        failed = [name for name, process in started.items() if process.wait()]
    if failed:
        sys.exit(f"{', '.join(failed)}: failed, see the log in {args.out}")
    losses, ends, digests, recorded = {}, {}, {}, {}
    for name in RUNS:
        run = args.out / name.replace(" ", "_")
        lines = read_metrics(run / "metrics.jsonl")
        recorded[name] = [line for line in lines if "task" in line]
        losses[name] = [line["task"] for line in recorded[name]]
        ends[name] = next(line["val_loss"] for line in reversed(lines) if "val_loss" in line)
        digests[name] = digest(run)
        last = losses[name][-50:]
        mean = f"{sum(last) / len(last):.4f} in the mean of {len(last)}"
        print(
            f"{name:>10}: {last[-1]:.4f} at the last step, {ends[name]:.4f} in validation, {mean}; {digests[name][:12]}"
        )
    with (args.out / "steps.csv").open("w", encoding="utf-8") as file:
        file.write(f"step,{','.join(RUNS)}\n")
        for step, row in enumerate(zip(*losses.values(), strict=True), 1):
            file.write(f"{step},{','.join(f'{loss:.6f}' for loss in row)}\n")
        file.write(f"validation,{','.join(f'{end:.6f}' for end in ends.values())}\n")
    for other in ("as a graph", "plain"):
        pairs = list(zip(losses["fused"], losses[other], strict=True))
        apart = {
            most: next((i for i, (a, b) in enumerate(pairs, 1) if abs(a - b) > most), None)
            for most in (1e-6, 5e-4, MOST)
        }
        told = ", ".join(f"{most:g} from step {step}" if step else f"{most:g} never" for most, step in apart.items())
        print(
            f"fused and {other}: the same bits"
            if digests["fused"] == digests[other]
            else f"fused and {other} are apart by {told}; {first_differences(recorded['fused'], recorded[other])}"
        )
    sys.exit(0 if all(abs(ends[name] - ends["plain"]) <= MOST for name in ("fused", "as a graph")) else 1)


if __name__ == "__main__":
    main()
