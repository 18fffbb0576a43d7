"""The command line as a user meets it: exit codes, one sentence for a mistake, help with defaults."""

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gmt import __version__
from gmt.cli import app

COMMANDS = [
    "doctor",
    "convert",
    "prepare",
    "train",
    "eval",
    "generate",
    "bench",
    "demo",
    "report",
    "intervene",
    "explore",
]


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_help_lists_every_command():
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    assert run(command, "--help").exit_code == 0


def test_version():
    assert run("--version").output.strip() == __version__


def test_doctor_says_what_is_on_and_why_the_rest_is_not():
    result = run("doctor")
    assert result.exit_code == 0
    kernels = "own attention kernel", "fused memory kernels"
    for part in ("torch", "transformers", "cuda", "mps", "cpu", "torch.compile", *kernels):
        assert part in result.output
    for line in result.output.splitlines():
        if line.strip().startswith(("on ", "off ")):
            assert len(line.split(maxsplit=2)) == 3, f"no reason given: {line}"


def test_a_mistake_is_one_sentence_and_exit_1(tmp_path):
    result = run("convert", str(tmp_path / "none.pt"), "--out", str(tmp_path / "model"))
    assert result.exit_code == 1
    assert result.stderr.strip() == f"error: there is no {tmp_path / 'none.pt'}"


@pytest.mark.parametrize("arguments", [("frobnicate",), ("convert",), ("convert", "x", "--nope")])
def test_bad_usage_is_exit_2(arguments):
    assert run(*arguments).exit_code == 2


def test_an_interrupt_is_exit_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("gmt.doctor.versions", interrupted)
    assert run("doctor").exit_code == 130


def test_help_does_not_wait_for_torch():
    code = "import sys; sys.argv = ['gmt', '--help']\nimport gmt.cli\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "gmt", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_debug_shows_the_traceback(tmp_path):
    command = [sys.executable, "-m", "gmt", "data", "verify", str(tmp_path)]
    plain, debug = (
        subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GMT_DEBUG": value}).stderr
        for value in ("0", "1")
    )
    assert "Traceback" not in plain and "holds no prepared data" in plain
    assert "Traceback" in debug and "in verify" in debug


@pytest.mark.parametrize("words", [["--help"], ["prepare", "{text}", "--out", "{out}"], ["data", "verify", "{out}"]])
def test_commands_on_data_do_not_import_torch(tmp_path, words):
    (tmp_path / "text.txt").write_text("the cat sat on a mat " * 200)
    options = ["--tokenizer", "train:300", "--context", "16"]
    first = ["prepare", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), *options]
    if words[0] == "data":
        subprocess.run([sys.executable, "-m", "gmt", *first], check=True, capture_output=True)
    given = first if words[0] == "prepare" else [word.format(out=tmp_path / "out") for word in words]
    code = (
        "import sys, runpy\nsys.argv[0] = 'gmt'\n"
        "try:\n    runpy.run_module('gmt', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plan_under_torchrun_is_for_all_processes():
    command = [sys.executable, "-m", "gmt", "train", "tiny", "--plan"]
    shown = [
        subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "WORLD_SIZE": "2", "RANK": rank}
        ).stdout
        for rank in ("0", "1")
    ]
    assert re.search(r"processes +2\n", shown[0]) and shown[1] == ""
