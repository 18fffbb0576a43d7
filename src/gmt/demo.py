"""`gmt demo`: a memory model and its dense twin, trained side by side on the Python manual, in a few minutes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import typer
from tokenizers import Tokenizer
from tqdm import tqdm

from gmt import plot
from gmt.analysis.report import ReportOptions, report
from gmt.config import GMTConfig
from gmt.data.batches import Stream, ValidationBatches
from gmt.data.prepare import PrepareOptions, prepare
from gmt.errors import GMTError
from gmt.evaluate.validation import validate
from gmt.hf import GMTForCausalLM
from gmt.hf.directory import find_checkpoint
from gmt.model.language_model import GraphMemoryLM
from gmt.terminal import EvalView, PrepareView
from gmt.train.curves import draw_curves
from gmt.train.metrics import read_metrics
from gmt.train.plan import parameters

PROMPT = "The function returns"


def demo(out: Path, minutes: float, with_report: bool = True) -> None:
    data = out / "data"
    typer.echo("1. The Python manual and the docstrings of its library, as tokens")
    with PrepareView() as view:
        manifest = prepare(PrepareOptions(tokenizer="train:2048", context=128), data, 1, view.tell)
    typer.echo(f"   {manifest.tokens['train']:,} tokens to train on, {manifest.tokens['val']:,} to validate\n")
    settings = common_settings(manifest.tokenizer["vocab"])
    settings.append(f"train.steps={planned_steps(out, settings, data, minutes)}")
    configs = {name: GMTConfig.preset("tiny", *settings, *extra) for name, extra in twins(settings).items()}
    typer.echo("2. Two models of the same size, side by side")
    for name, cfg in configs.items():
        typer.echo(f"   {name:<8}{parameters(cfg):>10,} parameters")
    train_side_by_side(out, data, settings)
    rows, samples = {}, {}
    for name, cfg in configs.items():
        rows[name], samples[name] = judge(out / name, cfg, data)
    typer.echo("\n3. What they learned\n")
    print_table(configs, rows)
    for name, text in samples.items():
        typer.echo(f"\n   {name}: {text}")
    curves = draw_curves(out, {name: out / name for name in configs})
    typer.echo(f"\ncurves: {curves}" if curves else "\n(pip install matplotlib to have the curves drawn)")
    if with_report:
        show(out)
    typer.echo(
        f"\nnext:\n  gmt report {out}/memory --compare {out}/dense --out {out}/side-by-side\n"
        f"  gmt generate {out}/memory {PROMPT!r} --samples 3\n"
        f"  gmt eval {out}/memory --data {data} --mode frozen,adaptive\n  gmt data show {data} --step 0 --context 128\n"
        f"  gmt train tiny {' '.join(settings[:-1])} train.steps=5000 --data {data} --out {out}/longer\n"
        f"  gmt train gmt-v7-base --plan"
    )


def show(out: Path) -> None:
    """A report of the memory model, where it can be drawn."""
    if not plot.available():
        return
    typer.echo("\n4. What the memory does")
    with EvalView() as view:
        page = report(str(out / "memory"), out / "report", ReportOptions(blocks="2"), view.tell)
    typer.echo(f"   open {page}")


def common_settings(vocab: int) -> list[str]:
    # the published gate of 1.0 lets an untrained memory drown the residual stream in so short a run
    return [
        f"model.vocab={vocab}",
        "memory.gate_init=-2",
        "train.micro_batch=16",
        "train.learning_rate=2e-3",
        "validation.per_epoch=8",
        "validation.batches=8",
    ]


def twins(settings: list[str]) -> dict[str, list[str]]:
    """The memory model, and the dense one whose width gives it as many parameters as can be."""
    wanted = parameters(GMTConfig.preset("tiny", *settings))
    bare = parameters(GMTConfig.preset("tiny", *settings, "model.sublayer=dense", "model.dense_width=1"))
    per_width = 2 * 128 * 4
    width = 1 + round((wanted - bare) / per_width)
    return {"memory": [], "dense": ["model.sublayer=dense", f"model.dense_width={width}"]}


def planned_steps(out: Path, settings: list[str], data: Path, minutes: float) -> int:
    """As timed the first time: a demo that was interrupted goes on with the same plan."""
    path = out / "steps.txt"
    if not path.exists():
        path.write_text(str(affordable_steps(settings, data, minutes)))
    return int(path.read_text())


def affordable_steps(settings: list[str], data: Path, minutes: float) -> int:
    """As many steps as fit the time: one is timed first, for laptops are not alike."""
    cfg = GMTConfig.preset("tiny", *settings)
    torch.set_num_threads(1)
    lm = GraphMemoryLM(cfg)
    stream = Stream(data, "train").tokens[: cfg.train.micro_batch * cfg.model.context].astype("int64")
    ids = torch.from_numpy(stream).view(cfg.train.micro_batch, -1)
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        lm(ids, ids).loss.backward()
        seconds.append(time.perf_counter() - began)
    return max(20, int(minutes * 60 / (1.25 * min(seconds))))


def train_side_by_side(out: Path, data: Path, settings: list[str]) -> None:
    """Each in its own process on its own core; the bars follow their records."""
    runs = {}
    for name, extra in twins(settings).items():
        command = [sys.executable, "-m", "gmt", "train", "tiny", *settings, *extra]
        log = (out / f"{name}.log").open("w")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += ["--data", str(data), "--out", str(out / name)]
        if (out / name / "checkpoints").exists():
            command.append("--resume")
        runs[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    total = int(settings[-1].partition("=")[2])
    layout = "   {desc:<8}{n_fmt:>5}/{total_fmt} {bar:16}{postfix} [{elapsed}<{remaining}]"
    bars = {name: tqdm(total=total, desc=name, bar_format=layout, position=n) for n, name in enumerate(runs)}
    try:
        while any(run.poll() is None for run in runs.values()):
            time.sleep(0.5)
            for name, bar in bars.items():
                follow(bar, read_metrics(out / name / "metrics.jsonl"))
    finally:
        for bar in bars.values():
            bar.close()
        for run in runs.values():
            run.terminate()
            run.wait()
    for name, run in runs.items():
        if run.returncode:
            last = (out / f"{name}.log").read_text().strip().splitlines()[-1:]
            raise GMTError(f"training the {name} model ended with {run.returncode}: {' '.join(last)}")


def follow(bar: Any, lines: list[dict[str, Any]]) -> None:
    steps = [line for line in lines if "task" in line]
    validations = [line for line in lines if "val_loss" in line]
    if steps:
        told = f"loss {steps[-1]['task']:.3f}"
        told += f", validation {validations[-1]['val_loss']:.3f}" if validations else ""
        bar.set_postfix_str(told, refresh=False)
        bar.update(steps[-1]["step"] - bar.n)


def judge(run: Path, cfg: GMTConfig, data: Path) -> tuple[dict[str, Any], str]:
    """Validation loss with frozen and with adaptive memory, and a sample of text."""
    checkpoint, _ = find_checkpoint(run)
    if checkpoint is None:
        raise GMTError(f"{run} has no whole checkpoint")
    model: Any = GMTForCausalLM.from_pretrained(checkpoint).eval()
    batches = ValidationBatches(Stream(data, "val"), cfg.model.context, 16, limit=24)
    modes = ("frozen", "adaptive") if model.model.cells else ("frozen",)
    results = {mode: validate(model.model, batches, mode) for mode in modes}
    row: dict[str, Any] = {mode: result.loss for mode, result in results.items() if result}
    row["speed"] = [line["tokens_per_second"] for line in read_metrics(run / "metrics.jsonl") if "task" in line][-1]
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    torch.manual_seed(0)
    sample = model.generate(ids, max_new_tokens=60, do_sample=True, temperature=0.8, top_k=40)[0].tolist()
    return row, " ".join(tokenizer.decode(sample).split())


def print_table(configs: dict[str, GMTConfig], rows: dict[str, dict[str, Any]]) -> None:
    typer.echo(f"   {'model':<8}{'parameters':>12}{'frozen':>10}{'adaptive':>10}{'tokens/s':>11}")
    for name, row in rows.items():
        adaptive = f"{row['adaptive']:>10.4f}" if "adaptive" in row else f"{'-':>10}"
        typer.echo(
            f"   {name:<8}{parameters(configs[name]):>12,}{row['frozen']:>10.4f}{adaptive}{row['speed']:>11,.0f}"
        )
    typer.echo("   (validation loss; frozen memory takes no writes, adaptive memory does)")
