"""report.md, results.csv, differences.csv and the figures of a study: what its runs say, and no more."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from gmt import plot
from gmt.study.figures import SMOOTHING, draw_figures
from gmt.study.result import DIAGNOSTICS, Result
from gmt.study.statistics import (
    BEYOND,
    Comparison,
    Pooled,
    at_best_rate,
    best_rates,
    by_arm,
    compare_all,
    decimals,
    interval_text,
    mean_by_block,
    p_text,
    pooled,
    rates_compared,
    sentence,
    spread,
    verdict,
)
from gmt.utils.io import write_atomic
from gmt.utils.outputs import OutputFolder, has_mark
from gmt.utils.tables import csv_text, markdown_table

# names, and a text by which those of version 0.1.0 are recognised: it kept no list of its files
TEXTS = {
    "report.md": "\n## What the runs say\n",
    "results.csv": "arm,rate,seed,best_rate,loss,",
    "differences.csv": "arm,reference,seeds,mean,low,high,",
}
FIGURES = {f"{name}.{kind}": "Matplotlib" for name in ("curves", "differences", "depth") for kind in ("png", "svg")}
METHOD = (
    "Losses are of the last validation, in nats a token. Spread is the standard deviation over seeds. A difference is "
    "paired: the arm less the reference with the same seed, hence the same data in the same order; its interval is "
    "Student's, 95 %, for itself alone. p is adjusted after Holm over all comparisons of the study; below 0.05 a "
    "difference is called beyond noise. Where none is found, the interval says how large a one these seeds leave open."
)


def write_report(
    study: str,
    question: str,
    results: Sequence[Result],
    reference: str,
    out: Path,
    *,
    smoothing: float = SMOOTHING,
    planned: int = 0,
    missing: Sequence[str] = (),
    method: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Write report.md, its tables and its figures into `out` and return report.md.

    Args:
        planned: The number of comparisons that the study plans, made or not.
        missing: Runs that did not finish, one line of text each.
        method: How the other runs were made, one line of text each.
        force: Add the report to a folder that contains other files.
    """
    output = _output(out, force)
    output.reserve(*TEXTS)
    chosen, found = at_best_rate(results), compare_all(results, reference, planned)
    figures = draw_figures(chosen, found, output, smoothing) if plot.available() else {}
    parts = [f"# {study}", question.strip(), "## What the runs say", bullets(sentences(results, found, reference))]
    if cautions := warnings(results, missing) + lucky(found, pooled(chosen, reference, planned)):
        parts += ["Before believing it:", bullets(cautions)]
    if results:
        parts += ["## Arms, each at its own best rate", arms_table(chosen, found, reference), METHOD]
        if not plot.available():
            parts.append("There are no figures: matplotlib is not installed (the extra `plots`).")
        pictures = {name: f"![{name}]({name}.svg)\n\n*{caption}*" for name, caption in figures.items()}
        last = [pictures.pop("depth")] if "depth" in pictures else []
        parts += [*pictures.values(), *rates(results), *cost(chosen), *memory(chosen), *depth(chosen), *last]
    if missing:
        parts += ["## Runs that are missing", bullets(missing)]
    if method:
        parts += ["## How it was run", bullets(method)]
    parts.append(
        "Every run is a row of [results.csv](results.csv), every comparison of [differences.csv](differences.csv)."
    )
    write_atomic(out / "results.csv", resultscsv_text(results, chosen))
    write_atomic(out / "differences.csv", differencescsv_text(found))
    write_atomic(out / "report.md", "\n\n".join(parts) + "\n")
    output.finish()
    return out / "report.md"


def _output(out: Path, force: bool) -> OutputFolder:
    """Open the folder. A report of version 0.1.0 is recognised by its text."""
    before, marks = has_mark(out / "report.md", TEXTS["report.md"]), TEXTS | FIGURES

    def earlier(name: str) -> bool:
        return before and name in marks and has_mark(out / name, marks[name])

    return OutputFolder(out, "study report", force=force or before, earlier=earlier)


def sentences(results: Sequence[Result], found: Sequence[Comparison], reference: str) -> list[str]:
    """What differs beyond noise from the reference and what does not, an arm a sentence."""
    if not results:
        return ["No run has come to its end."]
    if reference not in by_arm(results):
        return [f"No run of the reference, {reference}, has come to its end: nothing is compared."]
    tested = sum(one.p is not None for one in found)
    return [sentence(one, tested) for one in found] or [f"There is only {reference}: nothing to compare it with."]


def warnings(results: Sequence[Result], missing: Sequence[str]) -> list[str]:
    """What a reader must know before believing the above."""
    said, best = [], best_rates(results)
    if missing:
        some = "1 run is" if len(missing) == 1 else f"{len(missing)} runs are"
        said.append(f"{some} missing, listed at the end; what is said here is of the others, and provisional.")
    if lost := sorted({f"{r.arm} (rate {r.rate:g}, seed {r.seed})" for r in results if not math.isfinite(r.loss)}):
        said.append(f"Came to a number that is not finite, and counts as the worst of all: {_list(lost)}.")
    tokens = {max((t for t, _ in result.validation), default=0) for result in results}
    if len(tokens) > 1:
        said.append(f"The runs do not have one budget: they saw from {min(tokens):,} to {max(tokens):,} tokens.")
    tried = {arm: rates_compared(mine) for arm, mine in by_arm(results).items()}
    if len(set(best.values())) > 1:
        alike = {rate: [arm for arm in best if best[arm] == rate] for rate in sorted(set(best.values()))}
        said.append(
            "The best rates differ: " + "; ".join(f"{r:g} for {_list(arms)}" for r, arms in alike.items()) + "."
        )
    several = {arm: means for arm, (means, _) in tried.items() if len(means) > 1}
    if judges := sorted({seed for arm in several for seed in tried[arm][1]}):
        seeds = f"seed{'s' if len(judges) > 1 else ''} {_list(list(map(str, judges)))}"
        said.append(f"Rates were chosen by {seeds}, compared here too: that flatters an arm whose runs vary more.")
    for end, which in (("lowest", min), ("highest", max)):
        if arms := [f"{arm} ({best[arm]:g})" for arm, means in several.items() if best[arm] == which(means)]:
            said.append(f"The best rate is the {end} of those tried for {_list(arms)}: a better may lie beyond.")
    if arms := [arm for arm, (_, common) in tried.items() if not common]:
        said.append(f"No seed is common to all rates of {_list(arms)}: the best was chosen across seeds.")
    if arms := [arm for arm in tried if arm not in several]:
        which = _list(arms) if several else "every arm"
        said.append(f"Run at one rate only, so that another might change its place: {which}.")
    return said


def lucky(found: Sequence[Comparison], other: Pooled | None) -> list[str]:
    """Claims that rest on few seeds lying close together."""
    doubted = [one.arm for one in found if other and one.beyond_noise and other.adjusted[one.arm] >= BEYOND]
    if other is None or not doubted:
        return []
    return [
        f"With one spread for all arms ({other.deviation:.2g} nats, {other.freedom} degrees of freedom) no difference "
        f"beyond noise would be found for {_list(doubted)}: seeds that lie closer together than other arms' may do so "
        "by luck."
    ]


def arms_table(chosen: Sequence[Result], found: Sequence[Comparison], reference: str) -> str:
    header = ["arm", "rate", "loss", "spread", "seeds", f"minus {reference}", "95 % interval", "Holm p", "verdict"]
    losses = {arm: spread([r.loss for r in mine]) for arm, mine in by_arm(chosen).items()}
    places, best = decimals(*(one.deviation for one in losses.values())), best_rates(chosen)
    pairs, rows = {one.arm: one for one in found}, []
    for arm, (mean, deviation, count) in losses.items():
        row = [arm, f"{best[arm]:g}", _loss(mean, places), "–" if deviation is None else f"{deviation:.{places}f}"]
        one = pairs.get(arm)
        if one is None or not one.seeds:
            rows.append([*row, str(count), "–", "–", "–", "reference" if arm == reference else "not compared"])
            continue
        seeds = str(count) if one.seeds == count else f"{count}, {one.seeds} paired"
        adjusted = "–" if one.adjusted is None else p_text(one.adjusted)
        rows.append([*row, seeds, f"{one.mean:+z.{one.decimals}f}", interval_text(one), adjusted, verdict(one)])
    return markdown_table(header, rows)


def rates(results: Sequence[Result]) -> list[str]:
    """A row an arm, a column a rate, where any arm was tried at several."""
    tried, best = {arm: rates_compared(mine) for arm, mine in by_arm(results).items()}, best_rates(results)
    if all(len(means) == 1 for means, _ in tried.values()):
        return []
    every, rows = sorted({rate for means, _ in tried.values() for rate in means}), []
    for arm, (means, common) in tried.items():
        cells = {rate: _loss(mean, 3) for rate, mean in means.items()}
        cells[best[arm]] = f"**{cells[best[arm]]}**"
        rows.append([arm, *(cells.get(rate, "–") for rate in every), ", ".join(map(str, common)) or "each its own"])
    said = "Mean loss over the seeds with which all rates of the arm were tried. The best, bold, is compared above."
    return ["## Learning rates", markdown_table(["arm", *(f"{r:g}" for r in every), "seeds"], rows), said]


def cost(chosen: Sequence[Result]) -> list[str]:
    rows = []
    for arm, mine in by_arm(chosen).items():
        alone = [r.tokens_per_second for r in mine if r.alone]
        size = f"{mine[0].parameters / 1e6:.1f} M" if mine[0].parameters >= 1e6 else f"{mine[0].parameters:,}"
        rows.append([arm, size, _short(mine[0].flops / 1e6), _short(statistics.median(alone)) if alone else "–"])
    said = (
        "MFLOP are of the forward and backward pass; parameters that are held count too. Tokens a second is the median "
        "of runs that had their device to themselves; side by side it is no benchmark, and left out."
    )
    return ["## Cost", markdown_table(["arm", "parameters", "MFLOP a token", "tokens/s"], rows), said]


def memory(chosen: Sequence[Result]) -> list[str]:
    """Diagnostics of the arms that have a memory."""
    rows = []
    for arm, mine in by_arm(chosen).items():
        known = {key: [r.diagnostics[key] for r in mine if key in r.diagnostics] for key in DIAGNOSTICS}
        if any(known.values()):
            rows.append([arm, *(_short(statistics.fmean(values)) if values else "–" for values in known.values())])
    return ["## Memory", markdown_table(["arm", *DIAGNOSTICS.values()], rows), "Means over seeds."] if rows else []


def depth(chosen: Sequence[Result]) -> list[str]:
    rows = []
    for arm, mine in by_arm(chosen).items():
        both = [mean_by_block(r.second_share for r in mine), mean_by_block(r.attention_share for r in mine)]
        if any(both):
            rows.append([arm, *(cell for shares in both for cell in _along(shares))])
    if not rows:
        return []
    said = (
        "The norm of what a sublayer adds over that of the residual stream before it, mean over seeds, in the first "
        "block, the middle one and the last."
    )
    header = ["arm", "second sublayer", "largest (block)", "attention", "largest (block)"]
    return ["## What each sublayer adds", markdown_table(header, rows), said]


def _along(shares: Sequence[float]) -> list[str]:
    if not shares:
        return ["–", "–"]
    most = max(range(len(shares)), key=shares.__getitem__)
    ends = (shares[0], shares[len(shares) // 2], shares[-1])
    return [", ".join(map(_short, ends)), f"{_short(shares[most])} ({most})"]


def resultscsv_text(results: Sequence[Result], chosen: Sequence[Result]) -> str:
    shares = ("attention_share", "second_share")
    blocks = {name: max((len(getattr(r, name)) for r in results), default=0) for name in shares}
    header = ["arm", "rate", "seed", "best_rate", "loss", "parameters", "flops_a_token", "tokens_per_second"]
    header += [*DIAGNOSTICS, *(f"{name}_{block}" for name in shares for block in range(blocks[name]))]
    rows = []
    for r in results:
        row = [r.arm, r.rate, r.seed, int(r in chosen), r.loss, r.parameters, r.flops, r.tokens_per_second]
        row += [r.diagnostics.get(key, "") for key in DIAGNOSTICS]
        for name in shares:
            row += [*getattr(r, name), *[""] * (blocks[name] - len(getattr(r, name)))]
        rows.append(row)
    return csv_text(header, rows)


def differencescsv_text(found: Sequence[Comparison]) -> str:
    seeds = sorted({seed for one in found for seed in one.differences})
    header = ["arm", "reference", "seeds", "mean", "low", "high", "p", "p_holm", "beyond_noise"]
    rows = []
    for one in found:
        low, high = one.interval[1:] if one.interval else ("", "")
        row = [one.arm, one.reference, one.seeds, one.mean if one.seeds else "", low, high]
        row += ["" if p is None else p for p in (one.p, one.adjusted)]
        rows.append([*row, int(one.beyond_noise), *(one.differences.get(seed, "") for seed in seeds)])
    return csv_text([*header, *(f"seed_{seed}" for seed in seeds)], rows)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines)


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _loss(loss: float, places: int) -> str:
    return f"{loss:.{places}f}" if math.isfinite(loss) else "not finite"


def _short(value: float) -> str:
    """Three digits, or four decimals under one: a momentum of 0.9999 is not 1. Never an exponent."""
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:z.4f}".rstrip("0").rstrip(".")
