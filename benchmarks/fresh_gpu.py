"""Whether a process that compiles its graph anew routes as one that finds it in the cache, on a GPU: the first steps of
the same run, several times, each in a process of its own.

    python benchmarks/fresh_gpu.py DATA [--times 3] [SETTING=VALUE ...]

Prints the first step's loss and coverage and exits with 1 where they differ. Why: docs/performance.md, "Known trouble".
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = ["model.blocks=4", "train.micro_batch=32", "train.accumulation=2", "train.compile=true", "train.graphs=true"]
SETTINGS += ["train.steps=3", "validation.every=100", "save.best=false"]


def first_step(folder: Path, cache: Path, given: list[str], data: str) -> dict[str, float]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    command = [sys.executable, "-m", "gmt", "train", "gmt-v7-base", *SETTINGS, *given]
    command += ["--data", data, "--out", str(folder)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"gmt train ended with {ended.returncode}: {ended.stderr[-500:]}")
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    return {name: line[name] for name in ("task", "coverage", "n_eff_mean")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as place:
        for number in range(args.times):
            for kind in ("anew", "from the cache"):
                folder = Path(place) / f"{number} {kind}"
                row = first_step(folder, Path(place) / f"cache {number}", args.settings, args.data)
                print(f"{kind}: {row}", flush=True)
                found.append(row)
    apart = max(abs(row[name] - found[0][name]) / abs(found[0][name]) for row in found for name in row)
    print(f"at most {apart:.1e} of the first apart")
    sys.exit(apart > 0.05)


if __name__ == "__main__":
    main()
