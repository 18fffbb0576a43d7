"""The optional loggers, with stand-ins for their packages, and the sentence that names the extra."""

import sys
import types

import pytest

from gmt.errors import GMTError
from gmt.train.metrics import JsonLines, open_loggers, read_metrics
from tests.train.conftest import config


def test_tensorboard_and_wandb_get_the_same_numbers(tmp_path, monkeypatch):
    seen = []

    class Writer:
        def __init__(self, folder):
            pass

        def add_scalar(self, name, value, step):
            seen.append(("tensorboard", name, value, step))

        def close(self):
            seen.append("closed")

    class Wandb:
        def log(self, values, step):
            seen.append(("wandb", values, step))

        def finish(self):
            seen.append("finished")

    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    wandb = types.ModuleType("wandb")
    wandb.init = lambda **kwargs: Wandb()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    loggers = open_loggers(tmp_path, config("save.tensorboard=true", "save.wandb=gmt"), 0)
    for logger in loggers:
        logger.log(3, {"task": 1.5, "mode": "frozen"})
        logger.close()
    assert seen == [
        ("tensorboard", "task", 1.5, 3),
        "closed",
        ("wandb", {"task": 1.5, "mode": "frozen"}, 3),
        "finished",
    ]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 3, "task": 1.5, "mode": "frozen"}]


@pytest.mark.parametrize(("setting", "module"), [("tensorboard=true", "torch.utils.tensorboard"), ("wandb=x", "wandb")])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, setting, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GMTError, match=r"pip install 'graph-memory-transformer\[log\]'"):
        open_loggers(tmp_path, config(f"save.{setting}"), 0)


def test_the_record_is_cut_back_and_half_a_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "task": 3}\n{"step": 2, "task": 2}\n{"step": 3, "task": 1}\n{"step": 4, "ta')
    record = JsonLines(path, resumed=2)
    record.log(3, {"task": 9})
    record.close()
    assert read_metrics(path) == [{"step": 1, "task": 3}, {"step": 2, "task": 2}, {"step": 3, "task": 9}]
    JsonLines(path, resumed=0).close()
    assert read_metrics(path) == []
