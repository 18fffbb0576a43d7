"""A trace and a whole report of a base-size model on a CPU.

    python benchmarks/report_cpu.py MODEL

MODEL is a model directory of base size. A trace of 1,000 tokens may take twice the plain forward pass, the report of
three texts three minutes on two cores. Prints both, and exits with 1 where one does not hold.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from gmt.analysis import trace
from gmt.analysis.report import ReportOptions, read_texts, report
from gmt.hf.load import open_model


def main() -> None:
    loaded = open_model(sys.argv[1])
    text = " ".join(read_texts(()).values()) * 4
    ids = loaded.words.encode(text, add_special_tokens=False).ids[:1000]
    text, rows, times = loaded.words.decode(ids), torch.tensor([ids]), {"forward": [], "trace": []}
    for _ in range(4):
        began = time.perf_counter()
        with torch.no_grad():
            loaded.lm(rows, observe=False)
        times["forward"].append(time.perf_counter() - began)
        began = time.perf_counter()
        trace(loaded, text)
        times["trace"].append(time.perf_counter() - began)
    forward, traced = (sorted(values[1:])[1] for values in times.values())
    print(f"{len(ids)} tokens: forward {forward:.2f} s, trace {traced:.2f} s, {traced / forward:.2f} times (at most 2)")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report(sys.argv[1], Path(folder) / "out", ReportOptions())
        whole = time.perf_counter() - began
    print(f"report of three texts: {whole:.0f} s (at most 180)")
    sys.exit(0 if traced <= 2 * forward and whole <= 180 else 1)


if __name__ == "__main__":
    main()
