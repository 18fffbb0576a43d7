"""20 steps equal 10 + a fresh process + 10, bit for bit."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
import yaml

from gmt.checkpoint import writer as writer_module
from gmt.checkpoint.format import write_checkpoint
from gmt.config import GMTConfig
from gmt.config.compare import differences
from gmt.errors import GMTError
from gmt.train import saving
from gmt.train.lock import Lock
from gmt.train.loop import Options, Run
from gmt.train.metrics import read_metrics
from tests.train.conftest import assert_equal, checkpoint, config, forked, make_data, train

# 2000 tokens are 249 windows: 15 steps of 16 an epoch, so that the second half crosses into another epoch
CASES = {
    "plain": [],
    "dropout, float32": ["model.dropout=0.2", "train.precision=fp32"],
    "bfloat16": ["model.dropout=0.1", "train.precision=bf16"],
    "adaptive-carry": ["validation.mode=adaptive-carry", "model.dropout=0.1"],
    "dense": ["model.sublayer=dense", "model.dense_width=9", "model.dropout=0.1"],
    "compiled": ["train.compile=true", "model.dropout=0.1"],
}


def halves(cfg, data, out, stop_after=10):
    """Ten steps, then the rest in another process; the first is stopped by a signal at that step."""

    def first():
        run = Run(cfg, Options(data, out))

        def tell(event, values):
            if event == "step" and values["step"] >= stop_after - 1:
                run.interruption.received = 15

        run.tell = tell
        return run.go()

    assert forked(first) == 75
    assert forked(lambda: train(cfg, data, out, resume=True)) == 0


def without_clock(lines):
    return [{k: v for k, v in line.items() if k not in ("tokens_per_second", "tflops")} for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_twenty_are_ten_and_ten(tmp_path, case):
    cfg, data = config(*CASES[case]), make_data(tmp_path / "data")
    if case == "compiled":
        torch._dynamo.reset()  # the forks then know of no other test's shapes, as a process of its own would not
    assert forked(lambda: train(cfg, data, tmp_path / "whole")) == 0
    halves(cfg, data, tmp_path / "halves")
    assert_equal(checkpoint(tmp_path / "whole", 20), checkpoint(tmp_path / "halves", 20))
    lines = [without_clock(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("whole", "halves")]
    assert lines[0] == lines[1], "losses, terms and validations too"
    assert [line["step"] for line in lines[0] if "task" in line] == list(range(1, 21))
    if case == "plain":
        assert sum(line.get("resets", 0) for line in lines[0]) > 0, "the case needs maintenance that does something"


def test_the_command_resumes_in_a_fresh_interpreter(tmp_path):
    cfg, data = config("model.dropout=0.1"), make_data(tmp_path / "data")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(cfg.to_dict()))
    forked(lambda: train(cfg, data, tmp_path / "whole"))
    command = [sys.executable, "-m", "gmt", "train", str(tmp_path / "c.yaml"), "--data", str(data)]
    command += ["--out", str(tmp_path / "run")]
    forked(lambda: train(config("model.dropout=0.1", "save.every=5"), data, tmp_path / "run"))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000020")  # as if it had been lost
    # bits depend on the order of sums, and so on the number of threads
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "resumed at step 15" in done.stdout
    assert_equal(checkpoint(tmp_path / "whole", 20), checkpoint(tmp_path / "run", 20))


MEMORY = ("memory.usage", "memory.age", "memory.centroids")
LEFT_OUT = {
    "a moment": ("optimizer", lambda name: name.endswith("exp_avg_sq")),
    "the step of AdamW": ("optimizer", lambda name: name.endswith(".step")),
    "a norm": ("model", lambda name: name.endswith("norm_final.bias")),
}


def zeroed(monkeypatch, kind, wanted):
    """Checkpoints are saved with some tensors zeroed, and with hashes that fit what is saved."""
    original = saving.save

    def forgetful(tensors, **kwargs):
        is_model = any(name.startswith("model.") for name in tensors)
        if is_model == (kind == "model"):
            tensors = {name: t * 0 if wanted(name) else t for name, t in tensors.items()}
        return original(tensors, **kwargs)

    monkeypatch.setattr(saving, "save", forgetful)


@pytest.mark.parametrize("piece", LEFT_OUT)
def test_a_piece_left_out_is_seen(tmp_path, monkeypatch, piece):
    """The control: with any one piece zeroed in the checkpoint, the comparison above fails."""
    cfg, data = config(), make_data(tmp_path / "data")
    assert forked(lambda: train(cfg, data, tmp_path / "whole")) == 0
    zeroed(monkeypatch, *LEFT_OUT[piece])
    halves(cfg, data, tmp_path / "halves")
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_equal(checkpoint(tmp_path / "whole", 20), checkpoint(tmp_path / "halves", 20))


@pytest.mark.parametrize("piece", MEMORY)
def test_a_memory_that_differs_from_its_stored_hash_is_refused(tmp_path, monkeypatch, piece):
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    zeroed(monkeypatch, "model", lambda name: name.endswith(piece))
    assert forked(lambda: train(config("train.steps=5"), data, out)) == 0
    monkeypatch.undo()
    with pytest.raises(GMTError, match=r"step-00000005: the loaded memory differs from the hash in progress\.json"):
        train(config("train.steps=5"), data, out, resume=True)


FORCED = {
    "slots": ("memory.slots=4", r"model\.blocks\.0\.memory\.age is float64 \[6\], expected float64 \[4\]"),
    "hidden size": ("model.hidden=16", r"is float64 \[.*\], expected float64 \[.*16.*\]"),
    "sublayer": ("model.sublayer=none", r"model\.blocks\.0\.memory\.\w+ is unknown; .* and \d+ more"),
    "precision": ("train.precision=fp32", r"is float64 \[.*\], expected float32"),
    "context": (
        "model.context=4",
        r"position_embedding\.weight is float64 \[8, 8\], expected float64 \[4, 8\]",
    ),
}


@pytest.mark.parametrize("case", FORCED)
def test_force_does_not_load_tensors_that_do_not_fit(tmp_path, case):
    """Names, shapes and types are compared before anything is copied."""
    change, message = FORCED[case]
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    assert forked(lambda: train(config("train.steps=5"), data, out)) == 0
    with pytest.raises(GMTError, match=rf"step-00000005 does not fit this model: .*{message}"):
        train(config("train.steps=5", change), data, out, resume=True, force=True)


def listing(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damaged_run(tmp_path, steps):
    """A run with checkpoints of steps 2 and 4, of which some have one changed byte."""
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    settings = ("train.steps=4", "save.every=2", "validation.every=4")
    assert forked(lambda: train(config(*settings), data, out)) == 0
    for step in steps:
        path = out / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    return config(*settings), data, out


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_over(tmp_path):
    """One line per checkpoint, and nothing is written."""
    cfg, data, out = damaged_run(tmp_path, (2, 4))
    before, reason = listing(out), "model.safetensors is damaged (its hash differs from the manifest)"
    with pytest.raises(GMTError) as error:
        train(cfg, data, out, resume=True)
    first, *lines = str(error.value).splitlines()
    assert "cannot be resumed: no checkpoint is usable" in first
    assert lines == [f"  step-0000000{step}: {reason}" for step in (4, 2)]
    assert listing(out) == before


def test_the_newest_usable_checkpoint_is_resumed_with_a_warning(tmp_path):
    cfg, data, out = damaged_run(tmp_path, (4,))
    events = []
    assert train(cfg, data, out, lambda *event: events.append(event), resume=True) == 0
    told = dict(events)
    assert told["damaged"]["step"] == told["resumed"]["step"] == 2
    assert told["damaged"]["reasons"][0].startswith("step-00000004: model.safetensors is damaged")


def test_a_record_without_a_checkpoint_is_not_started_over(tmp_path):
    cfg, data, out = damaged_run(tmp_path, ())
    shutil.rmtree(out / "checkpoints")
    before = listing(out)
    with pytest.raises(GMTError, match=r"has the record of 4 steps in metrics\.jsonl but no checkpoint to resume from"):
        train(cfg, data, out, resume=True)
    assert listing(out) == before


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("record", ['{"step": 7, "task": 1}\n\n', "\0" * 100, '{"step": 7', "notes of somebody else\n"])
def test_a_record_that_cannot_be_read_is_not_erased(tmp_path, record, resume):
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text(record)
    with pytest.raises(GMTError, match=r"in metrics\.jsonl but no checkpoint to resume from"):
        train(config("train.steps=2"), data, out, resume=resume)
    assert (out / "metrics.jsonl").read_text() == record


def test_settings_and_fields_of_a_newer_version_are_refused(tmp_path):
    cfg, data, out = damaged_run(tmp_path, ())
    path = out / "checkpoints" / "step-00000004"
    progress = json.loads((path / "progress.json").read_text())
    for change, message in (
        ({"config": progress["config"] | {"memory": progress["config"]["memory"] | {"walk_length": 7}}},
         r"memory\.walk_length: 7 -> unknown in this version"),
        ({"later": 1}, r"progress\.json has unknown fields \(later\): use the newer gmt"),
    ):  # fmt: skip
        files = {p.name: p.read_bytes for p in path.iterdir() if p.name != "MANIFEST.json"}
        contents = {name: read() for name, read in files.items()}
        contents["progress.json"] = json.dumps(progress | change).encode()
        write_checkpoint(path, {name: (lambda content=content: content) for name, content in contents.items()})
        with pytest.raises(GMTError, match=message):
            train(cfg, data, out, resume=True)


def test_the_lock_is_held_until_the_last_checkpoint_is_written(tmp_path, monkeypatch):
    """The loop fails while a checkpoint is being written; another process must not repair the folder meanwhile."""
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    original, seen = writer_module.write_checkpoint, []

    def slow(target, files):
        time.sleep(0.5)
        with pytest.raises(GMTError, match="another process is training"):
            Lock(out).take()
        seen.append("locked")
        original(target, files)

    monkeypatch.setattr(writer_module, "write_checkpoint", slow)

    def tell(event, values):
        if event == "saved":
            raise RuntimeError("the loop fails")

    with pytest.raises(RuntimeError, match="the loop fails"):
        train(config("train.steps=4", "save.every=2", "validation.every=4"), data, out, tell)
    assert seen == ["locked"] and (out / "checkpoints" / "step-00000002").is_dir()


def test_resume_in_an_empty_folder_starts_and_prints_so(tmp_path):
    events = []
    cfg, data = config("train.steps=2"), make_data(tmp_path / "data")
    assert train(cfg, data, tmp_path / "run", lambda *event: events.append(event), resume=True) == 0
    assert ("fresh", {"path": str(tmp_path / "run")}) in events


def test_other_settings_or_data_are_refused_with_the_difference(tmp_path):
    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    assert forked(lambda: train(config("train.steps=5"), data, out)) == 0
    with pytest.raises(GMTError, match=r"losses\.track: 1\.0 -> 2\.0") as error:
        train(config("train.steps=5", "losses.track=2"), data, out, resume=True)
    assert "train.steps" not in str(error.value)
    other = make_data(tmp_path / "other", seed=1)
    with pytest.raises(GMTError, match=r"data: \w+ -> \w+ \(hash of the data set\)"):
        train(config("train.steps=5"), other, out, resume=True)
    assert train(config("train.steps=5", "losses.track=2"), other, out, resume=True, force=True) == 0
    assert train(config("train.steps=5", "save.keep=1", "train.recompute=true"), data, out, resume=True) == 0
    with pytest.raises(GMTError, match="already contains a run; add --resume"):
        train(config("train.steps=5"), data, out)


def test_a_checkpoint_is_a_hugging_face_directory(tmp_path):
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    import gmt.hf  # noqa: F401

    data, out = make_data(tmp_path / "data"), tmp_path / "run"
    train(config("train.steps=4", "train.precision=fp32"), data, out)
    folder = out / "checkpoints" / "step-00000004"
    model = AutoModelForCausalLM.from_pretrained(folder)
    saved = checkpoint(out, 4)
    assert all(bool((tensor == saved[f"model.{name}"]).all()) for name, tensor in model.model.state_dict().items())
    assert model.model.tau < 1 and model.config.facts["steps"] == 4
    assert PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).vocab_size == 257
    names = {p.suffix for p in folder.iterdir()}
    assert names == {".json", ".safetensors"}, "nothing in it is a pickle"
    assert json.loads((folder / "progress.json").read_text())["best"]["step"] == 4


def test_what_was_saved_before_a_default_changed_counts_as_it_was():
    old = GMTConfig().to_dict()
    del old["model"]["attention"]
    assert differences(old, GMTConfig()) == ["model.attention: torch -> auto"]
    assert differences(old, GMTConfig.preset("gmt-v7-base", "model.attention=torch", "validation.mode=frozen")) == []
    del old["train"]["deterministic"]  # how a run computes, not what
    free = ["validation.mode=frozen", "train.deterministic=false"]
    assert differences(old, GMTConfig.preset("gmt-v7-base", "model.attention=torch", *free)) == []
