"""The command line as a user meets it: exit codes, one sentence for a mistake, help with defaults."""

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
