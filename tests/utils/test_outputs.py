"""A folder that a command writes: foreign files stay, own files are listed first, links are not followed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gmt.errors import GMTError
from gmt.utils.io import partial_of
from gmt.utils.outputs import LIST, OutputFolder, check_file, has_mark


def write(out: Path, *names: str, command: str = "report", force: bool = False) -> None:
    """One run of a command that writes these files."""
    folder = OutputFolder(out, command, force=force)
    folder.reserve(*names)
    for name in names:
        (out / name).write_text(f"{command} {name}")
    folder.finish()


def tree(out: Path) -> dict[str, str]:
    """Every path below a folder, with the content of files and the target of links."""
    found = {}
    for path in sorted(out.rglob("*")):
        kind = f"-> {path.readlink()}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
        found[path.relative_to(out).as_posix()] = kind
    return found


def listed(out: Path, command: str = "report") -> dict[str, list[str]]:
    return json.loads((out / LIST).read_text())["commands"][command]


def foreign(path: Path, text: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_own_files_are_replaced_and_the_rest_of_the_last_run_is_removed(tmp_path):
    out = tmp_path / "new" / "out"
    write(out, "index.html", "figures/a.png", "traces/other/a.bin")
    assert listed(out) == {
        "files": ["figures/a.png", "index.html", "traces/other/a.bin"], "folders": ["figures", "traces", "traces/other"]
    }  # fmt: skip
    write(out, "index.html", "figures/b.png")
    assert set(tree(out)) == {LIST, "index.html", "figures", "figures/b.png"}
    assert listed(out) == {"files": ["figures/b.png", "index.html"], "folders": ["figures"]}


def test_foreign_files_among_own_ones_stay(tmp_path):
    write(tmp_path, "index.html", "figures/a.png")
    for name in ("figures/mine/photo.png", "figures/b.png", ".hidden", "figures/.b.png"):
        foreign(tmp_path / name)
    write(tmp_path, "index.html")
    assert set(tree(tmp_path)) == {
        LIST, "index.html", ".hidden", "figures", "figures/b.png", "figures/.b.png", "figures/mine",
        "figures/mine/photo.png",
    }  # fmt: skip


def test_a_folder_that_existed_is_not_removed(tmp_path):
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    write(out, "figures/a.png", "tables/a.csv", force=True)
    write(out, "index.html")
    assert set(tree(out)) == {LIST, "index.html", "figures"}


FOREIGN = ["notes.txt", ".git/config", "figures/photo.png", "empty/", "link"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path, name):
    out = tmp_path / "out"
    if name.endswith("/"):
        (out / name).mkdir(parents=True)
    elif name == "link":
        out.mkdir()
        (out / name).symlink_to("/nowhere")
    else:
        foreign(out / name)
    before = tree(out)
    with pytest.raises(GMTError) as error:
        OutputFolder(out, "report")
    first = name.split("/")[0]
    assert f"contains {first}" in str(error.value) and "--force" in str(error.value)
    assert tree(out) == before
    write(out, "index.html", force=True)
    assert {**before, "index.html": "report index.html", LIST: (out / LIST).read_text()} == tree(out)
    write(out, "other.html")  # from now on the folder has a list
    assert tree(out).items() >= before.items() and "index.html" not in tree(out)


def test_an_empty_folder_needs_no_force(tmp_path):
    write(tmp_path, "index.html")
    assert set(tree(tmp_path)) == {LIST, "index.html"}


def test_opening_a_folder_writes_nothing(tmp_path):
    OutputFolder(tmp_path / "out", "report")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["index.html", "figures/a.png", ".index.html.partial", "figures/.a.png.partial"])
def test_a_foreign_file_is_never_replaced(tmp_path, name, force):
    write(tmp_path, "report.md")
    foreign(tmp_path / name)
    before = tree(tmp_path)
    folder = OutputFolder(tmp_path, "report", force=force)
    with pytest.raises(GMTError, match=rf"{name} was not written by `gmt report` and would be replaced"):
        folder.reserve("report.md", "index.html", "figures/a.png")
    assert tree(tmp_path) == before


def test_the_files_of_another_command_are_foreign(tmp_path):
    write(tmp_path, "table.md", "figures/a.png", command="intervene")
    with pytest.raises(GMTError, match=r"contains table\.md, and `gmt report` has no list"):
        OutputFolder(tmp_path, "report")
    with pytest.raises(GMTError, match=r"table\.md was not written by `gmt report`"):
        OutputFolder(tmp_path, "report", force=True).reserve("table.md")
    write(tmp_path, "index.html", "figures/b.png", force=True)
    write(tmp_path, "page.html", "figures/b.png")
    write(tmp_path, "table.csv", command="intervene")
    assert set(tree(tmp_path)) == {LIST, "page.html", "figures", "figures/b.png", "table.csv"}
    write(tmp_path, "page.html")
    assert "figures" in tree(tmp_path), "the other command made it"
    write(tmp_path, "table.csv", command="intervene")
    assert set(tree(tmp_path)) == {LIST, "page.html", "table.csv"}


def test_files_of_earlier_versions_may_be_replaced_and_are_not_removed(tmp_path):
    for name in ("index.html", "figures/old.png", "notes.txt"):
        foreign(tmp_path / name)
    folder = OutputFolder(tmp_path, "report", force=True, earlier=lambda name: name != "notes.txt")
    folder.file("index.html").write_text("new")
    with pytest.raises(GMTError, match=r"notes\.txt was not written"):
        folder.file("notes.txt")
    folder.finish()
    assert tree(tmp_path)["index.html"] == "new"
    assert {"figures/old.png", "notes.txt"} <= tree(tmp_path).keys()


# --- links, and paths that are none of the folder's ---


@pytest.mark.parametrize("where", ["figures", "figures/inner"])
def test_a_link_to_another_folder_is_not_followed(tmp_path, where):
    out, other = tmp_path / "out", tmp_path / "other"
    write(out, "index.html", "figures/inner/a.png")
    (out / "figures").rename(other)
    (out / "figures").symlink_to(other)
    if where == "figures/inner":
        (out / "figures").unlink()
        (out / "figures").mkdir()
        (out / "figures" / "inner").symlink_to(other / "inner")
    before = tree(other)
    with pytest.raises(GMTError, match=r"figures.* is a symbolic link, and a folder is needed there"):
        OutputFolder(out, "report").reserve("figures/inner/a.png")
    write(out, "index.html")
    assert tree(other) == before and (out / where).is_symlink()


def test_a_link_in_place_of_an_own_file_is_foreign(tmp_path):
    out, thesis = tmp_path / "out", foreign(tmp_path / "thesis.txt")
    write(out, "index.html", "table.csv")
    (out / "table.csv").unlink()
    (out / "table.csv").symlink_to(thesis)
    with pytest.raises(GMTError, match=r"table\.csv was not written by `gmt report`"):
        OutputFolder(out, "report").reserve("table.csv")
    write(out, "index.html")
    assert (out / "table.csv").is_symlink() and thesis.read_text() == "mine"


@pytest.mark.parametrize("link", [LIST, f".{LIST}.partial"])
def test_the_list_is_no_link(tmp_path, link):
    out, thesis = tmp_path / "out", foreign(tmp_path / "thesis.txt")
    write(out, "index.html")
    if link == LIST:
        thesis.write_text((out / LIST).read_text())
        (out / LIST).unlink()
    (out / link).symlink_to(thesis)
    before = thesis.read_text()
    with pytest.raises(GMTError):
        write(out, "other.html")
    assert thesis.read_text() == before and (out / "index.html").exists()


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    write(tmp_path / "out", "figures/a.png")
    write(tmp_path / "out", "index.html")
    assert set(tree(tmp_path / "disk")) == {LIST, "index.html"}


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "", ".", "./a", "a//b", "a\\b", "C:x", LIST, "a\0"]
)
def test_a_name_outside_the_folder_is_an_error(tmp_path, name):
    out = tmp_path / "out"
    with pytest.raises(GMTError, match="is not the name of a file inside"):
        OutputFolder(out, "report").reserve(name)
    assert not out.exists()


VICTIMS = ["/ABSOLUTE/x", "../x", "figures/../../x", "", ".", "..", None, 7, ["x"], LIST]


@pytest.mark.parametrize("kind", ["files", "folders"])
@pytest.mark.parametrize("name", VICTIMS)
def test_a_list_that_leads_out_of_the_folder_is_refused(tmp_path, name, kind):
    out, victim = tmp_path / "out", foreign(tmp_path / "x")
    write(out, "index.html")
    stored = json.loads((out / LIST).read_text())
    stored["commands"]["report"][kind].append(
        name.replace("/ABSOLUTE", str(tmp_path)) if isinstance(name, str) else name
    )
    (out / LIST).write_text(json.dumps(stored))
    before = tree(tmp_path)
    for force in (False, True):
        with pytest.raises(GMTError, match="is damaged: delete it, or use another folder"):
            OutputFolder(out, "report", force=force)
    assert tree(tmp_path) == before and victim.exists()


DAMAGED = [
    "", "{", "[]", "null", '{"format": 1}', '{"format": 1, "commands": []}',
    '{"format": 1, "commands": {"report": {}}}',
    '{"format": 1, "commands": {"report": {"files": "index.html", "folders": []}}}', "[" * 100_000, "\xff",
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_list_is_one_sentence(tmp_path, text):
    (tmp_path / LIST).write_bytes(text.encode("latin-1"))
    with pytest.raises(GMTError, match="is damaged"):
        OutputFolder(tmp_path, "report", force=True)
    (tmp_path / LIST).write_text('{"format": 9}')
    with pytest.raises(GMTError, match="is of format 9; this version reads format 1"):
        OutputFolder(tmp_path, "report")


def test_places_that_are_no_folder(tmp_path):
    foreign(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(GMTError, match=f"{name} is a file: use a folder"):
            OutputFolder(tmp_path / name, "report", force=True)
    with pytest.raises(GMTError, match=r"cannot write to .*file"):
        OutputFolder(tmp_path / "file" / "out", "report").reserve("index.html")
    foreign(tmp_path / "out" / "figures")
    with pytest.raises(GMTError, match="figures is a file, and a folder is needed there"):
        OutputFolder(tmp_path / "out", "report", force=True).reserve("figures/a.png")


def test_two_names_of_one_file_are_not_removed(tmp_path):
    """As on a file system where case does not matter."""
    write(tmp_path, "First.bin")
    folder = OutputFolder(tmp_path, "report")
    folder.reserve("first.bin")
    os.link(tmp_path / "First.bin", tmp_path / "first.bin")
    folder.finish()
    assert (tmp_path / "first.bin").exists()


# --- any sequence of runs, and any foreign files ---

NAMES = ["a", "b", "d/a", "d/e/a", "d/e/b", "f/a", ".a.partial"]
RUN = st.tuples(
    st.sampled_from(["report", "intervene"]), st.sets(st.sampled_from(NAMES[:-1]), min_size=1), st.booleans()
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(RUN, st.sampled_from(NAMES)), min_size=1, max_size=8))
def test_foreign_files_survive_any_sequence_of_runs(tmp_path_factory, steps):
    out = tmp_path_factory.mktemp("any") / "out"
    mine: dict[str, str] = {}
    for number, step in enumerate(steps):
        if isinstance(step, str):  # another process writes a file here
            if not os.path.lexists(out / step):
                foreign(out / step, mine.setdefault(step, f"mine {number}"))
            continue
        command, names, force = step
        try:
            write(out, *sorted(names), command=command, force=force)
        except GMTError:
            continue
        assert all((out / name).read_text() == f"{command} {name}" for name in names)
        own = {name for one in json.loads((out / LIST).read_text())["commands"].values() for name in one["files"]}
        files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} - {LIST}
        assert files == own | mine.keys() and not own & mine.keys()
    assert all((out / name).read_text() == text for name, text in mine.items())


# --- a command that is killed ---

KILLED = """
import os, signal, sys
from pathlib import Path
from gmt.utils import io, outputs
left = int(sys.argv[2])
def count(module, name):
    original = getattr(module, name)
    def wrapper(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(module, name, wrapper)
count(os, "fsync")
for name in ("replace", "mkdir", "open", "unlink", "rmdir"):
    count(Path, name)
folder = outputs.OutputFolder(Path(sys.argv[1]), "report")
for names in (("index.html", "figures/x/a.png"), ("figures/x/b.png",)):
    folder.reserve(*names)
    for name in names:
        io.write_atomic(folder.path / name, "x")
folder.finish()
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_a_killed_command_leaves_only_listed_files(tmp_path, fresh):
    """SIGKILL before every system call that changes something, in a new folder and in one with an earlier run."""
    moment = 0
    for moment in range(1, 100):
        out = tmp_path / str(moment)
        if not fresh:
            write(out, "index.html", "old/y/c.png")
            foreign(out / "old" / "mine.txt")
        done = subprocess.run([sys.executable, "-c", KILLED, out, str(moment)], capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
        allowed = {LIST, partial_of(Path(LIST)).name, "old/mine.txt"}
        own = set(listed(out)["files"]) if (out / LIST).exists() else set()
        assert files <= own | allowed, moment
        write(out, "table.csv")  # the next run needs no --force, and removes what is left
        assert {name for name, kind in tree(out).items() if kind != "/"} == {LIST, "table.csv"} | (
            files & {"old/mine.txt"}
        ), moment
    assert moment > 15


# --- single files ---


def test_a_single_file_of_somebody_else_is_not_replaced(tmp_path):
    thesis = foreign(tmp_path / "thesis.txt")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (thesis, tmp_path, tmp_path / "dangling"):
        with pytest.raises(GMTError, match="was not written by `gmt bench` and would be replaced: use another name"):
            check_file(path, "bench", lambda path: has_mark(path, "rows"))
    check_file(tmp_path / "new", "bench", lambda path: False)
    check_file(thesis, "bench", lambda path: has_mark(path, "min"))
