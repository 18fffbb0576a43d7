"""A background corpus: what stands in a slot elsewhere than in the text that is being read.

A few windows, spread evenly over the corpus, are read once, one at a time and only while nobody waits for the worker.
"""

import codecs
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gmt.analysis.trace import Array, word
from gmt.data.batches import Stream
from gmt.data.tokenizer import load_tokenizer
from gmt.errors import GMTError
from gmt.evaluate.run import same_vocabulary
from gmt.hf.load import Loaded

WINDOWS, LENGTH = 48, 256  # short ones: a request never waits for more than one of them
KEPT, AROUND = 6, 10  # examples of a slot, and tokens on either side of one
BYTES = 4 << 20  # of a text file, its first


class Example(NamedTuple):
    share: float  # of the token that is in the slot
    window: int
    place: int


class Examples:
    """One model's: for every block and slot the tokens that stand there most wholly, one a window."""

    def __init__(self, loaded: Loaded, tokens: Array) -> None:
        self.loaded = loaded
        self.windows = _spread(tokens, min(LENGTH, loaded.lm.cfg.model.context)) if loaded.lm.cells else []
        self.done = 0
        self._found: dict[tuple[int, int], list[Example]] = {}

    @torch.no_grad()
    def read_one(self) -> bool:
        """The next window through the model; False where there is none left."""
        if self.done == len(self.windows):
            return False
        rows = torch.tensor(self.windows[self.done][None], device=self.loaded.lm.tau.device)
        routes = self.loaded.lm(rows, return_routes=True, observe=False).routes
        for block, route in enumerate(routes):
            self._keep(block, route.source[0].float().cpu().numpy())
        self.done += 1
        return True

    def _keep(self, block: int, source: Array) -> None:
        """source [T, F]: of each slot the token that has most of it, if it is that token's likeliest slot."""
        likeliest = source.argmax(-1)
        for slot, place in enumerate(source.argmax(0).tolist()):
            if likeliest[place] == slot:
                found = [*self._found.get((block, slot), []), Example(float(source[place, slot]), self.done, place)]
                # a new list takes the old one's place: whoever reads it meanwhile sees a whole one
                self._found[block, slot] = sorted(found, key=lambda e: (-e.share, e.window))[:KEPT]

    def of(self, block: int, slot: int) -> list[dict[str, str]]:
        return [self._told(example) for example in self._found.get((block, slot), [])]

    def _told(self, example: Example) -> dict[str, str]:
        ids, place, words = self.windows[example.window].tolist(), example.place, self.loaded.words
        return {
            "before": words.decode(ids[max(place - AROUND, 0) : place], skip_special_tokens=False),
            "token": word(words, ids[place]),
            "after": words.decode(ids[place + 1 : place + 1 + AROUND], skip_special_tokens=False),
        }


def _spread(tokens: Array, length: int) -> list[Array]:
    """Windows at even distances, the first and the last one included."""
    whole = len(tokens) // length
    if whole == 0:
        return [tokens.astype(np.int64)] if len(tokens) else []
    starts = np.unique(np.linspace(0, whole - 1, min(WINDOWS, whole)).round().astype(int)) * length
    return [tokens[start : start + length].astype(np.int64) for start in starts]


class Corpus:
    """A folder that `gmt prepare` wrote (its validation stream) or a text file, for one model or two."""

    def __init__(self, path: Path, models: list[Loaded]) -> None:
        streams = _from_folder(path, models) if path.is_dir() else _from_text(path, models)
        self.name, self.tokens = path.resolve().name, len(streams[0])
        self.examples = [Examples(loaded, tokens) for loaded, tokens in zip(models, streams, strict=True)]

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "tokens": self.tokens}

    def read_one(self) -> bool:
        return any(examples.read_one() for examples in self.examples)


def _from_folder(path: Path, models: list[Loaded]) -> list[Array]:
    stream = Stream(path, "val")
    if not (path / "tokenizer.json").is_file():
        raise GMTError(f"{path}/tokenizer.json not found; pass a folder written by `gmt prepare`")
    words = load_tokenizer(str(path / "tokenizer.json"))
    for loaded in models:
        same_vocabulary(loaded, words, stream.manifest.tokenizer["vocab"], path)
    return [stream.tokens] * len(models)


def _from_text(path: Path, models: list[Loaded]) -> list[Array]:
    try:
        with path.open("rb") as file:
            text = codecs.getincrementaldecoder("utf-8")().decode(file.read(BYTES))  # the last character may be cut
    except OSError as error:
        raise GMTError(f"the corpus {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not text.strip():
        raise GMTError(f"the corpus {path} is neither a prepared folder nor a file of text")
    return [np.array(loaded.words.encode(text, add_special_tokens=False).ids, dtype=np.int64) for loaded in models]
