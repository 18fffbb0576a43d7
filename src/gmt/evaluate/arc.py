"""ARC-Easy as the paper's own evaluator scores it: raw and length-normalised log-likelihood, by tokens."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from gmt.data.hub import hub_rows
from gmt.errors import DataError
from gmt.evaluate.likelihood import Request, Score, encode_pair, log_likelihoods
from gmt.evaluate.results import Metric, TaskResult
from gmt.model.language_model import GraphMemoryLM

NAME = "arc-easy-standalone"
DATASET, SUBSET, SPLIT = "allenai/ai2_arc", "ARC-Easy", "test"


class Item(NamedTuple):
    question: str
    choices: list[str]
    answer: int

    @property
    def context(self) -> str:
        return f"Question: {self.question}\nAnswer:"

    def continuations(self) -> list[str]:
        return [f" {choice}" for choice in self.choices]


def read_items(path: Path | None, limit: int | None = None) -> list[Item]:
    """The items of a local jsonl, or of the hub's test split where there is none."""
    items = [] if path is None else _read_file(path)
    if path is None:
        rows = hub_rows(DATASET, SUBSET, SPLIT)
        items = [_item(row, f"{DATASET}, {SPLIT} item {number}") for number, row in enumerate(rows, 1)]
    return items[:limit]


def _read_file(path: Path) -> list[Item]:
    items = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    items.append(_item(_parsed(line, f"{path}:{number}"), f"{path}:{number}"))
    except OSError as error:
        raise DataError(f"cannot read the items of {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    if not items:
        raise DataError(f"{path} holds no items")
    return items


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not a line of JSON: {error}") from None


def _item(row: Any, where: str) -> Item:
    try:
        question, answer = row["question"], row["answerKey"]
        texts, labels = list(row["choices"]["text"]), list(row["choices"]["label"])
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: not an ARC item, which has question, choices.text, choices.label and answerKey ({error})"
        ) from None
    if not isinstance(question, str) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: the question and the choices must be text")
    if len(texts) != len(labels) or len(texts) < 2:
        raise DataError(f"{where}: {len(texts)} choices for {len(labels)} labels; at least two of each are needed")
    for label, text in zip(labels, texts, strict=True):
        if not text.strip():
            raise DataError(f"{where}: choice {label} is empty")
    if answer not in labels:
        raise DataError(f"{where}: the answer {answer!r} is none of the labels {labels}")
    return Item(question, texts, labels.index(answer))


def requests_of(items: list[Item], tokenizer: Tokenizer) -> list[Request]:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return [encode_pair(encode, item.context, text) for item in items for text in item.continuations()]


def judge(items: list[Item], scores: list[Score]) -> TaskResult:
    """Accuracy by the best sum, and by the best mean over tokens; the first of equals is the answer."""
    raw, norm, start = [], [], 0
    for item in items:
        own = scores[start : start + len(item.choices)]
        start += len(item.choices)
        raw.append(float(_first_best([s.total for s in own]) == item.answer))
        norm.append(float(_first_best([s.total / s.tokens for s in own]) == item.answer))
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    return TaskResult(0, len(items), digest, {"acc": Metric.of(raw), "acc_norm_tokens": Metric.of(norm)})


def _first_best(values: list[float]) -> int:
    return max(range(len(values)), key=lambda i: (values[i] if not math.isnan(values[i]) else -math.inf, -i))


def arc_easy(
    lm: GraphMemoryLM,
    tokenizer: Tokenizer,
    items: list[Item],
    batch: int = 8,
    *,
    side: str = "right",
    autocast: Any = None,
    tell: Callable[[int], None] = lambda done: None,
) -> TaskResult:
    scores = log_likelihoods(lm, requests_of(items, tokenizer), batch, side=side, autocast=autocast, tell=tell)
    return judge(items, scores)
