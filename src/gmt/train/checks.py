"""Settings that have no effect in a run, or not the effect that one would expect: one sentence each."""

from dataclasses import asdict

import torch

from gmt.config import GMTConfig
from gmt.train.schedule import Schedule

MEMORY_SECTIONS = ("memory", "temperature", "losses", "maintenance")


def setting_warnings(cfg: GMTConfig, schedule: Schedule, device: torch.device, world: int) -> list[str]:
    train, found = cfg.train, []
    if train.graphs:
        missing = [
            reason
            for reason, applies in (
                ("train.compile=true", not train.compile),
                (f"a CUDA device (this is {device.type})", device.type != "cuda"),
                (f"a single process (there are {world})", world > 1),
            )
            if applies
        ]
        if missing:
            found.append(f"train.graphs=true has no effect: it needs {' and '.join(missing)}")
    if not train.deterministic and not train.compile:
        found.append("train.deterministic=false has no effect without train.compile=true")
    if cfg.model.sublayer != "memory":
        default = GMTConfig()
        changed = [
            f"{section}.{name}"
            for section in MEMORY_SECTIONS
            for name, value in asdict(getattr(cfg, section)).items()
            if value != getattr(getattr(default, section), name)
        ]
        if changed:
            found.append(f"{', '.join(changed)} have no effect: model.sublayer={cfg.model.sublayer} has no memory")
    if schedule.warmup > schedule.steps:
        reached = schedule.learning_rate(max(schedule.steps - 1, 0))
        found.append(
            f"train.warmup={schedule.warmup} is longer than the run of {schedule.steps} steps: the learning rate "
            f"ends at {reached:.3g} instead of {train.learning_rate:.3g}"
        )
    per_epoch = cfg.validation.per_epoch
    if cfg.validation.every is None and per_epoch > schedule.steps_per_epoch:
        found.append(
            f"validation.per_epoch={per_epoch} exceeds the {schedule.steps_per_epoch} steps of an epoch: the run "
            "validates after every step"
        )
    return found
