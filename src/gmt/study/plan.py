"""Which runs a study wants, given those that are finished."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gmt.config import GMTConfig
from gmt.config.compare import differences
from gmt.errors import ConfigError, GMTError
from gmt.model.device import pick_device
from gmt.model.flops import training_flops
from gmt.study import identity
from gmt.study.file import Study, tokens_per_step
from gmt.study.result import Result, read_result
from gmt.study.statistics import best_rates
from gmt.train.plan import UTILISATION, matmul_rate, parameters

RECORD, CONFIG = "run.json", "config.yaml"  # beside a run's own files: what it is, and whether it came to its end


class Wanted(NamedTuple):
    """One run of a study."""

    arm: str
    rate: float
    seed: int
    cfg: GMTConfig

    @property
    def name(self) -> str:
        return f"{self.arm}, rate {self.rate:g}, seed {self.seed}"

    @property
    def digest(self) -> str:
        """Two studies that want the same run share it."""
        return identity.digest(self.cfg)

    def folder(self, out: Path) -> Path:
        """The folder of an equal run if there is one, under whatever arm; else a new name."""
        for digest in (self.digest, identity.legacy_digest(self.cfg)):
            if found := sorted((out / "runs").glob(f"*-{digest}")):
                return found[0]
        # a minus before a number is part of it: gate -2 is not gate 2
        joined = re.sub(r"(?<=[a-z0-9.])-(?=\d)", " ", self.arm.lower())
        named = re.sub(r"[-−](?=\.?\d)", "minus", joined)
        slug = re.sub(r"[^a-z0-9.]+", "-", named).strip("-")[:80]
        return out / "runs" / f"{slug}-lr{self.rate:g}-seed{self.seed}-{self.digest}"

    @property
    def tokens(self) -> int:
        return (self.cfg.train.steps or 0) * tokens_per_step(self.cfg)


def wanted_runs(study: Study, results: Iterable[Result]) -> list[Wanted]:
    """All that can be named by now, seeds outermost. Where several rates are tried with some of the seeds only, the
    others' runs are known when an arm's best rate is."""
    have = {(r.arm, r.rate, r.seed): r for r in results}
    trying, chosen = study.seeds[: study.rate_seeds], study.seeds[study.rate_seeds :]
    pairs = [(arm, rate, seed) for seed in trying for arm in study.arms for rate in study.rates_of(arm)]
    for seed in chosen:
        for arm in study.arms:
            tried = [(arm, rate, s) for rate in study.rates_of(arm) for s in trying]
            if all(key in have for key in tried):
                pairs.append((arm, best_rates([have[key] for key in tried])[arm], seed))
    return [Wanted(arm, rate, seed, study.config(arm, rate, seed)) for arm, rate, seed in pairs]


def check_distinct(study: Study) -> None:
    """Arms that compute the same would be one run under two names, and a difference of exactly nothing."""
    seen: dict[str, str] = {}
    for arm in study.arms:
        rate, seed = study.rates_of(arm)[0], study.seeds[0]
        digest = Wanted(arm, rate, seed, study.config(arm, rate, seed)).digest
        if digest in seen:
            raise ConfigError(f"the arms {seen[digest]!r} and {arm!r} of {study.name} compute the same")
        seen[digest] = arm


def runs_of(study: Study, arm: str) -> int:
    """How many there will be, though some are not known yet."""
    return study.rate_seeds * len(study.rates_of(arm)) + len(study.seeds) - study.rate_seeds


class ArmRow(NamedTuple):
    arm: str
    parameters: int
    flops: float
    runs: int
    finished: int


class Outlook(NamedTuple):
    """What `gmt study --plan` prints."""

    rows: list[ArmRow]
    runs: int
    tokens: int  # still to be read
    hours: float
    device: str


def study_plan(study: Study, out: Path | None, devices: int = 1) -> Outlook:
    check_distinct(study)
    results = gather(study, out)[0] if out is not None else []
    rows, operations, tokens = [], 0.0, 0
    for arm in study.arms:
        run = Wanted(arm, 0.0, 0, study.config(arm, study.rates_of(arm)[0], study.seeds[0]))
        done, each = sum(result.arm == arm for result in results), runs_of(study, arm)
        rows.append(ArmRow(arm, parameters(run.cfg), training_flops(run.cfg), each, done))
        operations += (each - done) * run.tokens * rows[-1].flops
        tokens += (each - done) * run.tokens
    train = study.arms[study.reference].train
    device = pick_device(train.device)
    hours = operations / (matmul_rate(device, train.precision) * UTILISATION * devices) / 3600
    return Outlook(rows, sum(row.runs for row in rows), tokens, hours, str(device))


def finished(run: Wanted, out: Path, data: str | None = None) -> Result | None:
    """The result of a run that came to its end, or to a number that is not finite."""
    folder = run.folder(out)
    record = read_record(folder)
    if data is not None and record and record["data"] != data:
        raise GMTError(f"{folder} was trained on other data, {record['data'][:16]}: use another --out")
    if not record.get("finished"):
        return None
    if changed := differences(_saved_config(folder), run.cfg):
        raise GMTError(f"{folder} was trained with other settings ({'; '.join(changed)}): use another --out")
    assert run.cfg.train.steps is not None
    return read_result(
        folder,
        arm=run.arm,
        rate=run.rate,
        seed=run.seed,
        steps=run.cfg.train.steps,
        per_step=tokens_per_step(run.cfg),
        parameters=record["parameters"],
        flops=record["flops"],
        alone=record.get("side_by_side", 1) == 1,
        loss=math.inf if record.get("diverged") else None,
    )


def read_record(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _saved_config(folder: Path) -> dict[str, Any]:
    try:
        return yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise GMTError(f"{folder} has lost its {CONFIG}: {' '.join(str(error).split())}") from None


def gather(study: Study, out: Path, data: str | None = None) -> tuple[list[Result], list[Wanted]]:
    """Results so far, and the runs that are known and missing. Twice over: the first round may name more."""
    found: dict[Wanted, Result | None] = {}
    for _ in range(2):
        for run in wanted_runs(study, [result for result in found.values() if result is not None]):
            if run not in found:
                found[run] = finished(run, out, data)
    return [result for result in found.values() if result is not None], [run for run in found if found[run] is None]
