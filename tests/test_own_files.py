"""Commands replace and remove only files that they wrote, whatever else the folder contains."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib")

from gmt import plot
from gmt.cli import app
from gmt.utils.outputs import LIST
from tests.data.conftest import invented, write_jsonl
from tests.evaluate.conftest import make_model, make_stream
from tests.hf.test_convert import published

STORED = Path(__file__).parent / "fixtures" / "v0_1"


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def works(*words: object) -> str:
    code, output = run(*words)
    assert code == 0, output
    return output


def refused(*words: object) -> str:
    code, output = run(*words)
    assert code == 1 and "Traceback" not in output, output
    return " ".join(output.split())


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def foreign(folder: Path, *names: str) -> dict[str, bytes]:
    """Foreign files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"mine: {name}".encode())
    return {name: (folder / name).read_bytes() for name in names}


def own(folder: Path, command: str) -> set[str]:
    return set(json.loads((folder / LIST).read_text())["commands"][command]["files"])


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    make_model(folder / "model")
    make_stream(folder / "data", 600)
    for name in ("first", "second"):
        (folder / f"{name}.txt").write_text("the cat sat on a mat. " * 3)
    return folder


@pytest.fixture
def undrawn(monkeypatch) -> None:
    def save(figure, folder, name):
        paths = folder / f"{name}.png", folder / f"{name}.svg"
        for path in paths:
            path.write_bytes(b"Matplotlib")
        return paths

    monkeypatch.setattr(plot, "save", save)


# --- report ---


def report(place: Path, out: Path, text: str = "first", *more: str) -> list[object]:
    return ["report", place / "model", "--out", out, "--blocks", 1, "--text", f"{text}={place / text}.txt", *more]


MINE = "index.html", "figures/mine/photo.png", "figures/photo.svg", "tables/data.csv", "traces/mine.safetensors"


def test_a_report_leaves_a_foreign_folder_as_it_is(place, tmp_path, undrawn):
    mine = foreign(tmp_path, *MINE)
    said = refused(*report(place, tmp_path))
    assert f"{tmp_path} contains index.html" in said and "--force" in said
    said = refused(*report(place, tmp_path, "first", "--force"))
    assert "index.html was not written by `gmt report` and would be replaced" in said
    assert tree(tmp_path) == mine
    (tmp_path / "index.html").unlink()
    works(*report(place, tmp_path, "first", "--force"))
    assert tree(tmp_path).items() >= {name: mine[name] for name in MINE[1:]}.items()
    assert "tables/data.csv" not in own(tmp_path, "report")


def test_a_second_report_replaces_the_first_and_nothing_else(place, tmp_path, undrawn):
    works(*report(place, tmp_path))
    assert tree(tmp_path).keys() == own(tmp_path, "report") | {LIST}
    mine = foreign(tmp_path, *MINE[1:])
    works(*report(place, tmp_path, "second"))
    assert tree(tmp_path).keys() == own(tmp_path, "report") | mine.keys() | {LIST}
    assert tree(tmp_path).items() >= mine.items()
    assert not [name for name in tree(tmp_path) if "first" in name]


def test_a_report_of_an_earlier_version_is_replaced_with_force_only(place, tmp_path, undrawn):
    works(*report(place, tmp_path))
    (tmp_path / LIST).unlink()  # earlier versions kept no list
    mine = foreign(tmp_path, *MINE[1:])
    before = tree(tmp_path)
    said = refused(*report(place, tmp_path))
    assert "use another folder, or --force" in said and tree(tmp_path) == before
    works(*report(place, tmp_path, "first", "--force"))
    assert tree(tmp_path).items() >= mine.items()
    assert tree(tmp_path).keys() == before.keys() | {LIST}
    works(*report(place, tmp_path, "second"))
    assert tree(tmp_path).items() >= mine.items() and not [name for name in tree(tmp_path) if "first" in name]


def test_a_report_follows_no_link(place, tmp_path, undrawn):
    works(*report(place, tmp_path / "out"))
    mine = foreign(tmp_path / "photos", "a.png", "b.svg")
    shutil.rmtree(tmp_path / "out" / "figures")
    (tmp_path / "out" / "figures").symlink_to(tmp_path / "photos")
    assert "figures is a symbolic link" in refused(*report(place, tmp_path / "out", "second"))
    assert tree(tmp_path / "photos") == mine


def test_a_refused_report_reads_no_model(tmp_path):
    foreign(tmp_path, "notes.txt")
    assert "contains notes.txt" in refused("report", tmp_path / "no-model", "--out", tmp_path)


KILLED_COMMAND = """
import os, signal, sys
from pathlib import Path
from gmt import plot
from gmt.cli import app
left, replace = int(sys.argv[1]), Path.replace

def kill(self, target):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

def save(figure, folder, name):
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    for path in paths:
        path.write_bytes(b"Matplotlib")
    return paths

Path.replace, plot.save = kill, save
app(sys.argv[2:])
"""


def killed(moment: int, *words: object) -> None:
    """A command that is ended by SIGKILL before it renames a file for the `moment`th time."""
    command = [sys.executable, "-c", KILLED_COMMAND, str(moment), *map(str, words)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "moment", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_a_killed_report_leaves_only_listed_files(place, tmp_path, moment, undrawn):
    mine = foreign(tmp_path, "figures/mine.png")
    killed(moment, *report(place, tmp_path, "first", "--force"))
    assert tree(tmp_path).keys() <= own(tmp_path, "report") | mine.keys() | {LIST, f".{LIST}.partial"}
    works(*report(place, tmp_path, "second"))
    assert tree(tmp_path).keys() == own(tmp_path, "report") | mine.keys() | {LIST}
    assert not [name for name in tree(tmp_path) if "first" in name or "partial" in name]


# --- intervene ---


def intervene(place: Path, out: Path, *more: str) -> list[object]:
    command = ["intervene", place / "model", "--data", place / "data", "--out", out]
    return [*command, "--windows", 2, "--alphas", "0,1", "--no-each-block", *more]


def test_interventions_leave_a_foreign_folder_as_it_is(place, tmp_path, undrawn):
    mine = foreign(tmp_path, "results.jsonl", "table.md", "notes.txt")
    assert "--force" in refused(*intervene(place, tmp_path))
    said = refused(*intervene(place, tmp_path, "--force"))
    assert "results.jsonl was not written by `gmt intervene`" in said
    assert tree(tmp_path) == mine
    (tmp_path / "results.jsonl").unlink()
    assert "table.md was not written by `gmt intervene`" in refused(*intervene(place, tmp_path, "--force"))
    (tmp_path / "table.md").unlink()
    works(*intervene(place, tmp_path, "--force"))
    assert (tmp_path / "notes.txt").read_bytes() == mine["notes.txt"]
    works(*intervene(place, tmp_path))
    assert tree(tmp_path).keys() == own(tmp_path, "intervene") | {LIST, "notes.txt"}


def test_records_of_an_earlier_version_are_used_again(place, tmp_path, monkeypatch):
    works(*intervene(place, tmp_path))
    (tmp_path / LIST).unlink()
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"group": "edges", "na')  # a run that was killed
    before, mine = tree(tmp_path), foreign(tmp_path, "notes.txt")
    with monkeypatch.context() as patch:
        patch.setattr("gmt.analysis.interventions.controls.validate", lambda *a, **k: pytest.fail("measured again"))
        works(*intervene(place, tmp_path))
    assert tree(tmp_path).keys() == before.keys() | {LIST, "notes.txt"} and tree(tmp_path).items() >= mine.items()
    (tmp_path / LIST).unlink()
    foreign(tmp_path, "table.md")
    assert "table.md was not written by `gmt intervene`" in refused(*intervene(place, tmp_path))


def test_a_folder_of_the_demo_is_one_of_intervene(place, tmp_path, undrawn):
    from gmt.demo import evaluate
    from gmt.terminal import EvalView

    shutil.copytree(place / "model", tmp_path / "v7")
    (tmp_path / "v7" / "metrics.jsonl").write_text('{"step": 1, "task": 5.0, "tokens_per_second": 9.0}\n')
    with EvalView() as view:
        for _ in range(2):  # the demo may be repeated
            evaluate(tmp_path, "v7", place / "data", view)
    assert tree(tmp_path / "edits").keys() == {LIST, "results.jsonl"}
    works(*intervene(place, tmp_path / "edits"))
    with EvalView() as view:
        evaluate(tmp_path, "v7", place / "data", view)
    assert (tmp_path / "edits" / "table.md").exists()


# --- convert ---


@pytest.fixture
def best(tmp_path) -> Path:
    torch.save(published(), tmp_path / "best.pt")
    return tmp_path / "best.pt"


def convert(source: Path, out: Path, *more: str) -> list[object]:
    return ["convert", source, "--out", out, *(["--heads", "2"] if source.is_file() else []), *more]


def test_converting_leaves_a_foreign_partial_folder_as_it_is(best, tmp_path):
    mine = foreign(tmp_path, "model.partial/thesis.txt", "x.pt.partial", ".model.partial/a")
    works(*convert(best, tmp_path / "model"))
    works(*convert(tmp_path / "model", tmp_path / "x.pt"))
    assert tree(tmp_path).items() >= mine.items()
    assert own(tmp_path / "model", "convert") == tree(tmp_path / "model").keys() - {LIST}
    assert {path.name for path in tmp_path.iterdir()} == {
        "best.pt", "model", "x.pt", "model.partial", "x.pt.partial", ".model.partial"
    }  # fmt: skip


def test_converting_adds_to_a_folder_with_force_only(best, tmp_path):
    out = tmp_path / "model"
    mine = foreign(out, "notes.md", "data/a.txt")
    assert "is already there" in refused(*convert(best, out)) and tree(out) == mine
    works(*convert(best, out, "--force"))
    assert tree(out).items() >= mine.items() and (out / "model.safetensors").exists()
    assert "is already there" in refused(*convert(best, out)), "own files are replaced with --force only"
    works(*convert(best, out, "--force"))
    assert tree(out).keys() == own(out, "convert") | mine.keys() | {LIST}
    works(*convert(out, tmp_path / "again.pt"))
    before = tree(tmp_path / "config")
    mine = foreign(tmp_path / "config", "config.json")
    assert "config.json was not written by `gmt convert`" in refused(*convert(best, tmp_path / "config", "--force"))
    assert tree(tmp_path / "config") == before | mine
    (tmp_path / "dangling.pt").symlink_to("/nowhere")
    for name in ("again.pt", "config", "dangling.pt"):
        assert "is already there" in refused(*convert(out, tmp_path / name, "--force"))


# --- study ---


@pytest.fixture
def stored(tmp_path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "v0_1"))


def test_a_study_report_leaves_a_foreign_folder_as_it_is(stored, tmp_path, undrawn):
    command, out = ["study", "report", stored / "study.yaml", "--out", stored / "study"], tmp_path / "to"
    mine = foreign(out, "report.md", "curves.png", "notes.txt")
    assert "--force" in refused(*command, "--to", out)
    assert "was not written by `gmt study report`" in refused(*command, "--to", out, "--force")
    assert tree(out) == mine
    for name in ("report.md", "curves.png"):
        (out / name).unlink()
    works(*command, "--to", out, "--force")
    assert tree(out).keys() == own(out, "study report") | {LIST, "notes.txt"}


def test_a_study_report_of_an_earlier_version_is_replaced(stored, undrawn):
    command, out = ["study", "report", stored / "study.yaml", "--out", stored / "study"], stored / "study/reports/study"
    works(*command)
    (out / LIST).unlink()
    mine = foreign(out, "notes.txt")
    works(*command)
    assert tree(out).keys() == own(out, "study report") | {LIST, "notes.txt"} and tree(out).items() >= mine.items()
    (out / LIST).unlink()
    foreign(out, "results.csv")
    assert "results.csv was not written by `gmt study report`" in refused(*command)


@pytest.mark.slow
def test_a_study_leaves_foreign_files_as_they_are(stored, tmp_path):
    """Also the checkpoints folder of a run, when the checkpoints of finished runs are removed."""
    from gmt.study.file import load_study
    from gmt.study.plan import wanted_runs

    out = tmp_path / "out"
    command = ["study", stored / "study.yaml", "--data", stored / "data", "--out", out, "--no-keep-checkpoints"]
    one, other = (run.folder(out) for run in wanted_runs(load_study(stored / "study.yaml"), []))
    mine = foreign(out, "thesis.txt") | {
        f"{one.relative_to(out)}/{name}": content
        for name, content in foreign(one, "checkpoints/mine.txt", "checkpoints/best/model.bin").items()
    }
    assert "contains thesis.txt" in refused(*command) and tree(out) == mine
    works(*command, "--force")
    assert tree(out).items() >= mine.items()
    assert not list(out.glob("runs/*/checkpoints/step-*/model.safetensors")) and not (other / "checkpoints").exists()
    assert {f"runs/{folder.name}/run.json" for folder in (one, other)} <= own(out, "study")
    works(*command)


def test_removing_checkpoints_leaves_foreign_files(stored, tmp_path):
    from gmt.study.run import remove_checkpoints

    run, outside = stored / "run", foreign(tmp_path, "mine/weights.bin")
    before = tree(run)
    mine = foreign(run, "checkpoints/step-00000004/mine.txt", "checkpoints/step-00000009/thesis.txt", "weights.bin")
    shutil.copytree(run / "checkpoints" / "step-00000008", tmp_path / "kept")
    (run / "checkpoints" / "step-00000012").symlink_to(tmp_path / "kept")
    manifest = json.loads((run / "checkpoints/step-00000008/MANIFEST.json").read_text())
    manifest["sha256"] |= {"../../weights.bin": "", str(tmp_path / "mine" / "weights.bin"): "", "../step-00000009": ""}
    (run / "checkpoints/step-00000008/MANIFEST.json").write_text(json.dumps(manifest))
    remove_checkpoints(run)
    kept = {name: content for name, content in before.items() if not name.startswith("checkpoints/")}
    (run / "checkpoints" / "step-00000012").unlink()
    assert tree(run) == kept | mine
    assert tree(tmp_path).items() >= outside.items() and (tmp_path / "kept" / "model.safetensors").exists()
    assert not (run / "checkpoints" / "step-00000008").exists()


def test_a_study_of_an_earlier_version_needs_no_force(stored):
    assert not (stored / "study" / LIST).exists()
    foreign(stored / "study", "notes.txt")
    unfinished = next((stored / "study" / "runs").iterdir())
    record = json.loads((unfinished / "run.json").read_text())
    del record["finished"]
    (unfinished / "run.json").write_text(json.dumps(record))
    works("study", stored / "study.yaml", "--data", stored / "data", "--out", stored / "study")
    assert f"runs/{unfinished.name}/run.json" in own(stored / "study", "study")


# --- single files ---


def test_a_file_of_somebody_else_is_not_replaced(place, tmp_path, monkeypatch):
    data = ["--data", place / "data", "--batches", 1]
    generate = ["generate", place / "model", "the", "--tokens", 2]
    bench = ["bench", "cell", "--size", "tiny", "--batch", 1, "--rounds", 1, "--eager", "--device", "cpu"]
    for number, (option, *command) in enumerate(
        (["--out", "eval", place / "model", *data], ["--trace", *generate], ["--out", *bench])
    ):
        mine = foreign(tmp_path, f"thesis-{number}.txt")
        path = tmp_path / f"thesis-{number}.txt"
        said = refused(*command, option, path)
        assert str(path) in said and {path.name: path.read_bytes()} == mine
        for _ in range(2):  # its own file may be replaced
            works(*command, option, tmp_path / f"own-{number}")


# --- prepare ---


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", invented(200))


def prepare(corpus: Path, out: Path, *more: object) -> list[object]:
    return ["prepare", corpus, "--out", out, "--tokenizer", "train:300", "--context", 16, *more]


def interrupted(corpus: Path, out: Path, monkeypatch) -> Path:
    """OUT.partial of a preparation that was interrupted after everything was tokenized."""
    with monkeypatch.context() as patch:
        patch.setattr("gmt.data.prepare._Run._finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*prepare(corpus, out))[0] == 130
    return out.with_name(out.name + ".partial")


@pytest.mark.parametrize("options", [[], ["--dtype", "uint32"]])
@pytest.mark.parametrize("name", ["thesis.txt", "train.bin.bak", "mine/photo.png"])
def test_preparing_leaves_foreign_files_in_the_partial_folder(corpus, tmp_path, monkeypatch, name, options):
    partial = interrupted(corpus, tmp_path / "out", monkeypatch)
    mine = foreign(partial, name)
    before = tree(partial)
    said = refused(*prepare(corpus, tmp_path / "out", *options))
    assert f"{partial} contains {name.split('/')[0]}, which `gmt prepare` did not write" in said
    assert tree(partial) == before and before.items() >= mine.items()


def test_preparing_follows_no_link(corpus, tmp_path, monkeypatch):
    partial = interrupted(corpus, tmp_path / "out", monkeypatch)
    mine = foreign(tmp_path, "thesis.txt")
    (partial / "train.bin").unlink()
    (partial / "train.bin").symlink_to(tmp_path / "thesis.txt")
    for options in ([], ["--dtype", "uint32"]):
        assert "contains train.bin, which `gmt prepare` did not write" in refused(
            *prepare(corpus, tmp_path / "out", *options)
        )
        assert (tmp_path / "thesis.txt").read_bytes() == mine["thesis.txt"]


@pytest.mark.parametrize("note", ["my own notes", "[]", '{"fingerprint": 1}', "{}"])
def test_a_note_of_somebody_else_is_no_note(corpus, tmp_path, note):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "note.json").write_text(note)
    assert "out.partial contains note.json" in refused(*prepare(corpus, tmp_path / "out"))
    assert (tmp_path / "out.partial" / "note.json").read_text() == note


def test_changed_options_begin_anew_and_say_so(corpus, tmp_path, monkeypatch):
    partial = interrupted(corpus, tmp_path / "out", monkeypatch)
    said = works(*prepare(corpus, tmp_path / "out", "--dtype", "uint32"))
    assert "starting again: " in said and not partial.exists()
    assert tree(tmp_path / "out").keys() == {"manifest.json", "tokenizer.json", "train.bin", "val.bin"}


def test_no_documents_leave_nothing(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert "has no documents" in refused(*prepare(tmp_path / "empty.jsonl", tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"empty.jsonl"}


KILLED = """
import os, signal, sys
from pathlib import Path
from gmt.data import prepare as p
method, number = sys.argv[3].split(":")
original, left = getattr(Path, method), int(number)
def kill(self, *args, **kwargs):
    global left
    if self.name in ("note.json", "out.partial"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args, **kwargs)
setattr(Path, method, kill)
if __name__ == "__main__":
    p.prepare(p.PrepareOptions((sys.argv[1],), tokenizer="train:300", context=16), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["unlink:1", "rename:1"])
def test_finished_work_of_other_options_is_not_removed(corpus, tmp_path, moment):
    done = subprocess.run([sys.executable, "-c", KILLED, corpus, tmp_path / "out", moment])
    assert done.returncode == -signal.SIGKILL
    before = tree(tmp_path / "out.partial")
    said = refused(*prepare(corpus, tmp_path / "out", "--dtype", "uint32"))
    assert "contains finished data of other options: rename it to keep it" in said
    assert tree(tmp_path / "out.partial") == before


@pytest.mark.parametrize("moment", ["unlink:1", "rename:1"])
def test_finished_work_of_a_killed_preparation_is_used(corpus, tmp_path, moment, monkeypatch):
    done = subprocess.run([sys.executable, "-c", KILLED, corpus, tmp_path / "out", moment])
    assert done.returncode == -signal.SIGKILL and not (tmp_path / "out").exists()
    before = tree(tmp_path / "out.partial")
    monkeypatch.setattr("gmt.data.prepare._append", lambda *a: pytest.fail("tokenized again"))
    works(*prepare(corpus, tmp_path / "out"))
    assert before.items() >= tree(tmp_path / "out").items() and not (tmp_path / "out.partial").exists()
    assert tree(tmp_path / "out").keys() == {"manifest.json", "tokenizer.json", "train.bin", "val.bin"}
