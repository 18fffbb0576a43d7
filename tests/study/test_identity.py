"""A run's folder is found by its settings, whatever they are called and however a difference is worded."""

import dataclasses
import json
import random
import shutil
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pytest
import yaml

from gmt import GMTConfig
from gmt.config import compare, migrate
from gmt.config.compare import RUNTIME_ONLY_KEYS
from gmt.config.parse import flatten
from gmt.errors import ConfigError
from gmt.study import plan
from gmt.study.file import Study, load_study
from gmt.study.plan import Wanted, check_distinct, gather, wanted_runs

STORED = Path(__file__).parents[1] / "fixtures" / "v0_1"
# folders of version 0.1.0, and the names that this version gives to the same runs
LEGACY = {"v7": "v7-lr0.001-seed0-1efd2f0e78", "gate": "gate-lr0.001-seed0-a267e071ec"}
NEW = {"v7": "v7-lr0.001-seed0-8db3d358ad", "gate": "gate-lr0.001-seed0-89c5f55a69"}


@pytest.fixture
def out(tmp_path) -> Path:
    """The finished study of version 0.1.0."""
    return Path(shutil.copytree(STORED / "study", tmp_path / "study"))


STUDY = load_study(STORED / "study.yaml")


def runs(study: Study) -> dict[str, Wanted]:
    return {run.arm: run for run in wanted_runs(study, [])}


def renamed(monkeypatch, *names: str) -> None:
    """As if `memory.gate_init` had been renamed to each of `names`, one after the other."""
    old = "memory.gate_init"
    for name in names:
        monkeypatch.setitem(migrate.RENAMED, old, name)
        old = name

    def to_dict(self: GMTConfig) -> dict[str, Any]:
        tree = dataclasses.asdict(self)
        tree["memory"][names[-1].removeprefix("memory.")] = tree["memory"].pop("gate_init")
        return tree

    monkeypatch.setattr(GMTConfig, "to_dict", to_dict)


def reworded(monkeypatch) -> None:
    for module in (compare, plan):
        monkeypatch.setattr(
            module, "differences", lambda saved, cfg: [f"{c.name} changes" for c in changes(saved, cfg)]
        )


def changes(saved: dict[str, Any], cfg: GMTConfig) -> list[compare.Change]:
    return compare.changes(migrate.translate(flatten(saved), []), cfg)


def test_a_new_run_has_the_new_name(tmp_path):
    assert {arm: run.folder(tmp_path).name for arm, run in runs(STUDY).items()} == NEW


def test_a_run_of_version_0_1_is_found_under_its_old_name(out):
    assert {arm: run.folder(out).name for arm, run in runs(STUDY).items()} == LEGACY


def test_the_new_name_is_preferred(out):
    for arm, name in LEGACY.items():
        shutil.copytree(out / "runs" / name, out / "runs" / NEW[arm])
    assert {arm: run.folder(out).name for arm, run in runs(STUDY).items()} == NEW


CHANGES = {
    "reworded": reworded,
    "renamed": lambda patch: renamed(patch, "memory.gate_logit"),
    "renamed twice": lambda patch: renamed(patch, "memory.gate_logit", "memory.bias"),
    "both": lambda patch: (reworded(patch), renamed(patch, "memory.gate_logit")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_name_does_not_depend_on_words(change, out, tmp_path, monkeypatch):
    before = {arm: run.digest for arm, run in runs(STUDY).items()}
    CHANGES[change](monkeypatch)
    assert {arm: run.digest for arm, run in runs(STUDY).items()} == before
    assert {arm: run.folder(out).name for arm, run in runs(STUDY).items()} == LEGACY
    assert {arm: run.folder(tmp_path).name for arm, run in runs(STUDY).items()} == NEW
    results, missing = gather(STUDY, out)
    assert [result.arm for result in results] == ["v7", "gate"] and missing == []


def test_a_study_file_may_use_old_names(tmp_path, monkeypatch):
    monkeypatch.setitem(migrate.RENAMED, "memory.bias", "memory.gate_init")
    monkeypatch.setitem(migrate.RENAMED, "train.rng", "train.seed")
    tree = yaml.safe_load((STORED / "study.yaml").read_text())
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree | {"arms": {"v7": {}, "gate": {"memory.bias": -2}}}))
    assert load_study(path).arms["gate"].memory.gate_init == -2
    # an arm's own value wins over the common one, and an axis over both, under whatever names
    tree["settings"] |= {"memory.gate_init": 3}
    path.write_text(yaml.safe_dump(tree | {"arms": {"v7": {"memory.bias": 4}}}))
    assert load_study(path).arms["v7"].memory.gate_init == 4
    tree["settings"] |= {"memory.bias": tree["settings"].pop("memory.gate_init")}
    path.write_text(
        yaml.safe_dump(
            tree | {"arms": {"v7": {"memory.gate_init": 4}}, "axes": {"memory.bias": [5, 6]}, "reference": "v7, bias 5"}
        )
    )
    assert [cfg.memory.gate_init for cfg in load_study(path).arms.values()] == [5, 6]
    path.write_text(yaml.safe_dump(tree | {"arms": {"v7": {"train.rng": 4}}}))
    with pytest.raises(ConfigError, match=r"train\.seed would be overwritten"):
        load_study(path)


# --- the digest itself ---


BASE = flatten(GMTConfig().to_dict())


def other_values(name: str) -> list[Any]:
    """Up to two valid values that are not the default."""
    section, _, key = name.partition(".")
    entry = getattr(GMTConfig(), section).__dataclass_fields__[key]
    meta, value = entry.metadata, BASE[name]
    if meta["choices"]:
        return [choice for choice in meta["choices"] if choice != value][:2]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        return ["a", "b"]
    if value is None:
        return [1.0, 0.5] if "float" in str(entry.type) else [1, 2]
    low = meta["low"] if meta["above"] is None else meta["above"] + 1e-3
    candidates = map(type(value), [value * 2, value * 3, value / 2, value / 4, low, min(meta["high"], 1)])
    return [c for c in dict.fromkeys(candidates) if low <= c <= meta["high"] and c != value][:2]


def configurations() -> list[GMTConfig]:
    """The base, every setting changed alone, and combinations of three changes."""
    singles = [{name: other} for name in BASE for other in other_values(name)]
    draw, found = random.Random(0), [GMTConfig()]
    for changed in [*singles, *(reduce(or_, draw.sample(singles, 3)) for _ in range(400))]:
        with suppress(ConfigError):  # rules between two settings
            found.append(GMTConfig.from_dict(changed))
    return found


def essence(cfg: GMTConfig) -> str:
    """All settings that change what is computed, as one text."""
    settings = flatten(cfg.to_dict())
    return json.dumps({n: v for n, v in settings.items() if not n.startswith(RUNTIME_ONLY_KEYS)}, sort_keys=True)


def test_two_configurations_never_share_a_digest():
    digests: dict[str, set[str]] = {}
    for cfg in configurations():
        digests.setdefault(essence(cfg), set()).add(Wanted("a", 1e-3, 0, cfg).digest)
    assert all(len(found) == 1 for found in digests.values())
    assert len(set.union(*digests.values())) == len(digests) > 400


def test_a_setting_that_is_added_later_leaves_the_digest(monkeypatch):
    run = Wanted("a", 1e-3, 0, GMTConfig.preset("tiny"))
    before = run.digest

    def to_dict(self: GMTConfig) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"extra": {"new": 1}}

    monkeypatch.setattr(GMTConfig, "to_dict", to_dict)
    assert run.digest == before


def test_arms_with_equal_settings_are_refused_under_any_names(tmp_path, monkeypatch):
    monkeypatch.setitem(migrate.RENAMED, "memory.bias", "memory.gate_init")
    tree = yaml.safe_load((STORED / "study.yaml").read_text())
    arms = {"v7": {}, "one": {"memory.bias": -2}, "two": {"memory.gate_init": -2.0}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree | {"arms": arms}))
    with pytest.raises(ConfigError, match="the arms 'one' and 'two' of study compute the same"):
        check_distinct(load_study(path))
