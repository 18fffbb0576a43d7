"""Which runs a study wants, given those that are finished."""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.model.device import pick_device
from gmt.model.flops import training_flops
from gmt.study.file import Study, tokens_per_step
from gmt.study.result import Result, read_result
from gmt.study.statistics import best_rates
from gmt.train.checkpoint import differences
from gmt.train.plan import UTILISATION, matmul_rate, parameters

RECORD = "run.json"  # beside a run's own files: what it is, and whether it came to its end


class Wanted(NamedTuple):
    """One run of a study."""

    arm: str
    rate: float
    seed: int
    cfg: GMTConfig

    @property
    def digest(self) -> str:
        """Of every setting that changes what is computed: two studies that want the same run share it."""
        # from the defaults, so that a setting added to the program later leaves the names of older runs as they are
        changed = differences(GMTConfig().to_dict(), self.cfg)
        return hashlib.sha256(json.dumps(sorted(changed)).encode()).hexdigest()[:10]

    def folder(self, out: Path) -> Path:
        """Its own, or the one of an equal run under another name."""
        found = sorted((out / "runs").glob(f"*-{self.digest}"))
        slug = re.sub(r"[^a-z0-9.]+", "-", self.arm.lower()).strip("-")
        return found[0] if found else out / "runs" / f"{slug}-lr{self.rate:g}-seed{self.seed}-{self.digest}"

    @property
    def tokens(self) -> int:
        return (self.cfg.train.steps or 0) * tokens_per_step(self.cfg)

    def record(self, data: str) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "rate": self.rate,
            "seed": self.seed,
            "data": data,
            "parameters": parameters(self.cfg),
            "flops": training_flops(self.cfg),
        }


def wanted_runs(study: Study, results: Iterable[Result]) -> list[Wanted]:
    """All that can be named by now, seeds outermost. Where several rates are tried with some of the seeds only, the
    others' runs are known when an arm's best rate is."""
    have = {(r.arm, r.rate, r.seed): r for r in results}
    trying, chosen = study.seeds[: study.rate_seeds], study.seeds[study.rate_seeds :]
    pairs = [(arm, rate, seed) for seed in trying for arm in study.arms for rate in study.rates]
    for seed in chosen:
        for arm in study.arms:
            tried = [(arm, rate, s) for rate in study.rates for s in trying]
            if all(key in have for key in tried):
                pairs.append((arm, best_rates([have[key] for key in tried])[arm], seed))
    return [Wanted(arm, rate, seed, study.config(arm, rate, seed)) for arm, rate, seed in pairs]


def runs_in_all(study: Study) -> int:
    """How many there will be, though some are not known yet."""
    trying = study.rate_seeds
    return len(study.arms) * (trying * len(study.rates) + len(study.seeds) - trying)


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


def study_plan(study: Study, out: Path | None) -> Outlook:
    results = gather(study, out)[0] if out is not None else []
    each, rows, operations, tokens = runs_in_all(study) // len(study.arms), [], 0.0, 0
    for arm in study.arms:
        run = Wanted(arm, study.rates[0], study.seeds[0], study.config(arm, study.rates[0], study.seeds[0]))
        done = sum(result.arm == arm for result in results)
        rows.append(ArmRow(arm, parameters(run.cfg), training_flops(run.cfg), each, done))
        operations += (each - done) * run.tokens * rows[-1].flops
        tokens += (each - done) * run.tokens
    train = study.config(study.reference, study.rates[0], study.seeds[0]).train
    device = pick_device(train.device)
    hours = operations / (matmul_rate(device, train.precision) * UTILISATION) / 3600
    return Outlook(rows, runs_in_all(study), tokens, hours, str(device))


def finished(run: Wanted, out: Path, data: str | None = None) -> Result | None:
    """The result of a run that came to its end, with the same data where they are given."""
    folder = run.folder(out)
    record = read_record(folder)
    if not record.get("finished"):
        return None
    if data is not None and record["data"] != data:
        raise GMTError(
            f"{folder} was trained on other data ({record['data'][:16]}, not {data[:16]}): use another --out"
        )
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
    )


def read_record(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def gather(study: Study, out: Path, data: str | None = None) -> tuple[list[Result], list[Wanted]]:
    """Results so far, and the runs that are known and missing. Twice over: the first round may name more."""
    results: list[Result] = []
    missing: list[Wanted] = []
    for _ in range(2):
        found = [(run, finished(run, out, data)) for run in wanted_runs(study, results)]
        results = [result for _, result in found if result is not None]
        missing = [run for run, result in found if result is None]
    return results, missing
