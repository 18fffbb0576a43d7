"""What commands show on a terminal while they work, and the summaries they end with."""

import math
import sys
from pathlib import Path
from time import monotonic
from typing import Any, Self

import typer
from tqdm import tqdm

from gmt.data.batches import Stream, TrainBatches
from gmt.data.manifest import BY_TOKENS, SPLITS, Manifest
from gmt.data.prepare import Note
from gmt.utils.progress import Bar


class _View:
    """Shows one bar at a time and closes it at the end."""

    def __init__(self) -> None:
        self.part: str | None = None
        self.bar: Bar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def show(self, part: str, done: int, total: int, note: str = "", unit: str = "") -> None:
        """A new part opens a new bar, which begins at `done`."""
        if part != self.part or self.bar is None:
            self.__exit__()
            self.part, self.bar = part, Bar(part, total, initial=done, unit=unit)
        self.bar.update(done, note)


class PrepareView(_View):
    """Documents, tokens and MB/s of every phase."""

    def tell(self, phase: str, done: int, total: int, note: Note) -> None:
        text = sum(note.text_bytes.values())
        if phase != self.part:
            self.began, self.first_bytes = monotonic(), text
        speed = (text - self.first_bytes) / 1e6 / max(monotonic() - self.began, 1e-9)
        tokens = f"{sum(note.tokens.values()) / 1e6:.1f} M tokens, {speed:.1f} MB/s"
        self.show(phase, done, total, tokens if total else "", "documents" if total else "")

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


class TrainView(_View):
    """The current step; validations are printed above it."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = peak_rate()

    def tell(self, event: str, values: dict[str, Any]) -> None:
        if event == "step":
            self._step(values)
        elif event == "validation":
            kept = "  lowest so far" if values["best"] else ""
            loss, perplexity = values["val_loss"], values["val_perplexity"]
            tqdm.write(
                f"step {values['step']:>7}  validation ({values['mode']})  {loss:.4f}  ppl {perplexity:.2f}{kept}"
            )
        elif event == "resumed":
            tqdm.write(f"resumed at step {values['step']} from {values['path']}")
        elif event == "fresh":
            tqdm.write(f"no checkpoint in {values['path']}: starting at step 1")
        elif event == "damaged":
            reasons = "".join(f"\n  {reason}" for reason in values["reasons"])
            tqdm.write(f"warning: newer checkpoints are damaged; resuming from step {values['step']}{reasons}")
        elif event == "warning":
            tqdm.write(f"warning: {values['message']}")
        elif event == "interrupted":
            tqdm.write(f"interrupted: saved at step {values['step']}; add --resume to continue")

    def _step(self, values: dict[str, Any]) -> None:
        parts = [f"loss {values['task']:.3f}", f"ppl {math.exp(min(values['task'], 20)):.1f}"]
        parts += [f"{values['tokens_per_second'] / 1e3:.1f}k tok/s"]
        share = f"{values['tflops'] * 1e12 / self.peak:.0%} MFU" if self.peak else f"{values['tflops']:.2f} TFLOP/s"
        parts.append(share)
        if "n_eff_mean" in values:
            parts += [f"N_eff {values['n_eff_mean']:.0f}", f"dead {values['dead']}", f"τ {values['tau']:.2f}"]
        self.show("", values["step"], values["steps"], ", ".join(parts), "steps")


class EvalView(_View):
    """A bar for each part of an evaluation; remarks are printed above it."""

    def tell(self, part: str, done: int, total: int) -> None:
        if total == 0:
            self.__exit__()
            typer.echo(part, err=True)
        else:
            self.show(part, done, total)


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


class StudyView(_View):
    """One bar for all runs; their starts, ends and failures are printed above it."""

    def tell(self, event: str, values: dict[str, Any]) -> None:
        if event == "progress":
            self._progress(values)
        elif event == "failed":
            tqdm.write(f"failed    {values['run']}: {values['why']}")
        else:
            tqdm.write(f"{event:<10}{values['run']}  ({values['folder']})")

    def _progress(self, values: dict[str, Any]) -> None:
        told = f"{values['finished']}/{values['runs']} runs"
        told += f", {values['failed']} failed" if values["failed"] else ""
        under_way = [f"; {run} {share:.0%}" for run, share in values["under_way"].items()]
        # two fit a line
        told += "".join(under_way[:2]) + (f" and {len(under_way) - 2} more" if len(under_way) > 2 else "")
        self.show("study", values["tokens"], values["of"], told, "tokens")


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
