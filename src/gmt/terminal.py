"""What commands show on a terminal while they work, and the summaries they end with."""

import math
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import typer
from tqdm import tqdm

from gmt.config import GMTConfig
from gmt.data.batches import Stream, TrainBatches
from gmt.data.manifest import BY_TOKENS, SPLITS, Manifest
from gmt.data.prepare import Note
from gmt.study.file import Study
from gmt.study.plan import study_plan

# on a terminal a bar moves; in a log file a line every quarter of a minute is enough
PACE = 0.3 if sys.stderr.isatty() else 15.0


class PrepareView:
    """A bar with documents, tokens, MB/s and time left. Off a terminal it prints a line now and then."""

    def __init__(self) -> None:
        self.phase, self.bar, self.began, self.first_bytes = "", None, monotonic(), 0

    def __enter__(self) -> "PrepareView":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def tell(self, phase: str, done: int, total: int, note: Note) -> None:
        text = sum(note.text_bytes.values())
        if phase != self.phase or self.bar is None:
            self.__exit__()
            self.phase, self.began, self.first_bytes = phase, monotonic(), text
            layout = "{desc}: {n_fmt}/{total_fmt} documents {bar}{postfix} [{elapsed}<{remaining}]"
            counting = "{desc} [{elapsed}] {n_fmt}"
            self.bar = tqdm(total=total or None, desc=phase, bar_format=layout if total else counting, mininterval=PACE)
            self.bar.initial = self.bar.n = done
        speed = (text - self.first_bytes) / 1e6 / max(monotonic() - self.began, 1e-9)
        self.bar.set_postfix_str(f"{sum(note.tokens.values()) / 1e6:.1f} M tokens, {speed:.1f} MB/s", refresh=False)
        self.bar.update(done - self.bar.n)

    def summary(self, manifest: Manifest, out: Path) -> None:
        echo, tokenizer = typer.echo, manifest.tokenizer
        echo(f"\n{out}")
        for split in SPLITS:
            documents, tokens = manifest.documents[split], manifest.tokens[split]
            per_token = manifest.text_bytes[split] / max(tokens, 1)
            echo(f"  {split:<6}{documents:>12,} documents{tokens:>16,} tokens{per_token:>8.2f} bytes a token")
        echo(
            f"  {tokenizer['vocab']:,} entries ({tokenizer['name']}) as {manifest.dtype}; run by {tokenizer['encoder']}"
        )
        if manifest.split == BY_TOKENS:
            found = manifest.documents["found"]
            some = "1 document" if found == 1 else f"{found:,} documents"
            echo(f"  split by tokens: {some} cannot be divided into two splits that hold a window each")
        if manifest.skipped:
            echo(f"  left out {len(manifest.skipped):,} documents; the first: {manifest.skipped[0]}")
        echo(f"\nnext: gmt data show {out} --step 0")


def show_step(
    folder: Path, step: int, seed: int, context: int, micro_batch: int, accumulation: int, width: int
) -> None:
    from tokenizers import Tokenizer

    batches = TrainBatches(Stream(folder, "train"), context, micro_batch, accumulation, seed)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    epoch, place = divmod(step, batches.steps_per_epoch)
    typer.echo(f"step {step}: epoch {epoch}, step {place} of {batches.steps_per_epoch} in it")
    for micro in range(accumulation):
        batch = batches.at(step, micro)
        for window, ids in zip(batch.windows.tolist(), batch.ids, strict=True):
            text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
            line = " ".join((text[:width] if width else text).split()) if width else text
            typer.echo(f"{micro:>3}  window {window:<9}{line}{'…' if width and len(text) > width else ''}")


class TrainView:
    """One line that says how training goes; validations stay above it."""

    def __init__(self, cfg: GMTConfig) -> None:
        self.cfg, self.bar, self.peak = cfg, None, peak_rate()

    def __enter__(self) -> "TrainView":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def tell(self, event: str, values: dict[str, Any]) -> None:
        if event == "step":
            self._step(values)
        elif event == "validation":
            kept = "  lowest so far" if values["best"] else ""
            loss, perplexity = values["val_loss"], values["val_perplexity"]
            self._line(
                f"step {values['step']:>7}  validation ({values['mode']})  {loss:.4f}  ppl {perplexity:.2f}{kept}"
            )
        elif event == "resumed":
            self._line(f"resumed at step {values['step']} from {values['path']}")
        elif event == "passed over":
            self._line(f"passed over {values['reason']}")
        elif event == "interrupted":
            self._line(f"interrupted: saved at step {values['step']}; --resume goes on from there")

    def _step(self, values: dict[str, Any]) -> None:
        if self.bar is None:
            layout = "{n_fmt}/{total_fmt} {bar:12}{postfix} [{elapsed}<{remaining}]"
            self.bar = tqdm(total=values["steps"], bar_format=layout, mininterval=PACE, initial=values["step"] - 1)
        parts = [f"loss {values['task']:.3f}", f"ppl {math.exp(min(values['task'], 20)):.1f}"]
        parts += [f"{values['tokens_per_second'] / 1e3:.1f}k tok/s"]
        share = f"{values['tflops'] * 1e12 / self.peak:.0%} MFU" if self.peak else f"{values['tflops']:.2f} TFLOP/s"
        parts.append(share)
        if "n_eff_mean" in values:
            parts += [f"N_eff {values['n_eff_mean']:.0f}", f"dead {values['dead']}", f"τ {values['tau']:.2f}"]
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update(values["step"] - self.bar.n)

    def _line(self, text: str) -> None:
        tqdm.write(text)


class EvalView:
    """A bar for each part of an evaluation; remarks stay above it."""

    def __init__(self) -> None:
        self.part, self.bar = "", None

    def __enter__(self) -> "EvalView":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def tell(self, part: str, done: int, total: int) -> None:
        if total == 0:
            self.__exit__()
            typer.echo(part, err=True)
            return
        if part != self.part or self.bar is None:
            self.__exit__()
            self.part = part
            layout = "{desc}: {n_fmt}/{total_fmt} {bar:24} [{elapsed}<{remaining}]"
            self.bar = tqdm(total=total, desc=part, bar_format=layout, mininterval=PACE)
        self.bar.update(done - self.bar.n)


class GenerateView:
    """The prompt and what comes after it, as it comes; several samples each under a line of their own."""

    def __init__(self, prompt: str, samples: int) -> None:
        self.prompt, self.samples, self.current = prompt, samples, -1

    def __enter__(self) -> "GenerateView":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.current >= 0:
            typer.echo()

    def tell(self, sample: int, piece: str) -> None:
        if sample != self.current:
            if self.current >= 0:
                typer.echo()
            self.current = sample
            if self.samples > 1:
                typer.echo(typer.style(f"--- sample {sample + 1} of {self.samples}", dim=True))
            typer.echo(typer.style(self.prompt, bold=True), nl=False)
        typer.echo(piece, nl=False)
        sys.stdout.flush()


class StudyView:
    """One bar for all runs; what begins, ends or fails is a line above it."""

    def __init__(self) -> None:
        self.bar = None

    def __enter__(self) -> "StudyView":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def tell(self, event: str, values: dict[str, Any]) -> None:
        if event == "progress":
            self._progress(values)
        elif event == "failed":
            tqdm.write(f"failed    {values['run']}: {values['why']}")
        else:
            tqdm.write(f"{event:<10}{values['run']}  ({values['folder']})")

    def _progress(self, values: dict[str, Any]) -> None:
        if self.bar is None:
            layout = "{percentage:3.0f} % of tokens {bar:16}{postfix} [{elapsed}<{remaining}]"
            self.bar = tqdm(total=values["of"], bar_format=layout, mininterval=PACE, initial=values["tokens"])
        told = f"{values['finished']}/{values['runs']} runs"
        told += f", {values['failed']} failed" if values["failed"] else ""
        under_way = [f"; {run} {share:.0%}" for run, share in values["under_way"].items()]
        # two fit a line
        told += "".join(under_way[:2]) + (f" and {len(under_way) - 2} more" if len(under_way) > 2 else "")
        self.bar.set_postfix_str(told, refresh=False)
        self.bar.update(max(0, values["tokens"] - self.bar.n))  # a run that begins anew does not turn it back


def print_study(study: Study, out: Path | None, devices: int) -> None:
    """What `gmt study` would do."""
    outlook = study_plan(study, out, devices)
    typer.echo(f"{study.name}: {study.question}\n" if study.question else study.name)
    width = max(len("arm"), *map(len, study.arms)) + 2
    typer.echo(f"  {'arm':<{width}}{'parameters':>14}{'MFLOP a token':>16}{'runs':>6}{'finished':>10}")
    for row in outlook.rows:
        mark = "  (reference)" if row.arm == study.reference else ""
        numbers = f"{row.parameters:>14,}{row.flops / 1e6:>16,.0f}{row.runs:>6}{row.finished:>10}"
        typer.echo(f"  {row.arm:<{width}}{numbers}{mark}")
    rates = ", ".join(f"{rate:g}" for rate in study.rates) or "as the arms have them"
    typer.echo(f"\n  learning rates {rates}; seeds {', '.join(map(str, study.seeds))}")
    if len(study.rates) > 1 and study.rate_seeds < len(study.seeds):
        typer.echo(f"  every rate is tried with {study.rate_seeds} of the seeds, the others take each arm's best")
    typer.echo(f"  {outlook.runs} runs of {study.tokens:,} tokens, {outlook.tokens:,} tokens still to be read")
    where = f"{devices} devices ({outlook.device})" if devices > 1 else outlook.device
    typer.echo(f"  about {outlook.hours:.2f} hours on {where}, by its rate on a matrix product: without starting,")
    typer.echo("  compiling and validating; runs side by side share a device, and take about as long together")


def peak_rate() -> float | None:
    """The vendor's dense bf16 rate, for GPUs whose name is known; else none is claimed."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    known = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "4090": 165e12, "L40S": 362e12, "B200": 2250e12}
    return next((rate for key, rate in known.items() if key in name), None)


def print_plan(plan: dict[str, Any]) -> None:
    for name, value in plan.items():
        if name != "points":
            text = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            typer.echo(f"  {name:<20}{text:>18}")
    typer.echo(f"\n  {'step':>10}{'τ':>12}{'learning rate':>16}")
    for step, tau, rate in plan["points"]:
        typer.echo(f"  {step:>10,}{tau:>12.6f}{rate:>16.3e}")
