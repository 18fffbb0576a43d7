"""The paper's three tables in Markdown, for one model or for two with their difference."""

from collections.abc import Callable
from typing import Any

from gmt.errors import GMTError
from gmt.evaluate.arc import NAME as STANDALONE
from gmt.evaluate.comparison import HEADER, Row, cells, common_metrics, compare, explain
from gmt.evaluate.results import Difference, Metric, Results
from gmt.utils.tables import markdown_table

Differences = dict[Row, Difference]  # empty for one model

# the paper writes the four benchmarks so
TITLES = {"arc_easy": "ARC-Easy", "hellaswag": "HellaSwag", "piqa": "PIQA", "winogrande": "WinoGrande"}
COLUMNS = {"acc": "Acc (raw)", "acc_norm_tokens": "Acc (norm)"}


def _with_error(metric: Metric, digits: int = 4) -> str:
    error = "" if metric.stderr is None else f" ± {metric.stderr:.{digits}f}"
    return f"{metric.value:.{digits}f}{error}"


def _model(results: Results) -> list[str]:
    step = results.model.get("step")
    return [results.model["name"], f"{results.model['parameters'] / 1e6:.1f}M", "-" if step is None else f"{step:,}"]


def validation_table(results: list[Results], found: Differences) -> str:
    rows = []
    for result in results:
        for mode, entry in result.validation.items():
            bits = "-" if entry.bits_per_byte is None else f"{entry.bits_per_byte:.4f}"
            rows.append([*_model(result), mode, _with_error(entry.loss), f"{entry.perplexity:.2f}", bits])
    text = markdown_table(["Model", "Params", "Step", "Memory", "Val. loss", "PPL", "Bits per byte"], rows)
    # one mode, or "frozen / adaptive" where the models have no mode in common
    rows = [[" / ".join(dict.fromkeys(row)), *cells(one)] for (table, *row), one in found.items() if table == "val"]
    return text + "\n\n" + markdown_table(["Memory", *HEADER], rows) if rows else text


def arc_table(results: list[Results], found: Differences) -> str:
    rows = [
        [result.model["name"], *(_with_error(result.tasks[STANDALONE].metrics[m]) for m in COLUMNS)]
        for result in results
    ]
    text = markdown_table(["Model", *COLUMNS.values()], rows)
    rows = [[COLUMNS[row[-1]], *cells(one)] for (table, *row), one in found.items() if table == "arc"]
    return text + "\n\n" + markdown_table(["Metric", *HEADER], rows) if rows else text


def lm_table(results: list[Results], found: Differences) -> str:
    rows = []
    for name, metric in common_metrics(results, standalone=False):
        row = [TITLES.get(name, name), metric, *(_with_error(r.tasks[name].metrics[metric]) for r in results)]
        rows.append(row + (cells(found["lm", name, metric]) if found else []))
    header = ["Task", "Metric", *(result.model["name"] for result in results)]
    return markdown_table(header + (HEADER if found else []), rows)


TABLES: dict[str, tuple[str, Callable[[list[Results], Differences], str], Callable[[Results], bool]]] = {
    "val": ("Validation loss", validation_table, lambda r: bool(r.validation)),
    "arc": ("ARC-Easy, scored on its own", arc_table, lambda r: STANDALONE in r.tasks),
    "lm": ("LM evaluation harness", lm_table, lambda r: any(name != STANDALONE for name in r.tasks)),
}


def tables(results: list[Results], which: str = "all") -> str:
    """Markdown for one model, or for two with their differences. Notes below the tables say how to read them."""
    if which != "all" and which not in TABLES:
        raise GMTError(f"there is no table {which!r}; there are {', '.join(TABLES)} and all")
    asked = TABLES if which == "all" else [which]
    shown = [name for name in asked if all(TABLES[name][2](result) for result in results)]
    if not shown and which != "all":
        lacking = next(result.model["name"] for result in results if not TABLES[which][2](result))
        raise GMTError(f"{lacking} has no results for the table {which!r}")
    if not shown:
        raise GMTError("the results have no table in common")
    found = compare(results[0], results[1], shown) if len(results) == 2 else {}
    parts = [f"### {title}\n\n{make(results, found)}" for title, make, _ in map(TABLES.__getitem__, shown)]
    return "\n\n".join(parts + notes(results, found))


def notes(results: list[Results], found: Differences) -> list[str]:
    """What a reader must know to compare the numbers: how each was measured."""
    lines = []
    for result in results:
        facts = [f"weights {result.model['sha256'][:12]}", f"context {result.context}"]
        facts += [f"tokenizer {result.tokenizer['sha256'][:12]}"]
        lines.append(f"{result.model['name']}: {'; '.join(facts)}.")
        for (what, how), names in _grouped(result).items():
            lines.append(f"{result.model['name']}, {what}: {', '.join(names)}: {how}.")
    lines.append("± is one standard error.")
    if len(results) == 2:
        lines += explain(results[0], results[1], found)
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
