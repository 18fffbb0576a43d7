"""What `gmt prepare` costs beside the tokenizer itself, its memory, and how fast batches come.

    python benchmarks/prepare.py --text corpus.jsonl.zst        rates as ratios, in one run
    python benchmarks/prepare.py --memory-gb 2                  peak memory on generated text
    python benchmarks/prepare.py --batches                      batches a second from a warm stream

Prints ratios, so that machines can be compared; ends with exit 1 where a bound is missed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from gmt.data.batches import Stream, TrainBatches
from gmt.data.manifest import Manifest
from gmt.data.prepare import PrepareOptions, prepare
from gmt.data.sources import find_sources, text_of
from gmt.data.tokenizer import choose_encoder, encoder_named, load_tokenizer

Row = tuple[str, float, str, float | None]  # what, value, unit, bound


class Alone:
    """The chosen encoder alone, on texts that are already in memory."""

    def __init__(self, sources: list[str], tokenizer: str) -> None:
        self.texts = [text_of(raw, "text") for source in find_sources(sources, "text") for raw in source.read()]
        self.size = sum(len(text.encode()) for text in self.texts) / 1e6
        loaded: Tokenizer = load_tokenizer(tokenizer)
        self.name, _ = choose_encoder(loaded, self.texts[:1000])
        self.encode = encoder_named(self.name, loaded)

    def rate(self) -> float:
        self.encode(self.texts[:50])
        began = time.perf_counter()
        for at in range(0, len(self.texts), 256):
            self.encode(self.texts[at : at + 256])
        return self.size / (time.perf_counter() - began)


def prepare_rate(sources: list[str], tokenizer: str, workers: int, size: float) -> float:
    """The whole command, from start to rename."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        prepare(PrepareOptions(tuple(sources), tokenizer), Path(folder) / "out", workers)
        return size / (time.perf_counter() - began)


def rates(sources: list[str], tokenizer: str, rounds: int) -> list[Row]:
    every, one = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}
    alone = Alone(sources, tokenizer)
    found: dict[str, list[float]] = {"raw": [], "single": [], "double": []}
    for _ in range(rounds):  # interleaved, and the medians compared: a machine's pace wanders
        os.sched_setaffinity(0, one)
        found["raw"].append(alone.rate())
        found["single"].append(prepare_rate(sources, tokenizer, 1, alone.size))
        os.sched_setaffinity(0, every)
        found["double"].append(prepare_rate(sources, tokenizer, 2, alone.size))
        print({name: [round(rate, 2) for rate in values] for name, values in found.items()}, file=sys.stderr)
    raw, single, double = (statistics.median(values) for values in found.values())
    return [
        (f"{alone.name} alone, one core, {alone.size:.0f} MB, median of {rounds}", raw, "MB/s", None),
        ("gmt prepare, one core", single, "MB/s", None),
        ("gmt prepare, two workers", double, "MB/s", None),
        ("one core / the encoder alone", single / raw, "", 0.85),
        ("two workers / one core", double / single, "", 1.8),
    ]


def memory(gigabytes: float, workers: int, tokenizer: str) -> list[Row]:
    """Peak of the summed memory of the command and its workers, sampled while it runs."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "generated.jsonl"
        generate(text, int(gigabytes * 1e9))
        command = [sys.executable, "-m", "gmt", "prepare", str(text), "--out", str(Path(folder) / "out")]
        run = subprocess.Popen([*command, "--tokenizer", tokenizer, "--workers", str(workers)], start_new_session=True)
        peak = [0.0]
        watch = threading.Thread(target=sample, args=(run, peak))
        watch.start()
        run.wait()
        watch.join()
        assert run.returncode == 0
        tokens = Manifest.load(Path(folder) / "out").tokens["train"]
    return [(f"peak memory, {gigabytes:g} GB of text, {tokens:,} tokens, {workers} workers", peak[0], "MB", -600)]


def generate(path: Path, size: int) -> None:
    random.seed(0)
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(1, 9))) for _ in range(20000)]
    lines = [json.dumps({"text": " ".join(random.choices(words, k=random.randint(20, 2000)))}) for _ in range(2000)]
    with path.open("w") as file:
        written = 0
        while written < size:
            written += file.write(random.choice(lines) + "\n")


def sample(run: subprocess.Popen, peak: list[float]) -> None:
    while run.poll() is None:
        total = 0
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == run.pid:
                    rollup = (entry / "smaps_rollup").read_text()
                    total += int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
            except (OSError, StopIteration):
                continue
        peak[0] = max(peak[0], total / 1e3)
        time.sleep(0.1)


def batches() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = 50_000_000
        rng = np.random.default_rng(0)
        for split in ("train", "val"):
            rng.integers(0, 50257, count, dtype=np.uint16).tofile(folder / f"{split}.bin")
        facts = {"sources": [], "options": {}, "documents": {}, "text_bytes": {}, "caps": {}, "dtype": "uint16"}
        tokenizer = {"sha256": "", "vocab": 50257}
        tokens, sha256 = {"train": count, "val": count}, {"train": "", "val": ""}
        Manifest(**facts, tokenizer=tokenizer, tokens=tokens, sha256=sha256).save(folder)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        stream = TrainBatches(Stream(folder, "train"), 1024, 8, 33, seed=0)
        rate = 0.0
        for _ in range(2):  # the second time the stream is warm
            began = time.perf_counter()
            for step in range(180):
                for micro in range(33):
                    stream.at(step, micro)
            rate = 180 * 33 / (time.perf_counter() - began)
    return [("batches of 8 x 1024 from a warm stream, one core", rate, "/s", 2000)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="*", default=[], help="sources for the rates")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-gb", type=float, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    if arguments.text:
        rows += rates(arguments.text, arguments.tokenizer, arguments.rounds)
    if arguments.memory_gb:
        rows += memory(arguments.memory_gb, arguments.workers, arguments.tokenizer)
    if arguments.batches:
        rows += batches()
    missed = False
    for what, value, unit, bound in rows:
        verdict = ""
        if bound is not None:
            good = value <= -bound if bound < 0 else value >= bound
            verdict = f"{'at most' if bound < 0 else 'at least'} {abs(bound):g}: {'held' if good else 'MISSED'}"
            missed |= not good
        print(f"{what:<70}{value:>10.2f} {unit:<6}{verdict}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
