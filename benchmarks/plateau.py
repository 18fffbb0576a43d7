"""When the runs of a study leave the plateau: the table of docs/results/controls.md.

    python benchmarks/plateau.py STUDY.yaml OUT CURVES.csv     # training losses by step, from the records
    python benchmarks/plateau.py CURVES.csv                    # the table, from those

Tokens read until five steps in a row are under 7.2 nats, counted at the first of them, and the mean training loss of
the ten steps to 13.1 M tokens.
"""

import csv
import statistics
import sys
from pathlib import Path

from gmt.study.file import load_study
from gmt.study.plan import gather

UNDER, IN_A_ROW, TOKENS, STEPS = 7.2, 5, 13_107_200, 10


def write_curves(study: Path, out: Path, curves: Path) -> None:
    results, _ = gather(load_study(study), out)
    rows = {f"{result.arm}, seed {result.seed}": dict(result.training) for result in results}
    with curves.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["tokens", *rows])
        for tokens in sorted(set().union(*rows.values())):
            writer.writerow([tokens, *(f"{row[tokens]:.4f}" if tokens in row else "" for row in rows.values())])


def table(curves: Path) -> list[tuple[str, float | None, float]]:
    with curves.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    found = []
    for name in list(lines[0])[1:]:
        losses = [(int(line["tokens"]), float(line[name])) for line in lines if line[name]]
        low = [loss < UNDER for _, loss in losses]
        left = next((losses[n][0] for n in range(len(low)) if all(low[n : n + IN_A_ROW])), None)
        at = [loss for tokens, loss in losses if tokens <= TOKENS][-STEPS:]
        found.append((name, left / 1e6 if left else None, statistics.fmean(at)))
    return found


def main() -> None:
    if len(sys.argv) == 4:
        write_curves(*map(Path, sys.argv[1:]))
    for name, left, loss in table(Path(sys.argv[-1])):
        print(f"{name:28} under {UNDER} after {'-' if left is None else f'{left:.1f} M'}, at 13.1 M tokens {loss:.2f}")


if __name__ == "__main__":
    main()
