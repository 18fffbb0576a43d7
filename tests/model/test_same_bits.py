"""benchmarks/same_bits.py, by which processes and machines are compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "same_bits.py"
SETTINGS = ["tiny", "train.compile=false", "model.blocks=2", "model.context=16"]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--steps", "2", "--times", "2", *args]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


@pytest.mark.parametrize("settings", [SETTINGS, [*SETTINGS, "model.sublayer=dense", "model.dense_width=9"]])
@pytest.mark.slow
def test_two_processes_agree_and_a_changed_bit_is_told(tmp_path: Path, settings: list[str]):
    assert run("--out", tmp_path / "a.json", *settings).returncode == 0
    again = run("--out", tmp_path / "b.json", "--against", tmp_path / "a.json", *settings)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("the same bits") == 4
    kept = json.loads((tmp_path / "a.json").read_text())
    name = next(name for name in kept["steps"][1] if name.startswith("gradient of blocks.1"))
    kept["steps"][1][name] = "0"
    (tmp_path / "a.json").write_text(json.dumps(kept))
    changed = run("--out", tmp_path / "b.json", "--against", tmp_path / "a.json", *settings)
    assert changed.returncode == 1
    assert f"1 differ, {name}" in changed.stdout


def test_other_settings_are_nothing_to_compare_with(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps({"settings": ["tiny"], "steps": [{}, {}]}))
    refused = run("--out", tmp_path / "b.json", "--against", tmp_path / "a.json", *SETTINGS)
    assert refused.returncode == 1
    assert "is of 2 steps of tiny" in refused.stderr
