"""Settings under old names: translated, dropped or refused, wherever settings enter."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from typer.testing import CliRunner

from gmt import GMTConfig
from gmt.cli import app
from gmt.config import ModelConfig, migrate
from gmt.config.compare import LEGACY_DEFAULTS, RUNTIME_ONLY_KEYS, differences
from gmt.config.parse import flatten
from gmt.errors import ConfigError, GMTError
from gmt.hf import GMTPretrainedConfig
from gmt.hf.load import open_model
from tests.test_compatibility import EXPECTED, SETTINGS, STORED

# two renames of one setting, in two steps; one of another section
RENAMED = {"memory.places": "memory.centroids", "memory.centroids": "memory.slots", "model.width": "model.hidden"}
REMOVED = {"memory.hops": 1, "model.bias": False, "train.fancy": 0.5, "losses.target": None}
DEFAULTS = flatten(GMTConfig().to_dict())


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    monkeypatch.setattr(migrate, "RENAMED", RENAMED)
    monkeypatch.setattr(migrate, "REMOVED", REMOVED)


def test_the_real_tables_are_consistent(monkeypatch):
    monkeypatch.undo()
    for old, new in migrate.RENAMED.items():
        assert old not in DEFAULTS, (
            f"{old} is a setting again: stored files with the old name would change their meaning"
        )
        assert new in DEFAULTS or new in migrate.RENAMED or new in migrate.REMOVED, new
        migrate.current_name(old)
    for name in migrate.REMOVED:
        assert name not in DEFAULTS and name not in migrate.RENAMED, name
    for name in LEGACY_DEFAULTS:
        assert name in DEFAULTS, name
    for name in RUNTIME_ONLY_KEYS:
        assert name in DEFAULTS or (name.endswith(".") and any(key.startswith(name) for key in DEFAULTS)), name


@pytest.mark.parametrize("name", ["memory.places", "memory.centroids", "memory.slots"])
def test_every_name_of_a_setting_is_read(name, tmp_path):
    section, _, key = name.partition(".")
    (tmp_path / "c.yaml").write_text(f"{section}: {{{key}: 64}}")
    for cfg in (
        GMTConfig.from_dict({section: {key: 64}}),
        GMTConfig.from_yaml(tmp_path / "c.yaml"),
        GMTConfig.preset("gmt-v7-base", f"{name}=64"),
    ):
        assert cfg == GMTConfig.preset("gmt-v7-base", "memory.slots=64", "validation.mode=" + cfg.validation.mode)


def test_later_layers_win_under_any_name():
    tree = {"preset": "tiny", "memory": {"places": 64}}  # the preset sets memory.slots
    assert GMTConfig.from_dict(tree).memory.slots == 64
    assert GMTConfig.from_dict(tree, ["memory.slots=48"]).memory.slots == 48
    assert GMTConfig.from_dict(tree, ["memory.slots=48", "memory.places=32"]).memory.slots == 32


def test_the_stored_name_is_the_oldest():
    assert migrate.stored_name("memory.slots") == "memory.places"
    assert migrate.stored_name("model.hidden") == "model.width"
    assert migrate.stored_name("memory.init") == "memory.init"


@pytest.mark.parametrize(
    "setting", ["memory.hops=1", "memory.hops=1.0", "model.bias=false", "train.fancy=5e-1", "losses.target=null"]
)
def test_a_removed_setting_at_its_default_is_dropped(setting):
    assert GMTConfig.preset("tiny", setting) == GMTConfig.preset("tiny")


REFUSED = "this setting was removed, and only its former default {} is accepted; remove it"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("memory.hops=2", f"memory.hops = 2: {REFUSED.format(1)}"),
        ("memory.hops=true", f"memory.hops = True: {REFUSED.format(1)}"),
        ("memory.hops=null", f"memory.hops = None: {REFUSED.format(1)}"),
        ("model.bias=true", f"model.bias = True: {REFUSED.format(False)}"),
        ("model.bias=0", f"model.bias = 0: {REFUSED.format(False)}"),
        ("train.fancy=much", f"train.fancy = 'much': {REFUSED.format(0.5)}"),
        ("losses.target=0", f"losses.target = 0: {REFUSED.format(None)}"),
    ],
)
def test_any_other_value_of_a_removed_setting_is_refused(setting, told):
    with pytest.raises(ConfigError) as error:
        GMTConfig.preset("tiny", setting)
    assert str(error.value) == f"wrong setting: {told}"


def test_a_setting_that_was_renamed_and_then_removed(monkeypatch):
    monkeypatch.setattr(migrate, "RENAMED", {"memory.jumps": "memory.hops"})
    assert GMTConfig.preset("tiny", "memory.jumps=1") == GMTConfig.preset("tiny")
    with pytest.raises(ConfigError, match=r"memory\.jumps = 2: this setting was removed"):
        GMTConfig.preset("tiny", "memory.jumps=2")


def test_two_names_of_one_setting_are_refused():
    with pytest.raises(ConfigError) as error:
        GMTConfig.from_dict({"memory": {"slots": 64, "places": 32}})
    assert str(error.value) == (
        "wrong setting: memory.places = 32: memory.slots = 64 sets the same setting, which was renamed; "
        "keep one value, as memory.slots"
    )
    with pytest.raises(ConfigError, match=r"memory\.centroids = 3: memory\.places = 2 sets the same setting"):
        GMTConfig.from_dict({"memory": {"places": 2, "centroids": 3}})


def test_problems_with_old_names_join_the_others():
    with pytest.raises(ConfigError) as error:
        GMTConfig.from_dict({"memory": {"hops": 3, "places": 1}, "model": {"heads": 7}}, ["model.bias=true", "x.y=1"])
    lines = str(error.value).splitlines()
    assert lines[0] == "5 wrong settings:"
    for part in (
        "memory.hops = 3",
        "memory.slots = 1: must be",
        "model.heads = 7",
        "model.bias = True",
        "x.y: there is",
    ):
        assert any(part in line for line in lines[1:]), part


# --- stored settings compared with a run's ---


def test_differences_read_old_names():
    cfg = GMTConfig.preset("tiny")
    saved = cfg.to_dict()
    saved["memory"]["places"] = saved["memory"].pop("slots")
    saved["memory"]["hops"] = 1
    assert differences(saved, cfg) == []
    saved["memory"]["places"] = 7
    assert differences(saved, cfg) == [f"memory.slots: 7 -> {cfg.memory.slots}"]


def test_differences_include_a_removed_setting_at_another_value():
    cfg = GMTConfig.preset("tiny")
    saved = cfg.to_dict()
    saved["memory"]["hops"] = 3
    assert differences(saved, cfg) == [f"memory.hops = 3: {REFUSED.format(1)}"]


def test_only_the_settings_of_the_list_may_differ(monkeypatch):
    saved = GMTConfig.preset("tiny").to_dict()
    free = ["train.device=cpu", "train.compile=true", "memory.kernels=plain", "save.keep=9", "save.wandb=x"]
    assert differences(saved, GMTConfig.preset("tiny", *free)) == []
    # a name that only begins like one of the list is another setting
    monkeypatch.setattr(GMTConfig, "to_dict", lambda self: {"train": {"compile_mode": "a", "compile": True}})
    assert differences({"train": {"compile_mode": "b", "compile": False}}, GMTConfig()) == [
        "train.compile_mode: b -> a"
    ]


# --- runs and model directories of earlier versions ---

Edit = Callable[[dict[str, Any]], None]


def stored_run(root: Path, edit: Edit, flat: Edit) -> Path:
    """A copy of the fixture run as an earlier version would have written it: `edit` applies to the settings in
    progress.json, `flat` to config.json."""
    run = Path(shutil.copytree(STORED / "run", root / "run"))
    for checkpoint in (run / "checkpoints").iterdir():
        progress, config = (json.loads((checkpoint / name).read_text()) for name in ("progress.json", "config.json"))
        edit(progress["config"])
        flat(config)
        manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
        for name, tree in (("progress.json", progress), ("config.json", config)):
            (checkpoint / name).write_text(json.dumps(tree))
            manifest["sha256"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest))
    return run


def rename(section: dict[str, Any], key: str, old: str) -> None:
    section[old] = section.pop(key)


OLD_FORMS: dict[str, tuple[Edit, Edit]] = {
    "renamed in a section": (
        lambda tree: rename(tree["memory"], "slots", "places"),
        lambda flat: rename(flat["memory"], "slots", "places"),
    ),
    "renamed in the model": (
        lambda tree: rename(tree["model"], "hidden", "width"),
        lambda flat: rename(flat, "hidden", "width"),
    ),
    "removed from a section": (
        lambda tree: tree["memory"].update(hops=1),
        lambda flat: flat["memory"].update(hops=1),
    ),
    "removed from the model": (
        lambda tree: tree["model"].update(bias=False),
        lambda flat: flat.update(bias=False),
    ),
}


@pytest.mark.parametrize("form", OLD_FORMS)
def test_a_run_with_old_settings_loads(form, tmp_path):
    run = stored_run(tmp_path, *OLD_FORMS[form])
    loaded, expected = open_model(run), open_model(STORED / "run")
    assert loaded.lm.cfg == expected.lm.cfg
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded.model(ids).logits, expected.model(ids).logits)
    loaded.model.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert not {"width", "bias"} & written.keys() and not {"places", "hops"} & written["memory"].keys()
    assert (written["hidden"], written["memory"]["slots"]) == (16, 8)


@pytest.mark.parametrize("form", ["renamed in a section", "removed from the model"])
def test_a_run_with_old_settings_resumes(form, tmp_path):
    run = stored_run(tmp_path, *OLD_FORMS[form])
    command = ["train", "tiny", *SETTINGS, "--data", str(STORED / "data"), "--out", str(run), "--resume"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in record if "loss" in line}
    assert losses[12] == pytest.approx(EXPECTED["resumed_loss"]["12"], abs=1e-6)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda flat: flat["memory"].update(hops=2), "memory.hops = 2: this setting was removed"),
        (lambda flat: flat.update(bias=True), "model.bias = True: this setting was removed"),
        (lambda flat: flat.update(width=16), "model.width = 16: model.hidden = 16 sets the same setting"),
    ],
)
def test_a_run_that_needs_a_removed_setting_is_refused(edit, told, tmp_path):
    run = stored_run(tmp_path, lambda tree: None, edit)
    with pytest.raises(GMTError) as error:
        open_model(run)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_resuming_a_run_that_needs_a_removed_setting_is_refused(tmp_path):
    run = stored_run(tmp_path, lambda tree: tree["train"].update(fancy=2.0), lambda flat: None)
    command = ["train", "tiny", *SETTINGS, "--data", str(STORED / "data"), "--out", str(run), "--resume"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and f"train.fancy = 2.0: {REFUSED.format(0.5)}" in result.output


def test_config_json_reports_all_its_problems_together(tmp_path):
    stored = json.loads((STORED / "export" / "config.json").read_text())
    stored |= {"bias": True, "heads": 3, "memory": stored["memory"] | {"hops": 2}}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError) as error:
        AutoConfig.from_pretrained(tmp_path)
    lines = str(error.value).splitlines()
    assert lines[0] == "3 wrong settings:"
    for part in ("model.bias = True", "memory.hops = 2", "model.heads = 3"):
        assert any(part in line for line in lines[1:]), part


def test_a_setting_may_have_moved_between_the_model_and_a_section(monkeypatch):
    """The model section is flat in config.json, the others are not."""
    monkeypatch.setattr(migrate, "RENAMED", {"model.places": "memory.slots", "losses.hidden": "model.hidden"})
    stored = GMTPretrainedConfig.from_gmt(GMTConfig.preset("tiny")).to_dict()
    stored["places"] = stored["memory"].pop("slots")
    stored["losses"]["hidden"] = stored.pop("hidden")
    config = GMTPretrainedConfig.from_dict(stored)
    assert config.to_gmt().memory == GMTConfig.preset("tiny").memory and config.hidden == 128
    assert config.to_gmt().losses == GMTConfig().losses


def test_the_names_of_transformers_still_work():
    config = GMTPretrainedConfig.from_dict({"hidden_size": 24, "num_hidden_layers": 3, "heads": 2})
    assert (config.hidden, config.hidden_size, config.blocks, config.num_hidden_layers) == (24, 24, 3, 3)
    config.vocab_size = 99
    assert config.to_gmt().model == ModelConfig(hidden=24, blocks=3, heads=2, vocab=99)


def test_an_old_name_given_to_the_constructor_is_not_ignored():
    """Only files are translated. In a program the old name is an error that gives the new one."""
    with pytest.raises(ConfigError, match=r"model\.width = 24: model\.hidden = 768 sets the same setting"):
        GMTPretrainedConfig(width=24).to_gmt()
    with pytest.raises(ConfigError, match=r"model\.bias = True: this setting was removed"):
        GMTPretrainedConfig(bias=True).to_gmt()
    assert GMTPretrainedConfig(bias=False).to_gmt() == GMTPretrainedConfig().to_gmt()
