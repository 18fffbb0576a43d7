"""`gmt intervene`: changes measured window by window, resumable, and a sentence that says what they mean."""

import csv
import json
import statistics

import pytest
import torch
from typer.testing import CliRunner

from gmt.analysis.interventions import Edges, Scale, intervene
from gmt.analysis.interventions.controls import ALPHAS, ControlOptions, Record, controls, edge_scan, measure, slot_scan
from gmt.analysis.interventions.run import Options, run
from gmt.analysis.interventions.verdict import sentence, table
from gmt.cli import app
from gmt.data.batches import Stream, ValidationBatches
from gmt.errors import GMTError
from gmt.evaluate.validation import validate
from gmt.hf.load import open_model
from gmt.utils.stats import interval, student
from tests.conftest import assert_same, snapshot
from tests.evaluate.conftest import CONTEXT, make_model, make_stream


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("controls")
    make_model(folder / "model")
    make_stream(folder / "data", 1500)
    return folder


def record(name: str, losses: list[float], group: str = "edges", fired: tuple[int, ...] = (5,)) -> Record:
    return Record(group, name, None, name, losses, list(fired), {})


def test_the_quantiles_are_students():
    for freedom, wanted in ((1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452)):
        assert student(freedom) == pytest.approx(wanted, rel=2e-3)
    found = interval([1.0, 2.0, 4.0])
    half = 4.3027 * statistics.stdev([1.0, 2.0, 4.0]) / 3**0.5
    assert found == pytest.approx((7 / 3, 7 / 3 - half, 7 / 3 + half), rel=1e-3)
    assert interval([3.0]).low == float("-inf") and not interval([3.0]).excludes_zero


def test_the_controls_are_those_the_paper_proposes():
    found = controls(3)
    assert [c.name for c in found if c.group == "edges" and c.block is None] == list(Edges.FORMS)
    assert [c.name for c in found if c.group == "alpha" and c.block is None] == [f"α = {a:g}" for a in ALPHAS]
    assert {c.block for c in found} == {None, 0, 1, 2}
    assert all(edit.block == c.block for c in found for edit in c.edits)
    assert {c.block for c in controls(3, each=False)} == {None}


def test_a_record_is_the_validation_loss_under_the_edit(place, tmp_path):
    loaded = open_model(place / "model")
    before = snapshot(loaded.lm)
    conditions = [c for c in controls(2, alphas=(0.0,)) if c.name in ("uniform", "α = 0")]
    found = measure(loaded, conditions, ControlOptions(place / "data", windows=7), tmp_path / "r.jsonl")
    assert_same(loaded.lm, before)
    assert [(r.name, r.block) for r in found[:3]] == [("learned", None), ("uniform", None), ("uniform", 0)]
    batches = ValidationBatches(Stream(place / "data", "val"), CONTEXT, 1, 7)
    with intervene(loaded.lm, [Edges(form="uniform")]):
        wanted = validate(loaded.lm, batches)
    assert wanted is not None and found[1].losses == pytest.approx(wanted.losses)
    assert found[1].fired == [7 * CONTEXT * 2]
    plain = validate(loaded.lm, batches)
    assert plain is not None and found[0].losses == pytest.approx(plain.losses)


def test_what_is_measured_is_not_measured_again(place, tmp_path, monkeypatch):
    from gmt.analysis.interventions import controls as module

    loaded, path = open_model(place / "model"), tmp_path / "r.jsonl"
    conditions, options = controls(2, each=False), ControlOptions(place / "data", windows=3)
    first = measure(loaded, conditions, options, path)
    with path.open("a") as file:
        file.write('{"group": "edges", "na')  # a run that was killed
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(module, "validate", lambda *a, **k: pytest.fail("measured again"))
    again = measure(loaded, conditions, options, path, lambda *part: told.append(part))
    assert again == first and told[-1][1] == told[-1][2]
    monkeypatch.undo()
    later = measure(loaded, slot_scan(0, 2), options, path)
    assert measure(loaded, slot_scan(0, 2), options, path) == later and len(path.read_text().splitlines()) == 1 + len(
        first
    ) + len(slot_scan(0, 2)), "what follows a torn line has a line of its own"
    monkeypatch.setattr(module, "validate", lambda *a, **k: pytest.fail("measured again"))
    loaded.lm.set_temperature(0.7)
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        measure(loaded, conditions, options, path)


def test_scans_name_every_slot_and_the_heaviest_edges(place):
    loaded = open_model(place / "model")
    assert [c.edits[0].slot for c in slot_scan(1, 6)] == list(range(6))
    found = edge_scan(loaded, 1, 4)
    assert len(edge_scan(loaded, 1, 99)) == 6 * 5, "a slot has no edge to itself"
    p = torch.softmax(loaded.lm.cells[1].edges.detach().masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf), -1)
    heaviest = [divmod(int(n), 6) for n in p.flatten().argsort(descending=True)[:4]]
    assert [(c.edits[0].source, c.edits[0].target) for c in found] == heaviest


def test_the_summary_compares_edges_and_centroids_with_removal():
    base = record("learned", [1.0, 2.0, 3.0])
    worse = [record("α = 0", [2.0, 3.1, 3.9], "alpha")]
    graph = [record("uniform", [1.5, 2.6, 3.4]), record("random", [1.4, 2.4, 3.4])]
    same = [record("uniform", [1.01, 1.98, 3.01]), record("shuffled", [1.0, 2.0, 3.0])]
    small = [record("uniform", [1.02, 2.02, 3.021])]
    assert sentence([base, *worse, *graph]).startswith("Removing the memory raises the loss by 1.0000 (+0.7516 to ")
    assert "50.0% of the effect of removing the memory" in sentence([base, *worse, *graph])
    assert "Replacing the edges has no measurable effect on the loss (" in sentence([base, *worse, *same])
    assert "2.0% of the effect of removing the memory" in sentence([base, *worse, *small])
    noise = [record("α = 0", [1.1, 1.9, 3.0], "alpha")]
    assert sentence([base, *noise, *graph]).startswith("Removing the memory has no measurable effect on the loss (")
    assert "of the effect of removing" not in sentence([base, *noise, *graph])
    better = [record("α = 0", [0.5, 1.4, 2.4], "alpha")]
    assert "Removing the memory lowers the loss by 0.5667" in sentence([base, *better, *same])
    # a condition with a wide interval does not hide one with a narrow interval
    noisy = [record("random", [3.0, 0.1, 4.9]), record("uniform", [1.1, 2.1, 3.1001])]
    expected = "Replacing the edges (the largest of 2: uniform) raises the loss by 0.1000"
    assert expected in sentence([base, *worse, *noisy])
    moved = [record("centroids random", [1.6, 2.5, 3.6], "centroids")]
    assert "Replacing the centroids raises the loss" in sentence([base, *worse, *same, *moved])
    silent = sentence([base, record("without slot 3", [1.0, 2.0, 3.0], "slot", (0,))])
    assert "No token has more than a thousandth of itself where these edit: without slot 3" in silent


def test_the_table_pairs_windows_and_ranks_scans():
    base, near, far = record("learned", [1.0, 5.0]), record("a", [1.1, 5.1]), record("b", [0.0, 4.0])
    rows = table([base, near, far], ranked=True).rows
    assert [row[0] for row in rows] == ["learned", "b", "a"]
    assert rows[2][3:6] == pytest.approx([0.1, 0.1, 0.1]), "windows differ by 4, the change is the same in both"


def test_the_command_from_end_to_end(place, tmp_path):
    command = ["intervene", str(place / "model"), "--data", str(place / "data"), "--windows", "3", "--no-each-block"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out"), "--alphas", "0,1,2"])
    assert result.exit_code == 0, result.output
    assert "| uniform | all |" in result.output and "Removing the memory" in result.output
    assert "No token has" not in result.output, "a factor of one changes nothing, and need not fire"
    with (tmp_path / "out" / "controls.csv").open() as file:
        names = [row[0] for row in csv.reader(file)]
    assert names == ["what", "learned", "identity", "uniform", "shuffled", "random",
                     "centroids shuffled", "centroids random", "α = 0", "α = 1", "α = 2"]  # fmt: skip
    assert (tmp_path / "out" / "table.md").exists() and (tmp_path / "out" / "controls.png").exists()
    scan = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "scan"), "--scan", "slots", "--block", "1"])
    assert scan.exit_code == 0 and scan.output.count("| without source") == 6, scan.output


def test_edits_of_a_file_are_replayed(place, tmp_path):
    edits = [Scale(0, alpha=0.0).to_json(), Edges(form="uniform").to_json()]
    (tmp_path / "edits.json").write_text(json.dumps(edits))
    told = run(str(place / "model"), tmp_path / "out", Options(place / "data", 3, edits=tmp_path / "edits.json"))
    assert "| scale (alpha 0.0) | 0 |" in told and "| all of them | all |" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan": "slots", "block": 9}, "there is no block 9; there are 0 to 1"),
        ({"edits": "nowhere.json"}, "cannot be read as a list of edits"),
        ({"edits": "e.json", "scan": "edges"}, "--scan and --edits cannot be combined"),
    ],
)
def test_bad_input_is_told_in_a_sentence(place, tmp_path, options, message):
    from pathlib import Path

    options = {name: Path(value) if name == "edits" else value for name, value in options.items()}
    with pytest.raises(GMTError, match=message):
        run(str(place / "model"), tmp_path / "out", Options(place / "data", **options))


def test_one_window_tells_nothing(place, tmp_path):
    short = make_stream(tmp_path / "short", CONTEXT + 1)
    with pytest.raises(GMTError, match="has 1 validation window; at least 2 are needed"):
        run(str(place / "model"), tmp_path / "out", Options(short))


def test_a_bad_factor_is_told_before_anything_runs(place, tmp_path):
    with pytest.raises(GMTError, match="alpha is a number, not nan"):
        run(str(place / "model"), tmp_path / "out", Options(place / "data", 3, alphas=(0.0, float("nan"))))
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_model_without_memory_is_refused(place, tmp_path):
    dense = make_model(tmp_path / "dense", "model.sublayer=dense", "model.dense_width=8")
    with pytest.raises(GMTError, match="has no memory, and so nothing to intervene in"):
        run(str(dense), tmp_path / "out", Options(place / "data"))
