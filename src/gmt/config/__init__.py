"""Every setting, as small frozen dataclasses. The defaults are the paper's base model.

    GMTConfig.preset("tiny", "memory.slots=64")           a preset and dotted overrides
    GMTConfig.from_yaml("configs/gmt_v7_base.yaml")       a file: optional `preset:`, then sections
    GMTConfig.from_dict(cfg.to_dict()) == cfg             what checkpoints store

All mistakes are reported at once, each with the range that is allowed.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gmt.config.migrate import translate
from gmt.config.parse import (
    Problems,
    coerce,
    index_of,
    layers,
    nearest,
    of_section,
    parse_overrides,
    raise_problems,
    range_problems,
)
from gmt.config.sections import (
    TAU_LEAST,
    TAU_MOST,
    LossConfig,
    MaintenanceConfig,
    MemoryConfig,
    ModelConfig,
    SaveConfig,
    TemperatureConfig,
    TrainConfig,
    ValidationConfig,
)
from gmt.errors import ConfigError

__all__ = [
    "PRESETS",
    "TAU_LEAST",
    "TAU_MOST",
    "GMTConfig",
    "LossConfig",
    "MaintenanceConfig",
    "MemoryConfig",
    "ModelConfig",
    "SaveConfig",
    "TemperatureConfig",
    "TrainConfig",
    "ValidationConfig",
]

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "gmt-v7-base": {"validation": {"mode": "adaptive-carry"}},
    # the same model, with a start and a schedule that keep it off the plateau: docs/results/controls.md
    "gmt-v7-stable": {
        "memory": {"gate_init": -2.0, "momentum_init": 9.0, "navigation_init": 0.03},
        "losses": {"begin": 0.5, "full": 1.0},
    },
    "dense-1050": {"model": {"sublayer": "dense", "dense_width": 1050}},
    "dense-205": {"model": {"sublayer": "dense", "dense_width": 205}},
    "attention-only": {"model": {"sublayer": "none"}},
    "tiny": {
        "model": {"blocks": 4, "hidden": 128, "heads": 4, "context": 128, "vocab": 2048, "dropout": 0.0},
        "memory": {"slots": 32, "navigation": 32},
        "train": {"accumulation": 1, "learning_rate": 1e-3, "precision": "fp32"},
        "validation": {"batches": 32},
    },
}
# tiny with the start and the schedule of gmt-v7-stable; queries and keys are scaled for the smaller hidden size
PRESETS["tiny-stable"] = PRESETS["tiny"] | {
    "memory": PRESETS["tiny"]["memory"] | {"gate_init": -2.0, "momentum_init": 9.0, "navigation_init": 0.06},
    "losses": {"begin": 0.5, "full": 1.0},
}


@dataclass(frozen=True)
class GMTConfig:
    """All settings. Construction validates; `preset`, `from_yaml` and `from_dict` build one from names."""

    model: ModelConfig = field(default_factory=ModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    maintenance: MaintenanceConfig = field(default_factory=MaintenanceConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    save: SaveConfig = field(default_factory=SaveConfig)

    def __post_init__(self) -> None:
        raise_problems(range_problems(self, _FIELDS) + _cross_problems(self))

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
    def named(cls, name: str, overrides: Iterable[str] = ()) -> "GMTConfig":
        """A preset or a YAML file, as commands take them."""
        if name in PRESETS:
            return cls.preset(name, *overrides)
        if not Path(name).exists() and Path(name).suffix not in (".yaml", ".yml"):
            raise ConfigError(
                f"{name} is neither a preset nor a file{nearest(name, PRESETS)}; presets: {', '.join(PRESETS)}"
            )
        return cls.from_yaml(name, overrides)

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
        sources = [*layers(tree, PRESETS, problems), *parse_overrides(overrides, problems)]
        for name, value in (setting for source in sources for setting in translate(source, problems).items()):
            if name in _FIELDS:
                coerce(name, _FIELDS[name].type, value, values, problems)
            elif any(known.startswith(f"{name}.") for known in _FIELDS):
                problems.append(f"{name}: is a section of settings, not {value!r}")
            else:
                problems.append(f"{name}: there is no such setting{nearest(name, _FIELDS)}")
        cfg = object.__new__(cls)  # not yet validated: what is wrong so far is told together with the ranges
        for section in dataclasses.fields(cls):
            build: Any = section.default_factory
            object.__setattr__(cfg, section.name, build(**of_section(values, section.name)))
        raise_problems(problems + range_problems(cfg, _FIELDS) + _cross_problems(cfg))
        return cfg

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return dataclasses.asdict(self)


_FIELDS = index_of(GMTConfig)


def _cross_problems(cfg: "GMTConfig") -> Problems:
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
    weigh = cfg.losses
    if all(isinstance(p, int | float) for p in (weigh.begin, weigh.full)) and weigh.begin > weigh.full:
        problems.append(f"losses.begin = {weigh.begin}: must be at most losses.full = {weigh.full}")
    target = cfg.losses.cluster_target
    if target is not None and target > cfg.memory.slots:
        problems.append(f"losses.cluster_target = {target}: must be at most memory.slots = {cfg.memory.slots}")
    return problems
