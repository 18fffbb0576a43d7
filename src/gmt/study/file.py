"""A study as it is written: a YAML file that names a base, arms or axes, learning rates, seeds and a budget."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gmt.config import PRESETS, GMTConfig
from gmt.config.migrate import current_name
from gmt.config.parse import nearest
from gmt.errors import ConfigError

KEYS = ("question", "base", "settings", "tokens", "seeds", "rates", "rate_seeds", "arms", "axes", "reference")
# what a study says in its own words, for all arms alike
OWN = {"train.seed": "seeds", "train.steps": "tokens", "train.epochs": "tokens", "train.learning_rate": "rates"}


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    arms: dict[str, GMTConfig]
    reference: str  # the arm that the others are compared with
    tokens: int  # that each run reads
    seeds: tuple[int, ...]
    rates: tuple[float, ...]  # learning rates tried; none: each arm's own
    rate_seeds: int  # with so many of the seeds every rate is tried; the others take each arm's best

    def rates_of(self, arm: str) -> tuple[float, ...]:
        return self.rates or (self.arms[arm].train.learning_rate,)

    def config(self, arm: str, rate: float, seed: int) -> GMTConfig:
        cfg = self.arms[arm]
        steps = self.tokens // tokens_per_step(cfg)
        return replace(cfg, train=replace(cfg.train, learning_rate=rate, seed=seed, steps=steps))


def tokens_per_step(cfg: GMTConfig) -> int:
    return cfg.train.micro_batch * cfg.train.accumulation * cfg.model.context


class OnceOnly(yaml.SafeLoader):
    """YAML lets a name stand twice in a mapping and takes the last: here that would be an arm that is never run."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{name!r} stands twice in one mapping")
        return super().construct_mapping(node, deep)


def load_study(path: Path) -> Study:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), OnceOnly)  # a SafeLoader
        study = _study(path, tree)
        _check(study)
    except OSError as error:
        raise ConfigError(f"cannot read the study {path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return study


def _study(path: Path, tree: Any) -> Study:
    if not isinstance(tree, Mapping):
        raise ConfigError("a study is a mapping, with at least `tokens` and `arms` or `axes`")
    for key in tree:
        if key not in KEYS:
            raise ConfigError(f"there is nothing called {key!r} in a study{nearest(str(key), KEYS)}")
    base, common = str(tree.get("base", "gmt-v7-base")), _mapping(tree, "settings")
    rates = _numbers(tree["rates"], "rates", float) if "rates" in tree else ()
    arms: dict[str, GMTConfig] = {}
    for name, own in _cross(_mapping(tree, "arms") or {"": {}}, _mapping(tree, "axes")):
        if name in arms:
            raise ConfigError(f"two arms would be called {name!r}")
        arms[name] = _arm(path, name, base, _current(common) | own, "rates" in tree)
    seeds = _numbers(tree.get("seeds", [0, 1, 2]), "seeds", int)
    return Study(
        name=path.stem,
        question=" ".join(str(tree.get("question", "")).split()),
        arms=arms,
        reference=str(tree.get("reference", next(iter(arms)))),
        tokens=_numbers(tree.get("tokens", 0), "tokens", int)[0],
        seeds=seeds,
        rates=rates,
        rate_seeds=_numbers(tree.get("rate_seeds", len(seeds)), "rate_seeds", int)[0],
    )


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = tree.get(key) or {}
    if not isinstance(found, Mapping):
        raise ConfigError(f"`{key}` is a mapping, not {found!r}")
    for name in found:
        if isinstance(name, bool):  # YAML takes on, off, yes and no for these
            raise ConfigError(f"a name under `{key}` reads as {name}: put it in quotes")
    return {str(name): value for name, value in found.items()}


def _numbers(given: Any, key: str, kind: Any) -> tuple[Any, ...]:
    """One number, or a list of them."""
    values = given if isinstance(given, list) else [given]
    try:
        if not values or any(isinstance(v, bool) for v in values):
            raise ValueError
        found = tuple(kind(v) for v in values)  # YAML reads 6e-4 as text
        if kind is int and any(n != float(v) for n, v in zip(found, values, strict=True)):
            raise ValueError
    except (TypeError, ValueError):
        wanted = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"`{key}` must be {wanted}, not {given!r}") from None
    if len(set(found)) < len(found):
        raise ConfigError(f"`{key}` names {given!r}, one of them twice")
    return found


def _cross(arms: dict[str, Any], axes: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every arm at every combination of the axes."""
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"the axis {name} is a list of values, not {values!r}")
    crossed = []
    for (name, own), *values in itertools.product(arms.items(), *axes.values()):
        if not isinstance(own or {}, Mapping):
            raise ConfigError(f"the arm {name!r} is a mapping of settings, not {own!r}")
        point = dict(zip(axes, values, strict=True))
        label = ", ".join(str(v) if key == "preset" else f"{key.rpartition('.')[2]} {v}" for key, v in point.items())
        crossed.append((", ".join(part for part in (name, label) if part) or "base", _current(own) | _current(point)))
    return crossed


def _current(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same under present names, so that a later value replaces an earlier one under an old name."""
    return {current_name(name): value for name, value in (settings or {}).items()}


def _arm(path: Path, name: str, base: str, settings: dict[str, Any], has_rates: bool) -> GMTConfig:
    """The preset or file of an arm, with what is set on top."""
    settings = dict(settings)
    base = str(settings.pop("preset", base))
    for setting, key in OWN.items():
        if setting in settings and (key != "rates" or has_rates):
            raise ConfigError(f"in the arm {name!r}: {setting} would be overwritten; a study says it as `{key}`")
    if base not in PRESETS:
        file = path.parent / base
        if not file.exists():
            raise ConfigError(f"there is no preset or file {base!r}{nearest(base, PRESETS)}")
        base = str(file)
    try:
        return GMTConfig.named(base, [f"{key}={_text(value)}" for key, value in settings.items()])
    except ConfigError as error:
        raise ConfigError(f"in the arm {name!r}: {error}") from None


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


def _check(study: Study) -> None:
    """What could only fail after hours is told now."""
    if study.reference not in study.arms:
        known = ", ".join(study.arms)
        raise ConfigError(f"the reference {study.reference!r} is none of the arms: {known}")
    if not 1 <= study.rate_seeds <= len(study.seeds):
        raise ConfigError(f"`rate_seeds` is {study.rate_seeds}: must be from 1 to the {len(study.seeds)} seeds")
    read = {}
    for arm, cfg in study.arms.items():
        if study.tokens < tokens_per_step(cfg):
            raise ConfigError(f"`tokens` is {study.tokens:,}, and one step of {arm!r} reads {tokens_per_step(cfg):,}")
        for rate in study.rates_of(arm):
            for seed in study.seeds:
                study.config(arm, rate, seed)  # says what is wrong with a rate or a seed
        if not (cfg.validation.every or cfg.validation.per_epoch):
            raise ConfigError(f"the arm {arm!r} never validates, and arms are compared by their validation loss")
        validation = (cfg.validation.batch, cfg.validation.batches, cfg.validation.mode, cfg.model.vocab)
        read[arm] = (cfg.model.context, tokens_per_step(cfg), *validation)
    first = read[study.reference]
    for arm, found in read.items():
        if found != first:
            names = ("context", "tokens a step", "validation.batch", "validation.batches", "validation.mode", "vocab")
            other = next(f"{name} {a}, not {b}" for name, a, b in zip(names, found, first, strict=True) if a != b)
            raise ConfigError(f"{arm!r} and {study.reference!r} read or validate differently: {other}")
