"""The texts that a report reads by default: validation text of the model, and short texts written for this project."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from gmt.data.batches import Stream
from gmt.data.tokenizer import find_end_of_text
from gmt.hf.load import Loaded

NAMES = ("narrative", "politics", "science")
MOST_TOKENS = 128


def own_texts() -> dict[str, str]:
    return {name: (files(__name__) / f"{name}.txt").read_text(encoding="utf-8").strip() for name in NAMES}


def default_texts(loaded: Loaded, data: Path | None, windows: int) -> dict[str, str]:
    """Two windows of the validation text and one general text; without data, the texts of this project."""
    if data is None:
        return own_texts()
    stream = Stream(data, "val")
    context = loaded.lm.cfg.model.context
    count = min(windows, stream.windows(context))
    places = [0] if count == 1 else [0, count // 2]
    found = {f"validation-{n + 1}": _window_text(loaded, stream, place, context) for n, place in enumerate(places)}
    return {name: text for name, text in found.items() if text} | {"general": own_texts()["science"]}


def _window_text(loaded: Loaded, stream: Stream, window: int, context: int) -> str:
    """The text of a window without end-of-text tokens and without the partial words at its ends."""
    start = window * context
    ids = np.array(stream.tokens[start : start + min(context, MOST_TOKENS)], dtype=np.int64)
    ends = np.flatnonzero(ids == find_end_of_text(loaded.words))
    longest = max(np.split(ids, ends), key=len)
    text = loaded.words.decode(longest.tolist(), skip_special_tokens=True)
    words = text.split()
    if len(words) < 4:
        return text.strip()
    if not text[0].isspace():
        text = text[len(words[0]) :]
    return text.rstrip().removesuffix(words[-1]).strip()
