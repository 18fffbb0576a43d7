"""`gmt demo`: train v7 and a dense model of equal size on the Python manual, and compare them."""

import math
import os
import subprocess
import sys
import time
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import typer

from gmt import plot
from gmt.analysis.interventions.controls import Condition, ControlOptions, measure
from gmt.analysis.interventions.edges import Edges
from gmt.analysis.interventions.edits import Scale
from gmt.analysis.interventions.run import RESULTS, default_windows, results_folder
from gmt.analysis.report import ReportOptions, report
from gmt.config import GMTConfig
from gmt.data.prepare import PrepareOptions, prepare
from gmt.errors import GMTError
from gmt.evaluate.run import validation_loss
from gmt.hf.load import open_model
from gmt.model.device import auto_precision, pick_device
from gmt.terminal import EvalView, PrepareView
from gmt.train.metrics import RecordTail, read_metrics
from gmt.train.plan import parameters
from gmt.utils.outputs import OutputFolder
from gmt.utils.progress import Bar
from gmt.utils.stats import Interval

TOKENIZER, CONTEXT = "train:2048", 128
PRESET = "tiny-stable"


@dataclass(frozen=True)
class Outcome:
    """One line of the table; the changes are None for a model without memory."""

    loss: float
    tokens_per_second: float
    removed: Interval | None = None
    shuffled: Interval | None = None
    windows: int = 0
    step: int | None = None


def demo(out: Path, steps: int, seed: int, with_report: bool = True) -> None:
    began = time.monotonic()
    data = out / "data"
    typer.echo("1. Prepare the Python manual")
    with PrepareView() as view:
        manifest = prepare(PrepareOptions(tokenizer=TOKENIZER, context=CONTEXT), data, 1, view.tell)
    settings = common_settings(manifest.tokenizer["vocab"], steps, seed)
    extras = model_settings(settings)
    configs = {name: GMTConfig.preset(PRESET, *settings, *extra) for name, extra in extras.items()}
    typer.echo(f"2. Train {' and '.join(configs)} side by side on the same {steps:,} batches")
    train_side_by_side(out, data, steps, {name: [*settings, *extra] for name, extra in extras.items()})
    typer.echo("3. Measure the validation loss and what the memory contributes")
    with EvalView() as view:
        outcomes = {name: evaluate(out, name, data, view) for name in configs}
    tokens = steps * configs["v7"].train.micro_batch * CONTEXT
    what = f"Two models of about {parameters(configs['v7']):,} parameters; each read {tokens / 1e6:.1f} M tokens."
    page = None
    if with_report and plot.available():
        typer.echo("4. Write a report about v7")
        introduction = "\n".join(["Result of the demo. " + what, "", *result_lines(outcomes)])
        options = ReportOptions(blocks="2", force=True, introduction=introduction)
        with EvalView() as view:
            page = report(str(out / "v7"), out / "report", options, view.tell)
    typer.echo(closing_lines(out, outcomes, page, what, time.monotonic() - began))
    if page is not None and _can_open_a_browser() and typer.confirm("Open the report now?", default=True):
        webbrowser.open(page.resolve().as_uri())


def common_settings(vocab: int, steps: int, seed: int) -> list[str]:
    return [
        f"model.vocab={vocab}",
        "train.micro_batch=16",
        "train.learning_rate=2e-3",
        f"train.steps={steps}",
        f"train.seed={seed}",
        f"validation.every={max(1, steps // 8)}",
        "validation.batch=16",
        "validation.batches=8",
    ]


def model_settings(settings: list[str]) -> dict[str, list[str]]:
    """The settings of each model. The width of the dense layer gives it as many parameters as v7 has."""
    wanted = parameters(GMTConfig.preset(PRESET, *settings))
    one, two = (
        parameters(GMTConfig.preset(PRESET, *settings, "model.sublayer=dense", f"model.dense_width={width}"))
        for width in (1, 2)
    )
    width = 1 + round((wanted - one) / (two - one))
    return {"dense": ["model.sublayer=dense", f"model.dense_width={width}"], "v7": []}


def train_side_by_side(out: Path, data: Path, steps: int, models: dict[str, list[str]]) -> None:
    """Each model in its own process with one thread; the bars follow the records of the runs."""
    runs: dict[str, subprocess.Popen[bytes]] = {}
    # version 0.1.0 kept no list of its files; its logs are beside the runs
    logs = OutputFolder(out, "demo", force=True, earlier=lambda log: (out / Path(log).stem / "metrics.jsonl").exists())
    logs.reserve(*(f"{name}.log" for name in models))
    for name, settings in models.items():
        command = [
            sys.executable,
            "-m",
            "gmt",
            "train",
            PRESET,
            *settings,
            "--data",
            str(data),
            "--out",
            str(out / name),
        ]
        if (out / name / "checkpoints").exists():
            command.append("--resume")
        with (out / f"{name}.log").open("w") as log:
            runs[name] = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    bars = {name: Bar(f"{name:<5}", steps, position=place, unit="steps") for place, name in enumerate(runs)}
    followers = {name: _Follower(bar, out / name / "metrics.jsonl") for name, bar in bars.items()}
    try:
        running = True
        while running:
            ended = {name: run.poll() is not None for name, run in runs.items()}
            running = not all(ended.values())
            for name in bars:
                # the last step counts when its validation is recorded, so that the bar ends with the loss of the table
                followers[name].update(steps if ended[name] else steps - 1)
            time.sleep(0.5 if running else 0)
    finally:
        for bar in bars.values():
            bar.close()
        for run in runs.values():
            run.terminate()
            run.wait()
    logs.finish()
    for name, run in runs.items():
        if run.returncode:
            last = (out / f"{name}.log").read_text().strip().splitlines()[-1:]
            raise GMTError(f"training {name} failed with exit code {run.returncode}, see {out}/{name}.log: {last[0]}")


class _Follower:
    """A bar that follows the record of a run."""

    def __init__(self, bar: Bar, record: Path) -> None:
        self.bar, self.tail = bar, RecordTail(record)
        self.step, self.loss, self.lowest = 0, math.nan, math.inf

    def update(self, most: int) -> None:
        for line in self.tail.read():
            self.lowest = min(self.lowest, line.get("val_loss", math.inf))
            if "task" in line:
                self.step, self.loss = line["step"], line["task"]
        if self.step:
            note = f"training loss {self.loss:.3f}"
            lowest = f", lowest validation loss {self.lowest:.4f}" if self.lowest < math.inf else ""
            self.bar.update(min(self.step, most), note + lowest)


def evaluate(out: Path, name: str, data: Path, view: EvalView) -> Outcome:
    """The validation loss of the best checkpoint; with memory also the cost of removing it and of shuffling edges."""
    device = pick_device("auto")
    loaded = open_model(out / name, device)
    speed = median(line["tokens_per_second"] for line in read_metrics(out / name / "metrics.jsonl") if "task" in line)
    windows = default_windows(loaded)
    if not loaded.lm.cells:
        return Outcome(validation_loss(loaded, data, windows).loss, speed, windows=windows, step=loaded.step)
    conditions = [
        Condition("edges", "shuffled", None, (Edges(None, form="shuffled", seed=0),)),
        Condition("alpha", "α = 0", None, (Scale(None, alpha=0.0),)),
    ]
    # `gmt intervene` with the same folder uses these records again
    records = results_folder(out / "edits", force=True).file(RESULTS)
    options = ControlOptions(data, windows, auto_precision(device))
    base, shuffled, removed = measure(loaded, conditions, options, records, view.tell)
    return Outcome(base.loss, speed, removed.change(base), shuffled.change(base), windows, loaded.step)


def result_lines(outcomes: dict[str, Outcome]) -> list[str]:
    """The table of both models, and what the memory of v7 contributes."""
    lines = ["  model    validation loss    memory removed    edges shuffled    tokens/s"]
    for name, outcome in outcomes.items():
        removed, shuffled = (
            "-" if change is None else f"{change.mean:+.4f}" for change in (outcome.removed, outcome.shuffled)
        )
        lines.append(f"  {name:<9}{outcome.loss:>15.4f}{removed:>18}{shuffled:>18}{outcome.tokens_per_second:>12,.0f}")
    v7 = outcomes["v7"]
    assert v7.removed is not None and v7.shuffled is not None
    return [
        *lines,
        "",
        f"Removing the memory of v7 {v7.removed.effect()}.",
        f"Shuffling the edges of v7 {v7.shuffled.effect()}.",
        f"(Nats per token over {v7.windows} validation windows, with 95 % intervals. Each model is at its lowest",
        f"validation loss: {', '.join(f'{name} at step {outcome.step}' for name, outcome in outcomes.items())}.)",
    ]


def closing_lines(out: Path, outcomes: dict[str, Outcome], page: Path | None, what: str, seconds: float) -> str:
    lines = ["", f"Done in {int(seconds) // 60} min {int(seconds) % 60:02} s. {what}", "", *result_lines(outcomes), ""]
    if page is not None:
        lines.append(f"Open this page:   {page}")
    lines += [
        "Then try:         source .venv/bin/activate",
        f"                  gmt explore {out}/v7",
        f"                  gmt intervene {out}/v7 --data {out}/data --out {out}/edits",
    ]
    return "\n".join(lines)


def _can_open_a_browser() -> bool:
    display = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return display and sys.stdin.isatty() and sys.stdout.isatty()
