"""What an evaluation found, as JSON: enough to say what was measured, and to compare two models item by item."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gmt.errors import GMTError
from gmt.utils.io import write_json
from gmt.utils.stats import (
    SIGNIFICANCE_LEVEL,
    Interval,
    StandardError,
    error_of_mean,
    holm,
    t_interval,
    t_test,
    welch_error,
)

FORMAT = 1
Key = TypeVar("Key")


@dataclass
class Metric:
    value: float
    stderr: float | None
    each: str | list[float] | None = None  # per item; marks of 0 and 1 as a string

    @classmethod
    def of(cls, values: Sequence[float]) -> "Metric":
        """Their mean, and the standard error of it."""
        marks = all(v in (0.0, 1.0) for v in values)
        each = "".join(str(int(v)) for v in values) if marks else list(values)
        return cls(statistics.fmean(values), standard_error(values), each)

    def values(self) -> list[float] | None:
        return None if self.each is None else [float(v) for v in self.each]


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean, from the spread of the sample; a single value has none."""
    return error_of_mean(values).value if len(values) > 1 else None


@dataclass
class TaskResult:
    shots: int
    items: int
    items_sha256: str  # two results over the same items have the same
    metrics: dict[str, Metric]
    key: str = ""  # everything that the numbers depend on: a result with the same key need not be measured again
    memory: str = "as in the checkpoint"
    tau: float | None = None  # the routing temperature that it was measured at
    made_with: dict[str, Any] = field(default_factory=dict)  # batch, precision, limit, versions


@dataclass
class ValidationResult:
    loss: Metric
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    batches: int
    data: str  # hash of the data set
    windows: str  # which of its windows, in which batches: two results over the same have the same
    memory: str  # what became of the memory
    key: str = ""
    tau: float | None = None
    made_with: dict[str, Any] = field(default_factory=dict)


@dataclass
class Results:
    model: dict[str, Any]  # name, sha256 of the weights, step, parameters, sublayer
    tokenizer: dict[str, Any]
    context: int
    validation: dict[str, ValidationResult] = field(default_factory=dict)  # by memory mode
    tasks: dict[str, TaskResult] = field(default_factory=dict)
    finished: dict[str, list[str]] = field(default_factory=dict)  # a task or group as asked for -> its tasks
    format: int = FORMAT

    def save(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, asdict(self))
        except OSError as error:
            raise GMTError(f"cannot write the results to {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> "Results":
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if tree["format"] != FORMAT:
                raise GMTError(f"{path} is of format {tree['format']}; this version reads format {FORMAT}")
            tree["tasks"] = {
                name: TaskResult(**(task | {"metrics": {m: Metric(**v) for m, v in task["metrics"].items()}}))
                for name, task in tree["tasks"].items()
            }
            tree["validation"] = {
                mode: ValidationResult(**(entry | {"loss": Metric(**entry["loss"])}))
                for mode, entry in tree["validation"].items()
            }
            return cls(**tree)
        except OSError as error:
            why = "it is a folder" if path.is_dir() else error.strerror
            raise GMTError(f"cannot read results from {path}: {why}; `gmt eval MODEL --out FILE` writes them") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise GMTError(f"{path} does not hold results of `gmt eval`") from None


@dataclass(frozen=True)
class Difference:
    """The second model minus the first. The interval and p are of this difference alone; None where not known."""

    value: float
    paired: bool  # item by item
    interval: Interval | None = None  # 95 %, around `value`
    p: float | None = None
    adjusted: float | None = None  # p after Holm, over all differences of one comparison

    @property
    def significant(self) -> bool | None:
        return None if self.adjusted is None else self.adjusted < SIGNIFICANCE_LEVEL


def difference(a: Metric, b: Metric, same_items: bool) -> Difference:
    """b - a. Over the same items, the difference of each item is taken: this cancels what is hard for both models.

    The interval is around the difference of the reported values. For a validation loss this is the mean over tokens,
    and the standard error is that of the mean over batches: they differ only if the last batch is shorter.
    """
    value = b.value - a.value
    error, paired = _standard_error(a.values() or [], b.values() or [], same_items)
    # items that all change by the same amount have no spread to tell chance from
    if error is None or (value and not error.value):
        return Difference(value, paired)
    return Difference(value, paired, t_interval(value, error), t_test(value, error))


def _standard_error(a: list[float], b: list[float], same_items: bool) -> tuple[StandardError | None, bool]:
    """Of the mean of b minus that of a, and whether it is paired."""
    if not all(map(math.isfinite, a + b)):
        return None, False
    if same_items and len(a) == len(b) > 1:
        return error_of_mean([y - x for x, y in zip(a, b, strict=True)]), True
    return (welch_error(a, b), False) if len(a) > 1 and len(b) > 1 else (None, False)


def adjust(differences: Mapping[Key, Difference]) -> dict[Key, Difference]:
    """Adjust p after Holm: among all these differences, one or more are falsely significant in 5 % of comparisons."""
    known = {key: found.p for key, found in differences.items() if found.p is not None}
    adjusted = dict(zip(known, holm(list(known.values())), strict=True))
    return {key: replace(found, adjusted=adjusted.get(key)) for key, found in differences.items()}
