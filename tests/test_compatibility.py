"""Artefacts of version 0.1.0 (commit 7a6b6de) load, resume, evaluate and report; `fixtures/make_v0_1.sh` made them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import gmt.hf
from gmt.cli import app
from gmt.data.manifest import verify
from gmt.hf.load import open_model
from gmt.train.metrics import read_metrics

STORED = Path(__file__).parent / "fixtures" / "v0_1"
EXPECTED = json.loads((STORED / "expected.json").read_text())
SETTINGS = [
    "model.blocks=2", "model.hidden=16", "model.heads=2", "model.context=16", "model.vocab=257", "memory.slots=8",
    "memory.navigation=8", "train.micro_batch=4", "train.steps=12", "validation.every=4", "validation.batch=4",
    "validation.batches=4", "maintenance.every=3", "save.keep=3",
]  # fmt: skip


@pytest.fixture
def stored(tmp_path) -> Path:
    """A copy, since commands may write beside what they read; the repository's files stay as they are."""
    return Path(shutil.copytree(STORED, tmp_path / "v0_1"))


def gmt_command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_fixtures_are_small():
    assert sum(path.stat().st_size for path in STORED.rglob("*") if path.is_file()) < 2_000_000


@pytest.mark.parametrize("model", ["run", "run@4", "dense", "export"])
def test_a_model_loads(stored, model):
    loaded = open_model(stored / model)
    saved = load_file(loaded.folder / "model.safetensors")
    for name, tensor in loaded.model.state_dict().items():
        if name in saved:
            assert torch.equal(tensor, saved[name]), name
    assert loaded.step == {"run": 8, "run@4": 4, "dense": 4}.get(model)
    ids = torch.tensor([[1, 2, 3]])
    other = AutoModelForCausalLM.from_pretrained(loaded.folder)
    assert isinstance(other, gmt.hf.GMTForCausalLM)
    assert torch.equal(other.eval()(ids).logits, loaded.model(ids).logits)


@pytest.mark.parametrize("model", ["run", "dense", "export"])
def test_a_model_evaluates_as_before(stored, model, tmp_path):
    gmt_command(
        "eval", stored / model, "--data", stored / "data", "--batch", 4, "--batches", 4, "--out", tmp_path / "r"
    )
    loss = json.loads((tmp_path / "r").read_text())["validation"]["frozen"]["loss"]["value"]
    assert loss == pytest.approx(EXPECTED["validation"][model], abs=1e-6)


@pytest.mark.parametrize("model", ["run", "dense", "export"])
def test_a_model_is_reported(stored, model, tmp_path):
    gmt_command("report", stored / model, "--data", stored / "data", "--blocks", 1, "--out", tmp_path / "report")
    assert (tmp_path / "report" / "index.html").stat().st_size > 10_000


def test_a_run_resumes_as_if_it_had_not_stopped(stored):
    gmt_command("train", "tiny", *SETTINGS, "--data", stored / "data", "--out", stored / "run", "--resume")
    record = {line["step"]: line["loss"] for line in read_metrics(stored / "run" / "metrics.jsonl") if "loss" in line}
    assert sorted(record) == list(range(1, 13))
    for step, loss in EXPECTED["resumed_loss"].items():
        assert record[int(step)] == pytest.approx(loss, abs=1e-6)
    assert open_model(f"{stored / 'run'}@12").step == 12


def test_a_finished_study_is_found_and_reported(stored):
    folders = sorted(path.name for path in (stored / "study" / "runs").iterdir())
    output = gmt_command("study", stored / "study.yaml", "--data", stored / "data", "--out", stored / "study")
    assert "started" not in output and "all runs are finished" in output
    assert sorted(path.name for path in (stored / "study" / "runs").iterdir()) == folders
    gmt_command("study", "report", stored / "study.yaml", "--out", stored / "study")
    assert (stored / "study" / "reports" / "study" / "report.md").exists()


def test_a_data_folder_is_complete(stored):
    assert verify(stored / "data") == []
    assert "step 0" in gmt_command("data", "show", stored / "data", "--context", 16, "--accumulation", 1)
