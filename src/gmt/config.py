"""Every setting of a model, as small frozen dataclasses. The defaults are the paper's base model.

    GMTConfig.preset("tiny", "memory.slots=64")           a preset and dotted overrides
    GMTConfig.from_yaml("configs/gmt_v7_base.yaml")       a file: optional `preset:`, then sections
    GMTConfig.from_dict(cfg.to_dict()) == cfg             what checkpoints store

All mistakes are reported at once, each with the range that is allowed.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from gmt.errors import ConfigError

Problems = list[str]

# temperatures between which 1 / (τ d) is a finite float32 at any distance floor
TAU_LEAST, TAU_MOST = 1e-6, 1000.0
MOST_WEIGHT = 1e6


def setting(
    default: Any,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that knows its allowed range (`above` is a bound that is itself excluded)."""
    meta = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the language model."""

    sublayer: str = setting("memory", "second sublayer of a block", choices=("memory", "dense", "none"))
    blocks: int = setting(16, "number of blocks, L", low=1, high=1024)
    hidden: int = setting(768, "hidden size, H", low=2, high=65536)
    heads: int = setting(12, "attention heads; divides `hidden`", low=1, high=1024)
    context: int = setting(1024, "longest sequence, T", low=1, high=1 << 20)
    vocab: int = setting(50257, "vocabulary size, V", low=2, high=1 << 24)
    dense_width: int = setting(1050, "inner width of a dense sublayer", low=1, high=1 << 20)
    dropout: float = setting(0.1, "on the summed embeddings and inside attention", low=0.0, high=0.99)


@dataclass(frozen=True)
class MemoryConfig:
    """One block's memory cell."""

    slots: int = setting(128, "centroids per block, F", low=2, high=65536)
    navigation: int = setting(128, "size of the query-key space, D", low=1, high=65536)
    distance_floor: float = setting(0.01, "smallest routing distance, ε_grav", low=1e-6, high=1.0)
    assignment: str = setting("hard", "how a token is assigned to slots in a write", choices=("hard",))
    usage_decay: float = setting(0.99, "smoothing of the usage statistic, ρ", low=0.0, high=1.0)
    gate_init: float = setting(1.0, "gate parameter g at the start", low=-50, high=50)
    momentum_init: float = setting(4.6, "write-back momentum parameter u at the start", low=-50, high=50)


@dataclass(frozen=True)
class TemperatureConfig:
    """The routing temperature falls from `max` to `min` over the planned steps."""

    max: float = setting(1.0, "τ at the first step", low=TAU_LEAST, high=TAU_MOST)
    min: float = setting(0.1, "τ at the last step", low=TAU_LEAST, high=TAU_MOST)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the auxiliary terms, and the two thresholds inside them."""

    track: float = setting(1.0, "λ_track", low=0.0, high=MOST_WEIGHT)
    ortho: float = setting(0.05, "β_ortho", low=0.0, high=MOST_WEIGHT)
    cluster: float = setting(0.3, "λ_cluster", low=0.0, high=MOST_WEIGHT)
    edge: float = setting(0.1, "λ_edge", low=0.0, high=MOST_WEIGHT)
    contrast: float = setting(0.5, "λ_contrast", low=0.0, high=MOST_WEIGHT)
    cluster_target: float | None = setting(None, "N_target; by default F/4", above=0.0)
    edge_floor: float | None = setting(
        None, "H_target; by default 4.0 at F 128, else 0.8257 ln(F-1)", low=0.0, high=100.0
    )


@dataclass(frozen=True)
class MaintenanceConfig:
    """Reset of dead slots and merging of near-duplicates."""

    every: int = setting(110, "optimizer steps between two maintenance events; 0 for never", low=0, high=1 << 40)
    dead_below: float | None = setting(None, "usage under which a slot is dead; by default 0.128/F", low=0.0, high=1.0)
    merge_cosine: float = setting(0.95, "cosine over which two slots are near-duplicates", low=-1.0, high=1.0)
    # at least 1: a slot replaced in this very event has age 0 and must not be taken for a mature one
    merge_age: int = setting(100, "age from which a slot may be merged", low=1, high=1 << 40)


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "gmt-v7-base": {},
    "dense-1050": {"model": {"sublayer": "dense", "dense_width": 1050}},
    "dense-205": {"model": {"sublayer": "dense", "dense_width": 205}},
    "attention-only": {"model": {"sublayer": "none"}},
    "tiny": {
        "model": {"blocks": 4, "hidden": 128, "heads": 4, "context": 128, "vocab": 2048, "dropout": 0.0},
        "memory": {"slots": 32, "navigation": 32},
    },
}


@dataclass(frozen=True)
class GMTConfig:
    """All settings. Construction validates; `preset`, `from_yaml` and `from_dict` build one from names."""

    model: ModelConfig = field(default_factory=ModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    maintenance: MaintenanceConfig = field(default_factory=MaintenanceConfig)

    def __post_init__(self) -> None:
        _raise(_range_problems(self) + _cross_problems(self))

    # the thresholds that SPEC gives for the base size, carried over to other numbers of slots

    @property
    def cluster_target(self) -> float:
        given = self.losses.cluster_target
        return self.memory.slots / 4 if given is None else given

    @property
    def edge_floor(self) -> float:
        given = self.losses.edge_floor
        if given is not None:
            return given
        # unscaled, a row of 31 possible moves could never reach an entropy of 4
        return 4.0 if self.memory.slots == 128 else 0.8257 * math.log(self.memory.slots - 1)

    @property
    def dead_below(self) -> float:
        given = self.maintenance.dead_below
        return 0.128 / self.memory.slots if given is None else given

    @classmethod
    def preset(cls, name: str, *overrides: str) -> "GMTConfig":
        return cls.from_dict({"preset": name}, overrides)

    @classmethod
    def from_yaml(cls, path: str | Path, overrides: Iterable[str] = ()) -> "GMTConfig":
        try:
            text = Path(path).read_text(encoding="utf-8")
            tree = yaml.safe_load(text)
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        return cls.from_dict(tree or {}, overrides)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any], overrides: Iterable[str] = ()) -> "GMTConfig":
        """Later layers win: defaults, the preset named in `tree`, `tree` itself, the overrides in their order."""
        problems: Problems = []
        values: dict[str, Any] = {}
        for name, value in [*_layers(tree, problems), *_parse_overrides(overrides, problems)]:
            if name in _FIELDS:
                _coerce(name, value, values, problems)
            elif any(known.startswith(f"{name}.") for known in _FIELDS):
                problems.append(f"{name}: is a section of settings, not {value!r}")
            else:
                problems.append(f"{name}: there is no such setting{_nearest(name, _FIELDS)}")
        cfg = object.__new__(cls)  # not yet validated: what is wrong so far is told together with the ranges
        for section in dataclasses.fields(cls):
            build: Any = section.default_factory
            object.__setattr__(cfg, section.name, build(**_of_section(values, section.name)))
        _raise(problems + _range_problems(cfg) + _cross_problems(cfg))
        return cfg

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return dataclasses.asdict(self)


def _index() -> dict[str, dataclasses.Field[Any]]:
    """Dotted name -> field, with the resolved type put beside the range."""
    index = {}
    for section in dataclasses.fields(GMTConfig):
        types = get_type_hints(section.type)
        for entry in dataclasses.fields(section.type):  # pyright: ignore
            index[f"{section.name}.{entry.name}"] = entry
            entry.type = types[entry.name]
    return index


_FIELDS = _index()
WANTED = {int: "a whole number", float: "a number", str: "text"}


def _layers(tree: Mapping[str, Any], problems: Problems) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, Mapping):
        problems.append(f"a configuration is a mapping of sections, not {type(tree).__name__}")
        return
    name = tree.get("preset", "gmt-v7-base")
    if isinstance(name, str) and name in PRESETS:
        yield from _flatten(PRESETS[name])
    else:
        problems.append(f"preset: there is no {name!r}{_nearest(str(name), PRESETS)}")
    yield from _flatten({k: v for k, v in tree.items() if k != "preset"})


def _flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, entries in tree.items():
        if isinstance(entries, Mapping):
            yield from ((f"{section}.{key}", value) for key, value in entries.items())
        else:
            yield str(section), entries


def _parse_overrides(overrides: Iterable[str], problems: Problems) -> Iterator[tuple[str, Any]]:
    for text in overrides:
        name, equals, value = text.partition("=")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = value
        if equals:
            yield name.strip(), parsed
        else:
            problems.append(f"{text!r} is not an override of the form section.setting=value")


def _of_section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}


def _coerce(name: str, value: Any, values: dict[str, Any], problems: Problems) -> None:
    """Put the value in the field's own type. YAML reads 1e-3 as text and 1 as an integer: both are good floats."""
    kind: Any = _FIELDS[name].type
    if get_origin(kind) is UnionType:  # the only unions are `X | None`
        if value is None:
            values[name] = None
            return
        kind = get_args(kind)[0]
    try:
        if isinstance(value, bool) or (kind is not float and isinstance(value, str) != (kind is str)):
            raise ValueError
        values[name] = kind(value)
        if kind is int and values[name] != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        problems.append(f"{name} = {value!r}: must be {WANTED[kind]}")
        values.pop(name, None)


def _range_problems(cfg: GMTConfig) -> Problems:
    problems = []
    for name, entry in _FIELDS.items():
        section, _, key = name.partition(".")
        value, meta = getattr(getattr(cfg, section), key), entry.metadata
        if value is None:
            continue
        if meta["choices"]:
            if value not in meta["choices"]:
                problems.append(f"{name} = {value!r}: must be one of {', '.join(meta['choices'])}")
        elif not isinstance(value, int if entry.type is int else int | float) or isinstance(value, bool):
            problems.append(f"{name} = {value!r}: must be {WANTED[int if entry.type is int else float]}")
        elif meta["above"] is not None and not meta["above"] < value <= meta["high"]:
            problems.append(f"{name} = {value}: must be over {meta['above']:g}{_upto(meta['high'])}")
        elif meta["above"] is None and not meta["low"] <= value <= meta["high"]:
            problems.append(f"{name} = {value}: must be at least {meta['low']:g}{_upto(meta['high'])}")
    return problems


def _cross_problems(cfg: GMTConfig) -> Problems:
    """Rules between two settings; checked even where one of them is out of its own range."""
    problems = []
    model, tau = cfg.model, cfg.temperature
    whole = all(isinstance(n, int) and n > 0 for n in (model.hidden, model.heads))  # else already told
    if whole and model.hidden % model.heads:
        divisors = [n for n in range(1, model.hidden + 1) if model.hidden % n == 0]
        near = sorted(sorted(divisors, key=lambda n: abs(n - model.heads))[:4])
        problems.append(f"model.heads = {model.heads}: must divide model.hidden = {model.hidden}, e.g. {near}")
    if all(isinstance(t, int | float) for t in (tau.min, tau.max)) and tau.min > tau.max:
        problems.append(f"temperature.min = {tau.min}: must be at most temperature.max = {tau.max}")
    target = cfg.losses.cluster_target
    if target is not None and target > cfg.memory.slots:
        problems.append(f"losses.cluster_target = {target}: must be at most memory.slots = {cfg.memory.slots}")
    return problems


def _upto(high: float) -> str:
    return "" if high == math.inf else f" and at most {high:g}"


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name; a setting written without its section is found by its last part."""
    names = list(known)
    tails = {full.partition(".")[2]: full for full in names}
    match = difflib.get_close_matches(name, names, 1, 0.5) or [
        tails[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], tails, 1, 0.7)
    ]
    return f"; the nearest is {match[0]}" if match else ""


def _raise(problems: Problems) -> None:
    if len(problems) == 1:
        raise ConfigError(f"wrong setting: {problems[0]}")
    if problems:
        raise ConfigError(f"{len(problems)} wrong settings:\n" + "\n".join(f"  {line}" for line in problems))
