"""`gmt bench`: everything in one table, nothing timed that is not right, on a CPU too."""

import json

import pytest
import torch
from typer.testing import CliRunner

from gmt.bench import run
from gmt.bench.timing import in_turns
from gmt.cli import app
from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.model import parity
from gmt.model.flops import training_flops

CPU = torch.device("cpu")


def cli(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.mark.slow
def test_all_models_stand_in_one_table(tmp_path):
    out = tmp_path / "bench.json"
    shown = cli("--size", "tiny", "--batch", "1", "--rounds", "2", "--eager", "--device", "cpu", "--out", out)
    assert shown.exit_code == 0, shown.output
    result = json.loads(out.read_text())
    assert {(row["kind"], row["model"]) for row in result["rows"]} == {
        (kind, model)
        for kind in ("cell", "cells", "step", "decode")
        for model in ("dense-1050", "dense-205", "memory", "memory, plain")
        if (kind, model) != ("decode", "memory, plain")
    }
    for row in result["rows"]:
        assert row["low_ms"] <= row["ms"] <= row["high_ms"]
        if row["model"] == "dense-1050":
            assert row["speed"] == 1
        if row["kind"] == "step":
            cfg = run.configs("tiny")[row["model"]]
            wanted = training_flops(cfg) * row["tokens_per_s"] / result["matrix_flops"]
            assert row["utilisation"] == pytest.approx(wanted)
    assert "TFLOP/s" in shown.output and "| step | 1 | memory |" in shown.output


def test_a_run_that_is_cut_off_leaves_what_it_measured(monkeypatch, tmp_path):
    from gmt.bench import cases

    monkeypatch.setattr(cases, "decode", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    out = tmp_path / "bench.json"
    command = ("cell", "decode", "--size", "tiny", "--batch", "1", "--rounds", "1", "--eager", "--device", "cpu")
    assert cli(*command, "--out", out).exit_code == 130
    assert {row["kind"] for row in json.loads(out.read_text())["rows"]} == {"cell"}


@pytest.mark.slow
def test_what_is_not_right_is_not_timed(monkeypatch):
    cfg = GMTConfig.preset("tiny")
    monkeypatch.setattr(parity, "cell_distances", lambda *_: {"displacement": 0.5, "usage": float("nan"), "track": 0.0})
    monkeypatch.setattr(parity, "loss_distances", lambda *_: {"loss": 0.0})
    monkeypatch.setattr(parity, "repeat_distances", lambda *_: {"track": 0.0})
    with pytest.raises(GMTError, match=r"not timed: .*cell, 1000: displacement 5\.0e-01, cell, 1000: usage nan"):
        parity.check(cfg, CPU, "bf16")


def test_the_fused_operators_pass_their_check():
    pytest.importorskip("triton")
    cfg = GMTConfig.preset("tiny", "model.hidden=32", "model.vocab=50", "memory.slots=12")
    found = parity.cell_distances(cfg, CPU, "fp32", tokens=40)
    assert len(found) > 10 and max(found.values()) < parity.MOST["fp32"]
    assert max(parity.loss_distances(cfg, CPU, "fp32", tokens=20).values()) < 1e-5


def test_what_does_not_repeat_bit_for_bit_is_found_and_not_timed(monkeypatch):
    pytest.importorskip("triton")
    cfg = GMTConfig.preset("tiny", "model.hidden=32", "model.vocab=50", "memory.slots=12")
    assert set(parity.repeat_distances(cfg, CPU, "fp32", tokens=40).values()) == {0.0}
    fused, passes = parity.fused_forward, iter(range(4))

    def racing(*args):
        out, seen = fused(*args)
        return out, seen._replace(track=seen.track * (1 + 1e-6 * (next(passes) == 2)))  # one pass of four

    monkeypatch.setattr(parity, "fused_forward", racing)
    found = parity.repeat_distances(cfg, CPU, "fp32", tokens=40)
    assert found["track"] == float("inf") and found["displacement"] == 0.0
    monkeypatch.setattr(parity, "repeat_distances", lambda *_: found)
    monkeypatch.setattr(parity, "_cell_and_sums", lambda *_: {})
    with pytest.raises(GMTError, match=r"not timed: .*or from themselves.*cell, 8192, again: track inf"):
        parity.check(cfg, CPU, "fp32")


def test_attention_with_dropout_passes_its_check_and_fails_with_another_hash(monkeypatch):
    pytest.importorskip("triton")
    cfg = GMTConfig.preset("tiny", "model.hidden=32", "model.heads=2", "model.dropout=0.2")
    given = cfg, torch.device("cpu"), "fp32", 40
    assert max(parity.attention_distances(*given).values()) < 1e-5
    kept = parity._kept
    monkeypatch.setattr(parity, "_kept", lambda seed, *others: kept(seed + 1, *others))
    assert min(parity.attention_distances(*given).values()) > 0.1


def test_turns_are_taken():
    calls: list[str] = []
    times = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, rounds=2)
    assert calls == ["a", "b"] * 4
    assert set(times) == {"a", "b"}


BAD = [
    (["nothing"], "there is nothing called 'nothing' to time"),
    (["--size", "huge"], "there is no size 'huge'"),
    (["--batch", "8,x"], "--batch takes whole numbers"),
    (["--precision", "fp8"], "there is no precision 'fp8'"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD)
def test_bad_input_is_one_sentence(arguments, told):
    shown = cli(*arguments, "--device", "cpu")
    assert shown.exit_code == 1 and told in shown.output
