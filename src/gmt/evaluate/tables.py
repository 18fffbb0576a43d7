"""The paper's three tables in Markdown, for one model or for two with their difference."""

from collections.abc import Callable
from typing import Any

from gmt.errors import GMTError
from gmt.evaluate.arc import NAME as STANDALONE
from gmt.evaluate.markdown import markdown_table
from gmt.evaluate.results import Difference, Metric, Results, difference

# the paper writes the four benchmarks so
TITLES = {"arc_easy": "ARC-Easy", "hellaswag": "HellaSwag", "piqa": "PIQA", "winogrande": "WinoGrande"}
COLUMNS = {"acc": "Acc (raw)", "acc_norm_tokens": "Acc (norm)"}


def _with_error(metric: Metric, digits: int = 4) -> str:
    error = "" if metric.stderr is None else f" ± {metric.stderr:.{digits}f}"
    return f"{metric.value:.{digits}f}{error}"


def _verdict(found: Difference) -> list[str]:
    if found.stderr is None:
        return [f"{found.value:+.4f}", "-", "not known"]
    return [f"{found.value:+.4f}", f"{found.stderr:.4f}", "yes" if found.exceeds else "no"]


def _model(results: Results) -> list[str]:
    step = results.model.get("step")
    return [results.model["name"], f"{results.model['parameters'] / 1e6:.1f}M", "-" if step is None else f"{step:,}"]


def validation_table(results: list[Results]) -> str:
    rows = []
    for result in results:
        for mode, entry in result.validation.items():
            bits = "-" if entry.bits_per_byte is None else f"{entry.bits_per_byte:.4f}"
            rows.append([*_model(result), mode, _with_error(entry.loss), f"{entry.perplexity:.2f}", bits])
    text = markdown_table(["Model", "Params", "Step", "Memory", "Val. loss", "PPL", "Bits per byte"], rows)
    if len(results) == 2:
        a, b = results
        shared = [mode for mode in a.validation if mode in b.validation]
        # a model without memory has one mode; it is compared with each of the other's
        pairs = [(m, m) for m in shared] or [(m, n) for m in a.validation for n in b.validation]
        rows = []
        for one, other in pairs:
            same = a.validation[one].windows == b.validation[other].windows
            found = difference(a.validation[one].loss, b.validation[other].loss, same)
            rows.append([one if one == other else f"{one} / {other}", *_verdict(found)])
        text += "\n\n" + markdown_table(["Memory", "Δ loss", "s.e. of Δ", "beyond its s.e."], rows)
    return text


def arc_table(results: list[Results]) -> str:
    found = [result for result in results if STANDALONE in result.tasks]
    rows = [
        [result.model["name"], *(_with_error(result.tasks[STANDALONE].metrics[m]) for m in COLUMNS)] for result in found
    ]
    text = markdown_table(["Model", *COLUMNS.values()], rows)
    if len(found) == 2:
        a, b = (result.tasks[STANDALONE] for result in found)
        pairs = {m: difference(a.metrics[m], b.metrics[m], a.items_sha256 == b.items_sha256) for m in COLUMNS}
        text += "\n\n" + markdown_table(
            ["Metric", "Δ", "s.e. of Δ", "beyond its s.e."], [[COLUMNS[m], *_verdict(d)] for m, d in pairs.items()]
        )
    return text


def lm_table(results: list[Results]) -> str:
    names = [name for name in results[0].tasks if name != STANDALONE and all(name in r.tasks for r in results)]
    header = ["Task", "Metric", *(result.model["name"] for result in results)]
    rows = []
    for name in names:
        tasks = [result.tasks[name] for result in results]
        for metric in tasks[0].metrics:
            if not all(metric in task.metrics for task in tasks):
                continue
            values = [task.metrics[metric] for task in tasks]
            row = [TITLES.get(name, name), metric, *(_with_error(value) for value in values)]
            if len(results) == 2:
                same = tasks[0].items_sha256 == tasks[1].items_sha256
                row += _verdict(difference(values[0], values[1], same))
            rows.append(row)
    if len(results) == 2:
        header += ["Δ", "s.e. of Δ", "beyond its s.e."]
    return markdown_table(header, rows)


TABLES: dict[str, tuple[str, Callable[[list[Results]], str], Callable[[Results], bool]]] = {
    "val": ("Validation loss", validation_table, lambda r: bool(r.validation)),
    "arc": ("ARC-Easy, scored on its own", arc_table, lambda r: STANDALONE in r.tasks),
    "lm": ("LM evaluation harness", lm_table, lambda r: any(name != STANDALONE for name in r.tasks)),
}


def tables(results: list[Results], which: str = "all") -> str:
    """Markdown. Under a table of two models stands what was compared, and whether item by item."""
    if which != "all" and which not in TABLES:
        raise GMTError(f"there is no table {which!r}; there are {', '.join(TABLES)} and all")
    parts = []
    for name, (title, make, has) in TABLES.items():
        if which not in ("all", name):
            continue
        if all(has(result) for result in results):
            parts.append(f"### {title}\n\n{make(results)}")
        elif which == name:
            lacking = next(result.model["name"] for result in results if not has(result))
            raise GMTError(f"{lacking} has no results for the table {name!r}")
    if not parts:
        raise GMTError("the results have no table in common")
    return "\n\n".join(parts + notes(results))


def notes(results: list[Results]) -> list[str]:
    """What a reader must know to compare the numbers: how each was measured."""
    lines = []
    for result in results:
        facts = [f"weights {result.model['sha256'][:12]}", f"context {result.context}"]
        facts += [f"tokenizer {result.tokenizer['sha256'][:12]}"]
        lines.append(f"{result.model['name']}: {'; '.join(facts)}.")
        for (what, how), names in _grouped(result).items():
            lines.append(f"{result.model['name']}, {what}: {', '.join(names)}: {how}.")
    if len(results) == 2:
        lines.append("Δ is the second model minus the first; over the same items its standard error is paired.")
        lines += _unlike(*results)
    return ["\n".join(f"- {line}" for line in lines)]


def _grouped(result: Results) -> dict[tuple[str, str], list[str]]:
    """Parts that were measured alike stand on one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for mode, entry in result.validation.items():
        how = f"{_how(entry.made_with, entry.tau)}; {entry.memory}"
        groups.setdefault((f"validation of {entry.tokens:,} tokens", how), []).append(mode)
    for name, task in result.tasks.items():
        how = _how(task.made_with, task.tau)
        how += f"; memory {task.memory}" if result.model["sublayer"] == "memory" else ""
        groups.setdefault((f"{task.shots}-shot", how), []).append(f"{name} ({task.items:,} items)")
    return groups


def _how(made_with: dict[str, Any], tau: float | None) -> str:
    parts = [f"batch {made_with.get('batch')}", f"{made_with.get('precision')}"]
    if made_with.get("weights", "float32") != "float32":
        parts.append(f"weights in {made_with['weights']}")
    return "; ".join(parts + ([] if tau is None else [f"τ {tau:.4g}"]))


def _unlike(a: Results, b: Results) -> list[str]:
    """What must be known before a difference is believed."""
    lines = []
    for name in a.tasks.keys() & b.tasks.keys():
        one, other = a.tasks[name], b.tasks[name]
        if one.items_sha256 != other.items_sha256:
            lines.append(f"{name}: the two were scored on different items; their difference is not paired")
        if one.shots != other.shots or one.made_with.get("precision") != other.made_with.get("precision"):
            lines.append(f"{name}: the two were measured in different ways, see above")
    return sorted(lines)
