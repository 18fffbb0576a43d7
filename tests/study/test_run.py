"""A study of tiny models on a CPU: planned, killed, resumed, reported; and what it does with a run that fails."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from gmt.cli import app
from gmt.errors import GMTError
from gmt.study.file import load_study
from gmt.study.plan import gather, wanted_runs
from gmt.study.run import Process, RunOptions, run_study
from gmt.train.metrics import read_metrics
from tests.train.conftest import make_data

STEPS = 150
TREE = {
    "question": "Does memory end lower than none?",
    "base": "tiny",
    "settings": {
        "model.blocks": 2, "model.hidden": 8, "model.heads": 2, "model.context": 8, "model.vocab": 23,
        "memory.slots": 6, "memory.navigation": 4, "train.micro_batch": 4, "train.device": "cpu",
        "validation.every": 50, "validation.batches": 3, "save.every": 1000, "save.best": False,
    },
    "tokens": STEPS * 32,
    "seeds": [0, 1],
    "rates": [1e-2],
    "arms": {"memory": {}, "none": {"model.sublayer": "none"}},
}  # fmt: skip


def gmt(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The study's file, its data, and its runs: killed once while two were under way, then finished."""
    root = tmp_path_factory.mktemp("study")
    data = make_data(root / "data", tokens=8000)
    file, out = root / "twins.yaml", root / "out"
    file.write_text(yaml.safe_dump(TREE, sort_keys=False))
    command = [sys.executable, "-m", "gmt", "study", str(file), "--data", str(data), "--out", str(out)]
    process = subprocess.Popen([*command, "--side-by-side", "2"], stderr=subprocess.PIPE, text=True, env={**os.environ})
    until = time.monotonic() + 120
    while len(under_way := [p for p in out.glob("runs/*/metrics.jsonl") if read_metrics(p)]) < 2:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    return {"root": root, "file": file, "data": data, "out": out, "code": process.returncode, "said": said,
            "under_way": [path.parent for path in under_way]}  # fmt: skip


@pytest.fixture(scope="module")
def finished(place):
    before = {folder: len(read_metrics(folder / "metrics.jsonl")) for folder in place["under_way"]}
    told = []
    study = load_study(place["file"])
    outcome = run_study(study, RunOptions(place["data"], place["out"], 2), lambda *event: told.append(event))
    return {**place, "study": study, "outcome": outcome, "told": told, "before": before}


def test_a_plan_does_nothing(place, tmp_path):
    shown = gmt("--plan", place["file"], "--out", tmp_path / "nothing")  # options may stand first
    assert shown.exit_code == 0 and not (tmp_path / "nothing").exists()
    assert "4 runs of 4,800 tokens, 19,200 tokens still to be read" in shown.output
    assert "Does memory end lower" in shown.output and "hours" in shown.output


def test_killed_it_saves_and_says_how_to_go_on(place):
    assert place["code"] == 75, place["said"]
    assert "the same command goes on" in place["said"]
    for folder in place["under_way"]:
        assert list((folder / "checkpoints").iterdir()) or json.loads((folder / "run.json").read_text())["finished"]


def test_resumed_it_comes_to_its_end(finished):
    assert finished["outcome"].failed == {} and finished["outcome"].stopped is None
    results, missing = gather(finished["study"], finished["out"])
    assert len(results) == 4 and missing == []
    resumed = [f for f in finished["under_way"] if "resumed at step" in (f / "train.log").read_text()]
    assert resumed, "the runs that were killed began anew"
    for folder in (finished["out"] / "runs").iterdir():
        steps = [line["step"] for line in read_metrics(folder / "metrics.jsonl") if "task" in line]
        assert steps == list(range(1, STEPS + 1))


def test_progress_counts_what_was_done_before(finished):
    progress = [values for event, values in finished["told"] if event == "progress"]
    assert progress[0]["tokens"] > 0 and progress[-1]["tokens"] == progress[-1]["of"] == 4 * STEPS * 32
    assert progress[-1]["finished"] == progress[-1]["runs"] == 4


def test_finished_runs_are_skipped(finished):
    told = []
    run_study(finished["study"], RunOptions(finished["data"], finished["out"]), lambda *event: told.append(event))
    assert [event for event, _ in told] == ["progress"]


def test_another_study_takes_an_equal_run_as_its_own(finished):
    other = TREE | {"arms": {"the same": {}}, "seeds": [1, 0]}
    file = finished["root"] / "other.yaml"
    file.write_text(yaml.safe_dump(other, sort_keys=False))
    results, missing = gather(load_study(file), finished["out"])
    assert [(r.arm, r.seed) for r in results] == [("the same", 1), ("the same", 0)] and missing == []


def test_the_report_says_what_the_records_say(finished):
    shown = gmt("report", finished["file"], "--out", finished["out"])
    assert shown.exit_code == 0, shown.output
    folder = finished["out"] / "reports" / "twins"
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert len(rows) == 4
    for run in wanted_runs(finished["study"], []):
        lines = read_metrics(run.folder(finished["out"]) / "metrics.jsonl")
        (row,) = [r for r in rows if (r["arm"], int(r["seed"])) == (run.arm, run.seed)]
        last = [line["val_loss"] for line in lines if "val_loss" in line][-1]
        assert float(row["loss"]) == pytest.approx(last, abs=1e-9)
    text = (folder / "report.md").read_text()
    assert "none" in shown.output and "none differs from memory in model.sublayer: memory to none" in text
    assert "4,800 tokens in 150 steps of 32" in text and "cpu, gmt" in text


def test_other_data_are_refused(finished, tmp_path):
    data = make_data(tmp_path / "data", tokens=8000, seed=1)
    shown = gmt(finished["file"], "--data", data, "--out", finished["out"])
    assert shown.exit_code == 1 and "was trained on other data" in shown.output


@pytest.mark.slow
def test_one_failure_is_not_anothers(place, tmp_path):
    """More slots than a micro-batch has tokens: k-means cannot begin, and only the run itself finds out."""
    arms = {"bad": {"memory.slots": 33, "memory.init": "k-means"}, "good": {}}
    tree = TREE | {"arms": arms, "seeds": [0], "tokens": 320}
    file = tmp_path / "half.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    shown = gmt(file, "--data", place["data"], "--out", tmp_path / "out", "--no-keep-checkpoints")
    assert shown.exit_code == 1
    assert (
        "1 runs failed" in shown.output and "bad, rate 0.01, seed 0: error: k-means of 33 slots needs" in shown.output
    )
    results, missing = gather(load_study(file), tmp_path / "out")
    assert [r.arm for r in results] == ["good"] and [run.arm for run in missing] == ["bad"]
    assert not list((tmp_path / "out").glob("runs/good*/checkpoints"))
    report = gmt("report", file, "--out", tmp_path / "out")
    assert report.exit_code == 0 and "No run of the reference, bad" in report.output


# with two side by side, a failed run is tried again
@pytest.mark.parametrize("side_by_side", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_that_cannot_be_resumed_is_failed_and_the_others_continue(place, tmp_path, side_by_side):
    """A record without a checkpoint, as kill -9 leaves it: the run is not started over, and it is named."""
    tree = TREE | {"seeds": [0], "tokens": 320}
    file, out = tmp_path / "lost.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    lost = next(run for run in wanted_runs(load_study(file), []) if run.arm == "memory").folder(out)
    lost.mkdir(parents=True)
    (lost / "metrics.jsonl").write_text('{"step": 7, "task": 1.0}\n')
    shown = gmt(file, "--data", place["data"], "--out", out, "--force", "--side-by-side", side_by_side)
    assert shown.exit_code == 1 and "1 runs failed" in shown.output
    assert "memory, rate 0.01, seed 0: error:" in shown.output
    reason = "has the record of 7 steps in metrics.jsonl but no checkpoint to resume from"
    assert reason in " ".join(shown.output.split())
    results, missing = gather(load_study(file), out)
    assert [r.arm for r in results] == ["none"] and [run.arm for run in missing] == ["memory"]
    assert (lost / "metrics.jsonl").read_text() == '{"step": 7, "task": 1.0}\n'


@pytest.mark.slow
def test_a_run_that_fails_beside_others_is_tried_once_more_alone(place, tmp_path, monkeypatch):
    begin, end, told, alive = Process.__init__, Process.end, [], []

    def watched(self, *args):
        begin(self, *args)
        alive[:] = [process for process in alive if process.running] + [self]

    def out_of_memory(self, *args):
        if self.run.arm == "none" and sum(event == "failed" for event, _ in told) < failures:
            return "CUDA out of memory"
        return end(self, *args)

    monkeypatch.setattr(Process, "__init__", watched)
    monkeypatch.setattr(Process, "end", out_of_memory)
    tree = TREE | {"seeds": [0], "tokens": 320}
    file = tmp_path / "twice.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    for failures, out in ((1, "one"), (2, "two")):
        told.clear()
        options = RunOptions(place["data"], tmp_path / out, 2)
        outcome = run_study(load_study(file), options, lambda *event: told.append(event))
        started = [values["run"] for event, values in told if event == "started"]
        assert started.count("none, rate 0.01, seed 0") == 2 and len(started) == 3
        assert [process.run.arm for process in alive] == ["none"], "the second time it is alone"
        assert len(outcome.failed) == failures - 1, "and no third time"


def test_the_last_words_are_of_the_last_try(place, tmp_path):
    """A run's log goes on where an earlier try ended."""
    arms = {"bad": {"memory.slots": 33, "memory.init": "k-means"}, "good": {}}
    file = tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump(TREE | {"arms": arms, "seeds": [0], "tokens": 320}, sort_keys=False))
    study, out = load_study(file), tmp_path / "out"
    (bad, _) = wanted_runs(study, [])
    bad.folder(out).mkdir(parents=True)
    (bad.folder(out) / "train.log").write_text("error: CUDA out of memory\n")
    process = Process(bad, RunOptions(place["data"], out), "", "")
    process.process.kill()
    process.process.wait()
    assert "out of memory" not in process.last_words()


def test_a_run_that_diverges_is_known_and_worst(place, tmp_path):
    """A decay of 1 - 10 * 10 makes weights 99 times larger each step. It is not run again, and counts as infinite."""
    arms = {"wild": {"train.weight_decay": 10.0}, "good": {"train.weight_decay": 0.0}}
    tree = TREE | {"arms": arms, "seeds": [0], "tokens": 3200, "rates": [10.0]}
    file = tmp_path / "wild.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    told = []
    for _ in range(2):
        outcome = run_study(load_study(file), RunOptions(place["data"], tmp_path / "out", 2), lambda *e: told.append(e))
        assert outcome.failed == {}
    assert [values["run"] for event, values in told if event == "diverged"] == ["wild, rate 10, seed 0"]
    assert sum(event == "started" for event, _ in told) == 2, "the second time nothing is run"
    results, missing = gather(load_study(file), tmp_path / "out")
    assert missing == [] and [math.isinf(r.loss) for r in results] == [True, False]
    assert "not finite" in gmt("report", file, "--out", tmp_path / "out").output


def test_a_run_whose_record_is_cut_off_is_not_begun_for_ever(finished, tmp_path):
    study, out = finished["study"], tmp_path / "out"
    shutil.copytree(finished["out"], out)
    broken = wanted_runs(study, [])[0].folder(out)
    lines = (broken / "metrics.jsonl").read_text().splitlines()
    (broken / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    outcome = run_study(study, RunOptions(finished["data"], out))
    assert list(outcome.failed) == ["memory, rate 0.01, seed 0"]
    assert "without a last validation" in outcome.failed["memory, rate 0.01, seed 0"]


def test_a_folder_with_other_settings_is_refused(finished, tmp_path):
    study, out = finished["study"], tmp_path / "out"
    shutil.copytree(finished["out"], out)
    config = wanted_runs(study, [])[0].folder(out) / "config.yaml"
    config.write_text(config.read_text().replace("every: 110", "every: 55"))
    with pytest.raises(GMTError, match=r"other settings \(maintenance\.every: 55 -> 110"):
        gather(study, out)


def test_one_arm_alone(finished, tmp_path):
    told = []
    options = RunOptions(finished["data"], tmp_path, only=("none",))
    study = replace(finished["study"], seeds=(0,), tokens=320, rate_seeds=1)
    run_study(study, options, lambda *event: told.append(event))
    assert [values["run"] for event, values in told if event == "started"] == ["none, rate 0.01, seed 0"]
    assert told[-1][1]["tokens"] == told[-1][1]["of"] == 320
    with pytest.raises(GMTError, match="there is no arm 'some'; there are memory, none"):
        run_study(study, options._replace(only=("some",)))


@pytest.mark.parametrize(("arguments", "said"), [
    (["--gpus", "71"], "there is no GPU 71"),
    (["--out", "FILE/x"], "cannot write to"),
])  # fmt: skip
def test_bad_options_are_one_sentence(place, tmp_path, arguments, said):
    (tmp_path / "file").write_text("")
    arguments = [a.replace("FILE", str(tmp_path / "file")) for a in arguments]
    shown = gmt(
        *arguments, place["file"], "--data", place["data"], *([] if "--out" in arguments else ["--out", tmp_path])
    )
    assert shown.exit_code == 1 and said in shown.output and "Traceback" not in shown.output


def test_nothing_to_report_is_one_sentence(place, tmp_path):
    shown = gmt("report", place["file"], "--out", tmp_path)
    assert shown.exit_code == 1 and "holds no finished run" in shown.output
    assert gmt(place["file"]).exit_code == 1
