"""The optional loggers, with stand-ins for their packages, and the sentence that names the extra."""

import sys
import types

import pytest

from gmt.errors import GMTError
from gmt.train.metrics import JsonLines, Loggers, RecordTail, read_metrics
from tests.train.conftest import config, make_data, train


@pytest.fixture
def seen(monkeypatch):
    """Stand-ins for both packages; the list has what they were called with."""
    calls = []

    class Writer:
        def __init__(self, folder, purge_step=None):
            calls.append(("tensorboard", "purge_step", purge_step))

        def add_scalar(self, name, value, step):
            calls.append(("tensorboard", name, value, step))

        def close(self):
            calls.append("closed")

    class Wandb:
        def log(self, values, step):
            calls.append(("wandb", values, step))

        def finish(self):
            calls.append("finished")

    def init(**settings):
        calls.append(("wandb", "init", settings["id"], settings["resume"]))
        return Wandb()

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    wandb = types.ModuleType("wandb")
    wandb.init = init
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return calls


BOTH = ("save.tensorboard=true", "save.wandb=gmt")


def opened(out, *settings, resumed=0, warn=pytest.fail):
    loggers = Loggers(out, warn)
    loggers.open(config(*settings), resumed)
    return loggers


def test_tensorboard_and_wandb_get_the_same_numbers(tmp_path, seen):
    loggers = opened(tmp_path, *BOTH)
    seen.clear()
    loggers.log(3, {"task": 1.5, "mode": "frozen"})
    loggers.close()
    assert seen == [
        ("tensorboard", "task", 1.5, 3),
        ("wandb", {"task": 1.5, "mode": "frozen"}, 3),
        "closed",
        "finished",
    ]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 3, "task": 1.5, "mode": "frozen"}]


def test_a_resumed_run_continues_the_same_wandb_run_and_purges_tensorboard(tmp_path, seen):
    opened(tmp_path, *BOTH).close()
    opened(tmp_path, *BOTH, resumed=7).close()
    ids = [call[2] for call in seen if call[:2] == ("wandb", "init")]
    assert ids[0] == ids[1] and len(ids[0]) == 12
    assert [call[2] for call in seen if call[:2] == ("tensorboard", "purge_step")] == [None, 8]
    opened(tmp_path, *BOTH).close()  # a run that starts at step 1 is another run
    assert seen[-3][2] != ids[0]


def test_a_failing_logger_is_one_warning_and_training_continues(tmp_path, seen, monkeypatch):
    monkeypatch.setattr(sys.modules["wandb"].init(id="", resume="").__class__, "log", _refuse)
    events = []
    settings = ("train.steps=4", "validation.every=4", "save.wandb=gmt")
    data = make_data(tmp_path / "data")
    assert train(config(*settings), data, tmp_path / "run", lambda *event: events.append(event)) == 0
    warnings = [values["message"] for event, values in events if event == "warning"]
    assert len(warnings) == 1
    assert warnings[0].startswith("Weights & Biases failed and is switched off (ConnectionError: no route to host)")
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in line] == [1, 2, 3, 4]


def _refuse(self, values, step):
    raise ConnectionError("no route to host")


def test_a_figure_that_cannot_be_drawn_does_not_stop_a_run(tmp_path, monkeypatch):
    from gmt.train import loop

    def failing(run):
        raise RuntimeError("no font")

    monkeypatch.setattr(loop, "draw_curves", failing)
    events = []
    settings = ("train.steps=2", "validation.every=2")
    data = make_data(tmp_path / "data")
    assert train(config(*settings), data, tmp_path / "run", lambda *event: events.append(event)) == 0
    assert ("warning", {"message": "curves.png was not drawn: RuntimeError: no font"}) in events


@pytest.mark.parametrize(("setting", "module"), [("tensorboard=true", "torch.utils.tensorboard"), ("wandb=x", "wandb")])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, setting, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GMTError, match=r"pip install 'graph-memory-transformer\[log\]'"):
        opened(tmp_path, f"save.{setting}")


def test_the_record_is_cut_back_and_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "task": 3}\n{"step": 2, "task": 2}\n{"step": 3, "task": 1}\n{"step": 4, "ta')
    record = JsonLines(path, resumed=2)
    record.log(3, {"task": 9})
    record.close()
    assert read_metrics(path) == [{"step": 1, "task": 3}, {"step": 2, "task": 2}, {"step": 3, "task": 9}]
    JsonLines(path, resumed=0).close()
    assert read_metrics(path) == []


def test_a_tail_returns_each_complete_line_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = RecordTail(path)
    assert tail.read() == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [line["step"] for line in tail.read()] == [1, 2]
    assert tail.read() == []
    with path.open("a") as file:
        file.write('p": 3}\n')
    assert [line["step"] for line in tail.read()] == [3]
    path.write_text('{"step": 1}\n')  # cut back by a resume
    assert [line["step"] for line in tail.read()] == [1]
