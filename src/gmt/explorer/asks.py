"""What a request may ask: JSON from outside, looked at piece by piece before anything runs."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from gmt.analysis.interventions import Edit, from_json
from gmt.analysis.interventions.apply import check
from gmt.errors import GMTError
from gmt.evaluate.generation import Sampling
from gmt.hf.load import Loaded

BODY, TEXT, EDITS, TOKENS = 256 * 1024, 20_000, 50, 200
LARGEST = 2**31 - 1  # of a whole number anywhere in a request: larger ones do not fit every tensor
HOTTEST = 10.0


class TooLargeError(GMTError):
    """A request that is refused for its size alone."""


class Ask(NamedTuple):
    """Which model reads which text with which edits. It is the key of what was read, too."""

    model: int
    text: str
    edits: tuple[Edit, ...]


def parse(body: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(body, parse_constant=_no_number)
    except GMTError:
        raise
    except (ValueError, RecursionError):
        raise GMTError("the request is not JSON that can be read") from None
    if not isinstance(tree, dict):
        raise GMTError("a request is a JSON object")
    return tree


def _no_number(name: str) -> None:
    raise GMTError(f"{name} is not a number that JSON has")


def ask(tree: dict[str, Any], models: Sequence[Loaded]) -> Ask:
    model = whole(tree, "model", 0)
    if not 0 <= model < len(models):
        raise GMTError(f"there is no model {model}; there are 0 to {len(models) - 1}")
    return Ask(model, _text(tree), _edits(tree, models[model]))


def _text(tree: dict[str, Any]) -> str:
    text = tree.get("text")
    if not isinstance(text, str):
        raise GMTError("a request needs a text, in quotation marks")
    if len(text) > TEXT:
        raise GMTError(f"the text has {len(text):,} characters; at most {TEXT:,} are read at once")
    if not text.strip():
        raise GMTError("the text is empty: there is nothing to read")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise GMTError("the text holds half a character, which no file could") from None
    return text


def _edits(tree: dict[str, Any], loaded: Loaded) -> tuple[Edit, ...]:
    items = tree.get("edits", [])
    if isinstance(items, list) and len(items) > EDITS:
        raise GMTError(f"there are {len(items)} edits; at most {EDITS} are made at once")
    try:
        _small(items)
        if isinstance(items, list) and not all(isinstance(i, dict) and isinstance(i.get("kind"), str) for i in items):
            raise GMTError("an edit is an object that names its kind")
        edits = from_json(items)
    except RecursionError:
        raise GMTError("edits: lists within lists within lists are no edits") from None
    if edits:
        check(loaded.lm, edits)
    return tuple(edits)


def _small(value: Any) -> None:
    """Numbers that a tensor can hold, however deep they lie."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise GMTError("edits: a whole number is too large")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _small(part)


def whole(tree: dict[str, Any], key: str, default: int | None = None) -> int:
    value = tree.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GMTError(f"{key} is a whole number")
    if abs(value) > LARGEST:
        raise GMTError(f"{key} is too large")
    return value


def sampling(tree: dict[str, Any]) -> Sampling:
    tokens, temperature = whole(tree, "tokens", 40), tree.get("temperature", 0.8)
    if not 1 <= tokens <= TOKENS:
        raise GMTError(f"a continuation has 1 to {TOKENS} tokens, not {tokens}")
    if not isinstance(temperature, int | float) or isinstance(temperature, bool) or not 0 <= temperature <= HOTTEST:
        raise GMTError(f"temperature is a number from 0 to {HOTTEST:g}")
    return Sampling(tokens, float(temperature), seed=whole(tree, "seed", 0))
