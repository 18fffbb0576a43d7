"""The loop: its schedules at the paper's numbers, its objective, its modes of validation, its interruptions."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gmt.cli import app
from gmt.config import GMTConfig
from gmt.data.batches import Stream, ValidationBatches
from gmt.errors import GMTError
from gmt.evaluate.validation import validate
from gmt.train.loop import Options, Run
from gmt.train.metrics import read_metrics
from gmt.train.schedule import Schedule
from tests.conftest import assert_same, snapshot
from tests.train.conftest import config, forked, make_data, train

GOLDEN = Path(__file__).parent / "golden_trace.json"


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "data")


# --- schedules -------------------------------------------------------------------------------------------------


def test_the_papers_schedule():
    """3e9 tokens in windows of 1024, 8 a micro-batch, 33 of them a step, two epochs."""
    schedule = Schedule(GMTConfig.preset("gmt-v7-base"), 2929687 // (8 * 33))
    assert (schedule.steps_per_epoch, schedule.steps, schedule.warmup) == (11097, 22194, 2000)
    assert schedule.validation_every == 554, "the paper's first logged step"
    assert [schedule.learning_rate(s) for s in (0, 1, 1000, 2000)] == [0.0, 1.5e-7, 1.5e-4, 3e-4]
    assert schedule.learning_rate(12097) == pytest.approx(1.5e-4)
    assert schedule.learning_rate(22194) == pytest.approx(0, abs=1e-18)
    assert schedule.temperature(0) == 1 and schedule.temperature(22194) == pytest.approx(0.1)
    assert schedule.temperature(11097) == pytest.approx(0.1**0.6201145)
    assert [s for s in range(450) if schedule.maintains_after(s)] == [109, 219, 329, 439]


@pytest.mark.parametrize(("steps", "warmup"), [(20000, 2000), (19999, 1999), (500, 50), (5, 0)])
def test_short_runs_cap_the_warm_up(steps, warmup):
    cfg = GMTConfig.preset("gmt-v7-base", f"train.steps={steps}")
    assert Schedule(cfg, 100).warmup == warmup
    assert Schedule(GMTConfig.preset("tiny", f"train.steps={steps}", "train.warmup=3"), 100).warmup == 3


def test_the_plan_prints_them():
    result = CliRunner().invoke(app, ["train", "gmt-v7-base", "--plan"])
    assert result.exit_code == 0
    for part in ("22,194", "5,999,837,184", "82,213,152", "270,336", "1.000000", "0.100000", "0.000e+00"):
        assert part in result.output
    assert len(result.output.split("learning rate")[1].strip().splitlines()) == 10
    assert "hours wanted" in result.output and "memory wanted, GB" in result.output


# --- the objective -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0.5, 1e6])
def test_gradients_are_scaled_to_a_norm_of_at_most_so_much(data, tmp_path, most):
    run = Run(config(), Options(data, tmp_path / "x"))
    for p in list(run.lm.parameters())[1:]:  # one has none
        p.grad = torch.randn_like(p)
    before = {name: p.grad.double().clone() for name, p in run.lm.named_parameters() if p.grad is not None}
    norm = run.parallel.clip(run.lm, most)
    wanted = torch.cat([grad.flatten() for grad in before.values()]).norm()
    assert float(norm) == pytest.approx(float(wanted), rel=1e-5)
    scale = min(1.0, most / (float(wanted) + 1e-6))
    for name, p in run.lm.named_parameters():
        if name in before:
            torch.testing.assert_close(p.grad.double(), before[name] * scale, rtol=1e-5, atol=0)
            assert most < 1e6 or torch.equal(p.grad.double(), before[name])


def gradients(data, tmp_path, micro, accumulation):
    cfg = config(f"train.micro_batch={micro}", f"train.accumulation={accumulation}", "memory.write_back=false",
                 "losses.cluster=0", "train.clip=1000000", "maintenance.every=0")  # fmt: skip
    run = Run(cfg, Options(data, tmp_path / "x"))
    found = {}
    run.optimizer.zero_grad = lambda **_: found.update(
        {name: p.grad.clone() for name, p in run.lm.named_parameters() if p.grad is not None}
    )
    run.stepper(0)
    return found


def test_one_micro_batch_of_eight_is_eight_of_one(data, tmp_path):
    """Cross-entropy and every term that is a mean over tokens or parameters; the usage term is per forward pass."""
    whole, parts = gradients(data, tmp_path, 8, 1), gradients(data, tmp_path, 1, 8)
    assert whole.keys() == parts.keys() and len(whole) > 20
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=0, atol=1e-12, msg=name)


def test_write_back_off_keeps_usage_and_centroids_apart(data, tmp_path):
    run = Run(config("memory.write_back=false"), Options(data, tmp_path / "x"))
    before, usage = run.lm.cells[0].centroids.detach().clone(), run.lm.cells[0].usage.clone()
    out = run.lm(*(torch.from_numpy(a) for a in run.batches.at(0, 0)[:2]))
    run.lm.commit(out.writes)
    assert torch.equal(run.lm.cells[0].centroids, before)
    assert not torch.equal(run.lm.cells[0].usage, usage) and run.lm.cells[0].age[0] == 1


# --- validation --------------------------------------------------------------------------------------------------


def test_validation_modes(data, tmp_path):
    run = Run(config(), Options(data, tmp_path / "x"))
    for step in range(3):
        run.stepper(step)
    lm, batches = run.lm, ValidationBatches(Stream(data, "val"), 8, 8, limit=3)
    before = snapshot(lm)
    frozen = validate(lm, batches, "frozen")
    assert_same(lm, before)
    adaptive = validate(lm, batches, "adaptive")
    assert_same(lm, before)
    assert validate(lm, batches, "adaptive") == adaptive and validate(lm, batches, "frozen") == frozen
    carried = validate(lm, batches, "adaptive-carry")
    assert carried.loss == adaptive.loss and not torch.equal(lm.cells[0].centroids, before["blocks.0.memory.centroids"])
    assert frozen.loss != adaptive.loss
    again = validate(lm, batches, "adaptive-carry")
    assert again.loss != carried.loss, "what the writes changed stayed"
    # by hand, from the definition: the mean over batches of the mean over their tokens
    losses = [lm.eval()(*map(torch.from_numpy, batches.at(i)[:2])).task_loss.item() for i in range(3)]
    assert validate(lm, batches).loss == pytest.approx(sum(losses) / 3, abs=1e-12)
    with pytest.raises(ValueError, match="there is no memory mode 'melted'"):
        validate(lm, batches, "melted")


@pytest.mark.parametrize("mode", ["frozen", "adaptive", "adaptive-carry"])
def test_a_validation_that_is_not_finite_reaches_nothing(data, tmp_path, mode):
    run = Run(config(), Options(data, tmp_path / "x"))
    batches = ValidationBatches(Stream(data, "val"), 8, 8, limit=3)
    before, calls = snapshot(run.lm), []

    def poisoned(module, args, out):
        calls.append(1)
        return out._replace(task_loss=out.task_loss * float("nan")) if len(calls) == 2 else out

    handle = run.lm.register_forward_hook(poisoned)
    with pytest.raises(GMTError, match="the validation loss of batch 2 is not finite"):
        validate(run.lm, batches, mode)
    handle.remove()
    assert_same(run.lm, before)


@pytest.mark.parametrize("mode", ["frozen", "adaptive", "adaptive-carry"])
def test_an_interrupted_validation_leaves_memory_and_is_run_again(data, tmp_path, mode):
    settings = ("train.steps=6", "validation.every=3", f"validation.mode={mode}")
    assert forked(lambda: train(config(*settings), data, tmp_path / "whole")) == 0

    def stopped():
        run = Run(config(*settings), Options(data, tmp_path / "run"))

        def tell(event, values):
            if event == "validating" and values["done"] == 2 and run.done == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        run.tell = tell
        return run.go()

    assert forked(stopped) == 75
    progress = json.loads((tmp_path / "run/checkpoints/step-00000003/progress.json").read_text())
    assert progress["validation_pending"] is True
    assert forked(lambda: train(config(*settings), data, tmp_path / "run", resume=True)) == 0
    lines = [
        {k: v for k, v in line.items() if k not in ("tokens_per_second", "tflops")}
        for name in ("whole", "run")
        for line in read_metrics(tmp_path / name / "metrics.jsonl")
    ]
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_save_at_the_next_step(data, tmp_path, number):
    cfg = config("train.steps=50", "validation.per_epoch=0", "save.every=50")

    def work():
        def tell(event, values):
            if event == "step" and values["step"] == 4:
                os.kill(os.getpid(), number)

        return train(cfg, data, tmp_path / "run", tell)

    assert forked(work) == 75
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert saved.name in ("step-00000005", "step-00000006")


# --- records -------------------------------------------------------------------------------------------------------

PAPERS_DIAGNOSTICS = {
    "n_eff_mean", "n_eff_min", "dead_slots", "centroid_cosine", "coverage", "gate_mean", "gate_min", "gate_max",
    "momentum_mean", "momentum_min", "momentum_max", "edge_entropy", "largest_edge", "edge_row_similarity",
    "track", "ortho", "cluster", "edge", "contrast", "resets", "merges",
}  # fmt: skip


def test_a_run_looks_at_its_kernels_and_its_first_step_once(data, tmp_path, monkeypatch):
    calls = []
    for name in ("check_kernels", "check_routing"):
        monkeypatch.setattr(f"gmt.train.loop.{name}", lambda *given, name=name: calls.append((name, *given[1:])))
    Run(config("train.steps=3"), Options(data, tmp_path / "x")).go()
    assert [call[0] for call in calls] == ["check_kernels", "check_routing"]
    assert calls[1][1] == 1


def test_the_record_has_every_diagnostic(data, tmp_path):
    train(config("train.steps=5", "validation.every=5"), data, tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert {name for line in lines for name in line} >= PAPERS_DIAGNOSTICS
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000
    step = next(line for line in lines if "task" in line)
    weights = {"track": 1.0, "ortho": 0.05, "cluster": 0.3, "edge": 0.1, "contrast": 0.5}
    assert step["loss"] == pytest.approx(step["task"] + sum(w * step[name] for name, w in weights.items()))


def test_diagnostics_by_hand():
    from gmt.memory.diagnostics import memory_diagnostics, usage_diagnostics
    from tests.conftest import small_model

    usage = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    counts = torch.tensor([[3.0, 0, 0, 0], [1, 1, 1, 0]])
    found = usage_diagnostics(usage, counts).tolist()
    assert found == pytest.approx([3.0, 2.0, 0.5], abs=1e-6)
    cells = small_model().cells
    with torch.no_grad():
        for cell in cells:
            cell.centroids.copy_(torch.eye(5, 8))
            cell.centroids[1] = cell.centroids[0]
            cell.edges.zero_()
            cell.gate.fill_(0)
            cell.momentum.fill_(0)
            cell.usage.copy_(torch.tensor([0.001, 0.2, 0.3, 0.3, 0.2]))
    told = memory_diagnostics(cells, dead_below=0.01)
    assert told["dead_slots"] == 2
    assert told["centroid_cosine"] == pytest.approx(2 / 20)
    assert told["edge_entropy"] == pytest.approx(1.3862943, abs=1e-6)  # ln 4
    assert told["largest_edge"] == pytest.approx(0.25)
    assert told["edge_row_similarity"] == pytest.approx(0.75)  # three of four moves in common
    assert told["gate_mean"] == told["momentum_max"] == 0.5


def test_clear_words(data, tmp_path):
    with pytest.raises(GMTError, match=r"the data has 23 token ids, the model 9: set model\.vocab=23"):
        Run(config("model.vocab=9"), Options(data, tmp_path / "x"))
    runner = CliRunner()
    assert "training needs --data" in runner.invoke(app, ["train", "tiny"]).stderr
    missing = runner.invoke(app, ["train", "tiny", "--data", str(tmp_path / "no"), "--out", str(tmp_path / "x")])
    assert missing.exit_code == 1 and "holds no prepared data" in missing.stderr
    wrong = runner.invoke(app, ["train", "tiny", "memory.slots=1", "--plan"])
    assert wrong.exit_code == 1 and "memory.slots = 1" in wrong.stderr
    if not torch.cuda.is_available():
        with pytest.raises(GMTError, match=r"the device asked for is cuda, which this machine does not have"):
            Run(config("train.device=cuda"), Options(data, tmp_path / "x"))


# --- the golden trace ------------------------------------------------------------------------------------------

TERMS = ("task", "track", "ortho", "cluster", "edge", "contrast")


def golden_config() -> GMTConfig:
    return GMTConfig.preset(
        "tiny", "model.vocab=23", "model.context=16", "model.blocks=2", "model.hidden=32", "memory.slots=16",
        "memory.navigation=8", "train.steps=100", "train.micro_batch=4", "train.accumulation=2",
        "train.precision=fp64", "train.device=cpu", "losses.cluster_target=15.5", "losses.edge_floor=2.6",
        "maintenance.every=30", "maintenance.dead_below=0.0575", "train.learning_rate=1e-2", "memory.gate_init=-2",
        "maintenance.merge_cosine=0.3",
        "maintenance.merge_age=50", "validation.every=50", "validation.batches=4", "validation.mode=adaptive-carry",
    )  # fmt: skip


def trace(tmp_path, cfg: GMTConfig | None = None, steps: int = 100) -> list[dict[str, float]]:
    """Each weighted term by itself, and what the schedules and maintenance did."""
    cfg = cfg or golden_config()
    lines = []

    def tell(event, values):
        if event == "step" and values["step"] <= steps:
            weights = {"task": 1.0, **{name: getattr(cfg.losses, name) for name in TERMS[1:]}}
            row = {name: weights[name] * values[name] for name in TERMS}
            row |= {name: values[name] for name in ("learning_rate", "tau", "grad_norm", "resets", "merges")}
            lines.append(row)
        elif event == "validation":
            lines.append({name: values[name] for name in ("val_loss", "centroid_cosine", "gate_mean", "momentum_mean")})
        if event == "step" and values["step"] == steps < cfg.train.steps:
            raise StopTrace

    with contextlib.suppress(StopTrace):
        train(cfg, make_data(tmp_path / "golden", tokens=16000), tmp_path / "run", tell)
    return lines


class StopTrace(Exception):  # noqa: N818
    pass


def test_the_golden_trace(tmp_path):
    """A changed constant in any term or schedule breaks it. Made anew with `python -m tests.train.test_loop`."""
    found, golden = trace(tmp_path), json.loads(GOLDEN.read_text())
    assert len(found) == len(golden) == 102
    for number, (a, b) in enumerate(zip(found, golden, strict=True)):
        for name in b:
            assert a[name] == pytest.approx(b[name], rel=1e-6, abs=1e-9), f"line {number}: {name}"
    assert sum(line.get("resets", 0) for line in golden) > 0 and sum(line.get("merges", 0) for line in golden) > 0
    assert all(max(line.get(name, 0) for line in golden) > 0 for name in TERMS)
    assert golden[-2]["task"] < golden[0]["task"] - 0.3, "and the loss falls"


CHANGES = [
    "losses.track=1.01", "losses.ortho=0.0505", "losses.cluster=0.303", "losses.edge=0.101", "losses.contrast=0.505",
    "losses.cluster_target=15.4", "losses.edge_floor=2.61", "temperature.max=1.01", "temperature.min=0.101",
    "train.learning_rate=1.01e-2", "train.beta1=0.901", "train.beta2=0.951", "train.weight_decay=0.101",
    "train.clip=0.99", "train.warmup=9", "train.seed=1", "memory.distance_floor=0.9", "memory.gate_init=-1.99",
    "memory.momentum_init=4.61", "maintenance.every=29", "memory.usage_decay=0.98",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_constant_breaks_the_golden_trace(tmp_path, change):
    cfg = GMTConfig.from_dict(golden_config().to_dict(), [change])
    found, golden = trace(tmp_path, cfg, 31), json.loads(GOLDEN.read_text())[:31]
    assert any(
        a[name] != pytest.approx(b[name], rel=1e-6, abs=1e-9) for a, b in zip(found, golden, strict=True) for name in b
    )


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(trace(Path(folder)), indent=0) + "\n")
