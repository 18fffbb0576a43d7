"""Search and reading while another process replaces checkpoints, and names that commands take."""

from pathlib import Path

import pytest

from gmt.checkpoint import store
from gmt.checkpoint.format import remove_checkpoint, verify, write_checkpoint
from gmt.checkpoint.store import list_checkpoints, read_complete, repair, select
from gmt.errors import GMTError
from gmt.hf.load import find_model

CONTENT = {"progress.json": lambda: b"{}"}


def written(run: Path, *steps: int) -> list[Path]:
    paths = [run / "checkpoints" / f"step-{step:08d}" for step in steps]
    for path in paths:
        write_checkpoint(path, CONTENT)
    return paths


def test_a_rename_between_two_listings_hides_no_step(tmp_path, monkeypatch):
    """The writer puts the new checkpoint in place after the old names were listed, or before the new ones are."""
    (path,) = written(tmp_path, 8)
    old = path.with_name(".step-00000008.old")
    original = Path.glob
    for first, second in ((path, old), (old, path)):
        if not first.exists():
            second.rename(first)
        calls = []

        def glob(self, pattern, first=first, second=second, calls=calls):
            found = list(original(self, pattern))
            calls.append(pattern)
            if len(calls) == 1:
                first.rename(second)
            return found

        monkeypatch.setattr(Path, "glob", glob)
        assert [one.step for one in list_checkpoints(tmp_path)] == [8]
        monkeypatch.undo()


def test_a_checkpoint_replaced_by_one_of_the_same_content_is_read_again(tmp_path):
    (path,) = written(tmp_path, 8)
    tries = []

    def read(folder: Path) -> str:
        tries.append(folder)
        if len(tries) == 1:  # replaced in the middle of the first try, which therefore fails
            write_checkpoint(path, CONTENT)
            raise GMTError("a file was missing")
        return "read"

    assert read_complete(tmp_path, lambda: select(tmp_path), read) == "read" and len(tries) == 2
    with pytest.raises(GMTError, match="broken"):  # without a change the error is the file's own
        read_complete(tmp_path, lambda: select(tmp_path), lambda folder: (_ for _ in ()).throw(GMTError("broken")))


def test_a_checkpoint_path_between_two_renames_is_its_old_name(tmp_path):
    (path,) = written(tmp_path / "run", 8)
    path.rename(path.with_name(".step-00000008.old"))
    assert find_model(str(path)).name == ".step-00000008.old"
    with pytest.raises(GMTError, match=r"run has no checkpoint of step 9; it has those of 8"):
        find_model(str(path.with_name("step-00000009")))


def test_a_folder_named_like_a_step_of_a_run_is_itself(tmp_path):
    written(tmp_path / "run", 8)
    folder = tmp_path / "run@8"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gmt"}')
    assert find_model(str(folder)) == folder


def test_a_linked_checkpoint_is_removed_as_a_link(tmp_path):
    (path,) = written(tmp_path / "elsewhere", 8)
    link = tmp_path / "run" / "checkpoints" / "step-00000008"
    link.parent.mkdir(parents=True)
    link.symlink_to(path)
    remove_checkpoint(link)
    assert verify(path) is None and not list(link.parent.iterdir())
    (link.parent / ".step-00000008.removed").symlink_to(path)
    repair(tmp_path / "run")
    assert verify(path) is None and not list(link.parent.iterdir())


def test_a_manifest_without_files_is_damaged(tmp_path):
    (path,) = written(tmp_path, 8)
    (path / "MANIFEST.json").write_text('{"format": 1, "sha256": {}}')
    assert verify(path) == "MANIFEST.json lists no files"
    assert store.newest_usable(tmp_path)[0] is None
