"""The identity of a run: a digest of the settings that change what is computed. Run folders are named by it.

Settings enter under their oldest names and relative to their first defaults. So a digest stays the same when a setting
is renamed or added, when a default changes (if `LEGACY_DEFAULTS` lists it), and when a message is reworded.
"""

import hashlib
import json

from gmt.config import GMTConfig
from gmt.config.compare import changes
from gmt.config.migrate import stored_name

LENGTH = 10  # hexadecimal digits


def digest(cfg: GMTConfig) -> str:
    pairs = sorted((stored_name(name), now) for name, _, now in changes({}, cfg))
    return _sha256(json.dumps(pairs, separators=(",", ":"), allow_nan=False))


def legacy_digest(cfg: GMTConfig) -> str:
    """Version 0.1 hashed the sentences of `differences`. Their wording of that version is part of its folder names."""
    sentences = sorted(f"{stored_name(name)}: {before} -> {now}" for name, before, now in changes({}, cfg))
    return _sha256(json.dumps(sentences))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]
