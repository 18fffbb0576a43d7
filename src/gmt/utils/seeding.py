"""Random choices that depend on a key only, such as (seed, step, block)."""

import hashlib


def key_bytes(*key: int) -> bytes:
    """32 bytes for a key; different keys give unrelated bytes."""
    return hashlib.sha256(",".join(map(str, key)).encode()).digest()


def seed_for(*key: int) -> int:
    """A seed for a generator, below 2^63."""
    return int.from_bytes(key_bytes(*key)[:8], "big") >> 1
