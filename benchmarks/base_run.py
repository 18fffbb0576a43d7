"""The base model at the paper's batch on real tokens: 200 steps with falling loss, interrupted and resumed midway.

    python benchmarks/base_run.py --data data/mix --out runs/base --steps 200 --result base_run.json

Prints a table and writes the record as JSON. Options after `--` are settings, e.g. `-- train.micro_batch=4`.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from gmt.train.metrics import read_metrics


def run(command: list[str], record: Path, stop_at: int | None) -> tuple[int, float]:
    """Run training, and tell it to stop once it has recorded a step; returns its exit code and seconds."""
    began = time.time()
    process = subprocess.Popen(command)
    while process.poll() is None:
        time.sleep(0.2)
        done = [line["step"] for line in read_metrics(record) if "task" in line]
        if stop_at is not None and done and done[-1] >= stop_at:
            process.send_signal(signal.SIGTERM)
            stop_at = None
    return process.returncode, time.time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gmt-v7-base")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plan", type=int, help="planned steps of the schedules, where the run is only their start")
    parser.add_argument("--result", type=Path)
    parser.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    settings = [f"train.steps={arguments.plan or arguments.steps}", *arguments.settings]
    command = [sys.executable, "-m", "gmt", "train", arguments.preset, *settings]
    command += ["--data", str(arguments.data), "--out", str(arguments.out)]
    record = arguments.out / "metrics.jsonl"
    first = run(command, record, arguments.steps // 2)
    second = run([*command, "--resume"], record, arguments.steps if arguments.plan else None)
    lines = read_metrics(record)
    steps = [line for line in lines if "task" in line]
    checks = {
        "interrupted with exit 75": first[0] == 75,
        "resumed to the end": second[0] == (75 if arguments.plan else 0),
        "every step once": [line["step"] for line in steps] == list(range(1, len(steps) + 1)),
        "loss falls": sum(s["task"] for s in steps[-10:]) < sum(s["task"] for s in steps[:10]) - 10,
    }
    if "n_eff_mean" in steps[-1]:
        checks["mean N_eff above F/4 throughout"] = min(s["n_eff_mean"] for s in steps) > 32
    names = [
        n for n in ("task", "grad_norm", "n_eff_mean", "n_eff_min", "dead", "tau", "learning_rate") if n in steps[-1]
    ]
    print("step".rjust(6), *(name.rjust(14) for name in (*names, "tokens/s")))
    for line in [s for s in steps if s["step"] % max(arguments.steps // 10, 1) == 0 or s["step"] == 1]:
        print(f"{line['step']:>6}", *(f"{line[n]:>14.5g}" for n in names), f"{line['tokens_per_second']:>14,.0f}")
    for line in (line for line in lines if "val_loss" in line):
        print(f"step {line['step']}: validation {line['val_loss']:.4f} ({line['mode']})")
    print({name: "yes" if good else "NO" for name, good in checks.items()})
    rates = sorted(s["tokens_per_second"] for s in steps)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    summary = {
        "settings": settings, "device": device, "torch": torch.__version__, "checks": checks,
        "seconds": [round(first[1], 1), round(second[1], 1)], "median_tokens_per_second": rates[len(rates) // 2],
        "lines": lines,
    }  # fmt: skip
    print({name: value for name, value in summary.items() if name not in ("lines", "checks")})
    if arguments.result:
        arguments.result.write_text(json.dumps(summary))
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
