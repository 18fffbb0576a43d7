"""Study files: what they lay out, and one clear sentence for each mistake."""

from pathlib import Path

import pytest
import yaml

from gmt.config import GMTConfig
from gmt.data.batches import Stream, TrainBatches
from gmt.errors import ConfigError
from gmt.study.file import load_study
from gmt.study.plan import Wanted, check_distinct, runs_of, study_plan, wanted_runs
from gmt.study.result import Result
from tests.train.conftest import make_data

SHIPPED = sorted(Path("configs/studies").glob("*.yaml"))
SETTINGS = {"model.context": 8, "model.vocab": 257, "train.micro_batch": 4, "train.accumulation": 2}
FROZEN = SETTINGS | {"validation.mode": "frozen", "validation.batches": 3}


def written(tmp_path, **tree) -> Path:
    path = tmp_path / "study.yaml"
    tree = {"base": "tiny", "settings": SETTINGS, "tokens": 640, "arms": {"a": {}, "b": None}} | tree
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False))
    return path


def test_arms_take_common_settings_then_their_own(tmp_path):
    arms = {"a": {}, "b": {"preset": "attention-only", "model.context": 8, "train.clip": 2.0}}
    study = load_study(written(tmp_path, base="gmt-v7-base", arms=arms, settings=FROZEN | {"train.clip": 3.0}))
    a, b = (study.config(arm, 1e-3, 7) for arm in ("a", "b"))
    assert (a.model.sublayer, b.model.sublayer) == ("memory", "none")
    assert (a.train.clip, b.train.clip) == (3.0, 2.0)
    assert (a.train.learning_rate, a.train.seed, a.train.steps) == (1e-3, 7, 10)  # 640 tokens, 64 a step


def test_axes_are_crossed_with_arms(tmp_path):
    axes = {"memory.gate_init": [-4, 1.0], "preset": ["tiny", "gmt-v7-base"]}
    study = load_study(written(tmp_path, axes=axes, arms={"x": {}}, settings=FROZEN))
    gates, presets = ("gate_init -4", "gate_init 1.0"), ("tiny", "gmt-v7-base")
    assert list(study.arms) == [f"x, {gate}, {preset}" for gate in gates for preset in presets]
    assert study.config("x, gate_init -4, gmt-v7-base", 1e-3, 0).memory.gate_init == -4
    assert study.config("x, gate_init 1.0, tiny", 1e-3, 0).model.hidden == 128


def test_a_base_may_be_a_file_beside_the_study(tmp_path):
    (tmp_path / "mine.yaml").write_text("preset: tiny\nmemory: {slots: 9}")
    assert load_study(written(tmp_path, base="mine.yaml")).config("a", 1e-3, 0).memory.slots == 9


def test_arms_with_one_seed_read_the_same_data(tmp_path):
    other = {"preset": "attention-only", "train.micro_batch": 2, "train.accumulation": 4}
    study = load_study(written(tmp_path, arms={"a": {}, "b": other}, settings=FROZEN))
    stream = Stream(make_data(tmp_path / "data"), "train")
    read = {}
    for arm in study.arms:
        for seed in (0, 1):
            t = study.config(arm, 1e-3, seed).train
            batches = TrainBatches(stream, 8, t.micro_batch, t.accumulation, t.seed)
            read[arm, seed] = [w for step in range(3) for m in range(t.accumulation) for w in batches.whole(step, m)]
    assert read["a", 0] == read["b", 0] != read["a", 1] == read["b", 1]


def test_rates_are_tried_with_some_seeds_and_the_best_taken_with_the_others(tmp_path):
    study = load_study(written(tmp_path, seeds=[3, 4, 5], rates=["1e-3", 2e-3], rate_seeds=1))
    first = wanted_runs(study, [])
    assert [(run.arm, run.rate, run.seed) for run in first] == [
        ("a", 1e-3, 3), ("a", 2e-3, 3), ("b", 1e-3, 3), ("b", 2e-3, 3),
    ]  # fmt: skip
    loss = {("a", 1e-3): 5.0, ("a", 2e-3): 4.0, ("b", 1e-3): 4.5}
    results = [
        Result(arm, rate, 3, value, validation=(), training=(), parameters=1, flops=1, tokens_per_second=1)
        for (arm, rate), value in loss.items()
    ]
    more = wanted_runs(study, results)[4:]  # b's best is not known yet
    assert [(run.arm, run.rate, run.seed) for run in more] == [("a", 2e-3, 4), ("a", 2e-3, 5)]
    assert [runs_of(study, arm) for arm in "ab"] == [4, 4]


def test_a_digest_is_of_what_is_computed(tmp_path):
    arms = {"a": {}, "b": {"memory.kernels": "plain"}, "c": {"train.clip": 2.0}}
    study = load_study(written(tmp_path, arms=arms))
    a, b, c = (Wanted(arm, 1e-3, 0, study.config(arm, 1e-3, 0)) for arm in "abc")
    assert a.digest == b.digest != c.digest
    assert len({Wanted("a", 1e-3, seed, study.config("a", 1e-3, seed)).digest for seed in range(3)}) == 3


@pytest.mark.parametrize(
    ("arm", "folder"),
    [("gate_init -2.0", "gate-init-minus2.0"), ("gate_init 2.0", "gate-init-2.0"), ("dense-205", "dense-205"),
     ("gate -.5", "gate-minus.5"),
     ("Stable, late", "stable-late")],
)  # fmt: skip
def test_the_name_of_a_folder_keeps_a_number_s_sign(tmp_path, arm, folder):
    run = Wanted(arm, 1e-3, 0, GMTConfig.preset("tiny"))
    assert run.folder(tmp_path).name == f"{folder}-lr0.001-seed0-{run.digest}"


def test_arms_that_compute_the_same_are_refused(tmp_path):
    """They would be one run under two names, and a difference of exactly nothing."""
    study = load_study(written(tmp_path, arms={"a": {}, "b": {"memory.kernels": "plain"}}))
    for use in (check_distinct, lambda study: study_plan(study, None)):
        with pytest.raises(ConfigError, match="the arms 'a' and 'b' of study compute the same"):
            use(study)


def test_without_rates_every_arm_has_its_own(tmp_path):
    study = load_study(written(tmp_path, arms={"a": {}, "b": {"train.learning_rate": 0.5}}))
    assert [(run.arm, run.rate, run.cfg.train.learning_rate) for run in wanted_runs(study, [])][:2] == [
        ("a", 1e-3, 1e-3), ("b", 0.5, 0.5),
    ]  # fmt: skip


def test_a_base_that_is_edited_later_changes_nothing(tmp_path):
    base = tmp_path / "mine.yaml"
    base.write_text("preset: tiny\nmemory: {slots: 9}")
    study = load_study(written(tmp_path, base="mine.yaml"))
    base.write_text("preset: tiny\nmemory: {slots: 12}")
    assert study.config("a", 1e-3, 0).memory.slots == 9


def test_a_name_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("tokens: 640\narms:\n  b: {}\n  b: {memory.slots: 4}\n")
    with pytest.raises(ConfigError, match="'b' stands twice in one mapping"):
        load_study(path)


@pytest.mark.parametrize(("tree", "said"), [
    ({"arm": {}}, "nothing called 'arm' in a study; the nearest is arms"),
    ({"base": "gmt-v7-bass"}, "there is no preset or file 'gmt-v7-bass'; the nearest is gmt-v7-base"),
    ({"arms": {"a": {"memory.slot": 4}}}, "in the arm 'a': wrong setting: memory.slot: there is no such setting"),
    ({"arms": {"a": {}, "b": {"model.context": 16}}}, "'b' and 'a' read or validate differently: context 16, not 8"),
    ({"arms": {"a": {}, "b": {"validation.mode": "adaptive"}}}, "validation.mode adaptive, not frozen"),
    ({"arms": ["a"]}, "`arms` is a mapping"),
    ({"arms": {False: {}}}, "a name under `arms` reads as False: put it in quotes"),
    ({"arms": {"a": 3}}, "the arm 'a' is a mapping of settings, not 3"),
    ({"axes": {"memory.slots": 8}}, "the axis memory.slots is a list of values, not 8"),
    ({"reference": "z"}, "the reference 'z' is none of the arms: a, b"),
    ({"seeds": [1, 1]}, "`seeds` names [1, 1], one of them twice"),
    ({"seeds": "many"}, "`seeds` must be whole numbers, not 'many'"),
    ({"seeds": [0.5]}, "`seeds` must be whole numbers"),
    ({"rates": ["fast"]}, "`rates` must be numbers"),
    ({"rates": []}, "`rates` must be numbers, not []"),
    ({"rates": [1e-3], "settings": SETTINGS | {"train.learning_rate": 1e-2}}, "a study says it as `rates`"),
    ({"axes": {"train.seed": [1, 2]}}, "train.seed would be overwritten; a study says it as `seeds`"),
    ({"arms": {"a": {"train.steps": 3}}}, "train.steps would be overwritten; a study says it as `tokens`"),
    ({"rates": [-1.0]}, "train.learning_rate = -1.0: must be at least 0"),
    ({"axes": {"memory.slots": [8, 8]}}, "two arms would be called 'a, slots 8'"),
    ({"rate_seeds": 4}, "`rate_seeds` is 4: must be from 1 to the 3 seeds"),
    ({"tokens": 8}, "`tokens` is 8, and one step of 'a' reads 64"),
    ({"settings": SETTINGS | {"validation.per_epoch": 0}}, "the arm 'a' never validates"),
])  # fmt: skip
def test_mistakes_are_one_sentence(tmp_path, tree, said):
    with pytest.raises(ConfigError) as error:
        load_study(written(tmp_path, **tree))
    assert said in str(error.value) and str(tmp_path) in str(error.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the study"):
        load_study(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_study(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ConfigError, match="a study is a mapping"):
        load_study(tmp_path / "list.yaml")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_lays_out_its_runs(path):
    study = load_study(path)
    assert study.question and len(study.arms) > 1
    assert len(study.seeds) >= 3 or "no claim" in study.question
    check_distinct(study)
    # a laptop's, or of the base width
    assert {cfg.model.hidden for cfg in study.arms.values()} == {128 if path.stem == "tiny" else 768}


def test_the_shipped_studies_are_those_the_readme_names():
    assert {path.stem for path in SHIPPED} >= {
        "controls", "gate", "losses", "weights", "writeback", "maintenance", "temperature", "slots", "init", "edges",
    }  # fmt: skip
