"""Bits per byte: a loss that does not depend on the tokenizer."""

import json
import math

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gmt.data.batches import ValidationBatches


def byte_lengths(tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """How many bytes of text each id stands for, special tokens none; None where ids do not stand for bytes."""
    tree = json.loads(tokenizer.to_str())
    if (tree.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    special = {token["id"] for token in tree.get("added_tokens", []) if token.get("special")}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in vocabulary.items():
        # a byte-level vocabulary writes each byte as one character
        lengths[index] = 0 if index in special else len(token)
    return lengths


def scored_bytes(batches: ValidationBatches, tokenizer: Tokenizer) -> float | None:
    """Bytes of the text that the batches score. Exact for byte-level tokenizers, else from the stream's average."""
    lengths = byte_lengths(tokenizer)
    if lengths is not None:
        return float(sum(lengths[batches.at(index).labels].sum() for index in range(len(batches))))
    manifest = batches.stream.manifest
    text, tokens = manifest.text_bytes.get("val"), manifest.tokens.get("val")
    if not text or not tokens:
        return None
    return text / tokens * sum(batches.at(index).labels.size for index in range(len(batches)))


def bits_per_byte(nats: float, text: float) -> float:
    return nats / math.log(2) / text
