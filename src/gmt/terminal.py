"""What commands show on a terminal while they work, and the summaries they end with."""

from pathlib import Path
from time import monotonic
from typing import Any

import typer
from tqdm import tqdm

from gmt.data.batches import Stream, TrainBatches
from gmt.data.manifest import SPLITS, Manifest
from gmt.data.prepare import Note


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
            layout = "{desc}: {n_fmt}/{total_fmt} documents {bar} {postfix} [{elapsed}<{remaining}]"
            counting = "{desc} [{elapsed}] {n_fmt}"
            self.bar = tqdm(total=total or None, desc=phase, bar_format=layout if total else counting, mininterval=0.3)
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
