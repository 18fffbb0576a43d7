"""Stored settings compared with those of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gmt.config import GMTConfig
from gmt.config.migrate import translate
from gmt.config.parse import Problems, flatten

# Settings that may differ between a checkpoint and the run that resumes it: where and how it runs, not what it
# computes. A name that ends with a dot is a whole section.
RUNTIME_ONLY_KEYS = (
    "train.device", "train.compile", "train.graphs", "train.deterministic", "train.recompute", "train.parallel",
    "memory.kernels", "save.",
)  # fmt: skip

# Defaults that have changed: the value of a setting before it was stored. The digests of study runs are taken
# relative to these values, so an entry stays for good.
LEGACY_DEFAULTS: dict[str, Any] = {"model.attention": "torch"}


class Change(NamedTuple):
    name: str
    before: Any
    now: Any


def changes(settings: Mapping[str, Any], cfg: GMTConfig) -> list[Change]:
    """Each setting of `cfg` that changes what is computed relative to `settings` (dotted current name -> value).

    A setting that is missing in `settings` has its default: it did not exist yet.
    """
    before = {**flatten(GMTConfig().to_dict()), **LEGACY_DEFAULTS, **settings}
    known = flatten(cfg.to_dict())
    return [Change(name, value, "unknown in this version") for name, value in settings.items() if name not in known] + [
        Change(name, before[name], value)
        for name, value in flatten(cfg.to_dict()).items()
        if before[name] != value and not _runtime_only(name)
    ]


def differences(saved: Mapping[str, Any], cfg: GMTConfig) -> list[str]:
    """`name: old -> new` for each change relative to the sections that a checkpoint or a study run stores.

    A removed setting at another value than its default is a difference too.
    """
    problems: Problems = []
    found = changes(translate(flatten(saved), problems), cfg)
    return problems + [f"{name}: {before} -> {now}" for name, before, now in found]


def _runtime_only(name: str) -> bool:
    return any(name == key or (key.endswith(".") and name.startswith(key)) for key in RUNTIME_ONLY_KEYS)
