"""What a newcomer does: `make demo`, then every command and Python block of the README on what it made."""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from gmt import GMTConfig, GraphMemoryLM
from gmt.train.metrics import read_metrics
from tests.data.conftest import invented

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
GMT = [sys.executable, "-m", "gmt"]
STEPS = 24
# lines that this test does not run, and what stands in for them
NOT_RUN = {"make demo": "the fixture `demo`", "make test": "this suite", "source .venv/bin/activate": "sys.executable"}


def blocks(text: str, language: str) -> list[str]:
    fenced = text.split("```")[1::2]  # what is between two fences; the first line names the language
    return [block.partition("\n")[2] for block in fenced if block.partition("\n")[0] == language]


def commands() -> list[tuple[str, str]]:
    """Every shell line of the README: the command, and its comment."""
    lines = [line for block in blocks(README, "sh") for line in block.splitlines() if line.strip() and line[0] != "#"]
    return [(command.strip(), comment) for command, _, comment in (line.partition("#") for line in lines)]


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 120
    for name, text in [("README.md", README), *((f"docs/guides/{p.name}", p.read_text("utf-8")) for p in GUIDES)]:
        for link in re.findall(r"\]\(([^)]+)\)", text):
            if link.startswith("http"):
                continue
            path, _, anchor = link.partition("#")
            target = ((ROOT / name).parent / path).resolve() if path else ROOT / name
            assert target.exists(), f"{name}: {link}"
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE) if anchor else []
            anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert not anchor or anchor in anchors, f"{name}: {link}"


def test_every_command_is_run_or_says_what_it_needs():
    for command, comment in commands():
        known = command in NOT_RUN or command.startswith("gmt ")
        assert known or "needs a network" in comment or "needs a GPU" in comment, command
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "demo: install\n\t$(BIN)/gmt demo\n" in makefile


# --- what `make demo` makes ---


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """A folder with runs/demo, made by a short `gmt demo`; the processes of a parallel run of the tests share it."""
    shared = os.environ.get("PYTEST_XDIST_WORKER") is not None
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if shared else base) / "newcomer"
    with FileLock(f"{place}.lock"):
        if not (place / "demo.log").exists():
            place.mkdir()
            done = subprocess.run([*GMT, "demo", "--steps", str(STEPS)], cwd=place, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            (place / "demo.err").write_text(done.stderr, encoding="utf-8")
            (place / "demo.log").write_text(done.stdout, encoding="utf-8")
    return place


CLOSING = r"""
Done in \d+ min \d\d s\. Two models of about 598,280 parameters; each read 0\.0 M tokens\.

  model    validation loss    memory removed    edges shuffled    tokens/s
  dense +\d\.\d{4} +- +- +[\d,]+
  v7 +\d\.\d{4} +[+-]\d\.\d{4} +[+-]\d\.\d{4} +[\d,]+

Removing the memory of v7 .* the loss .*\(.* to .*\)\.
Shuffling the edges of v7 .* the loss .*\(.* to .*\)\.
\(Nats per token over 128 validation windows, with 95 % intervals\. Each model is at its lowest
validation loss: dense at step \d+, v7 at step \d+\.\)

Open this page:   runs/demo/report/index\.html
Then try:         source \.venv/bin/activate
                  gmt explore runs/demo/v7
                  gmt intervene runs/demo/v7 --data runs/demo/data --out runs/demo/edits
"""


def test_the_output_of_the_demo(demo):
    out, err = ((demo / f"demo.{name}").read_text(encoding="utf-8") for name in ("log", "err"))
    assert re.search(CLOSING.lstrip() + "$", out), out
    lines = (out + err).splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 110, out + err
    assert "Loading weights" not in err and "\r" not in err, "only our own progress, one line per tenth"
    # the README shows the same lines with the numbers of a whole run
    shown, printed = ([line.split()[:3] for line in text.strip().splitlines()] for text in (blocks(README, "")[0], out))
    words = [[word for word in line if not re.search(r"\d", word)] for line in shown]
    assert words == [[w for w in line if not re.search(r"\d", w)] for line in printed[-len(shown) - 3 : -3]]


def test_both_models_read_the_same_batches_and_are_of_one_size(demo):
    settings = {}
    for name in ("dense", "v7"):
        (newest, *_) = sorted((demo / "runs/demo" / name / "checkpoints").glob("step-*"), reverse=True)
        settings[name] = json.loads((newest / "progress.json").read_text())["config"]
    for section in ("train", "validation", "save"):
        assert settings["dense"][section] == settings["v7"][section]
    models = {name: GraphMemoryLM(GMTConfig.from_dict(tree)) for name, tree in settings.items()}
    dense, v7 = (sum(p.numel() for p in lm.parameters()) for lm in models.values())
    assert v7 == 598_280 and abs(dense - v7) < 0.001 * v7
    start = {"gate_init": -2.0, "momentum_init": 9.0, "navigation_init": 0.06}
    assert {key: settings["v7"]["memory"][key] for key in start} == start
    assert (settings["v7"]["losses"]["begin"], settings["v7"]["losses"]["full"]) == (0.5, 1.0)


def test_one_model_has_one_validation_loss(demo, tmp_path):
    """The progress bar (metrics.jsonl), the table, `gmt eval`, `gmt intervene` and the report print the same loss."""
    out, err = ((demo / f"demo.{name}").read_text(encoding="utf-8") for name in ("log", "err"))
    for name in ("dense", "v7"):
        record = read_metrics(demo / "runs/demo" / name / "metrics.jsonl")
        loss = f"{min(line['val_loss'] for line in record if 'val_loss' in line):.4f}"
        assert re.search(rf"^  {name} +{loss} ", out, re.MULTILINE)
        assert re.search(rf"^{name:<5}: 100 %.* lowest validation loss {loss}$", err, re.MULTILINE)
    page = (demo / "runs/demo/report/index.html").read_text(encoding="utf-8")
    assert f"{loss} nats (frozen memory, 128 windows)" in page
    intervened = json.loads((demo / "runs/demo/edits/results.jsonl").read_text().splitlines()[0])
    assert f"{sum(intervened['losses']) / 128:.4f}" == loss
    command = [*GMT, "eval", "runs/demo/v7", "--data", "runs/demo/data", "--out", str(tmp_path / "v7.json")]
    subprocess.run(command, cwd=demo, check=True, capture_output=True)
    evaluated = json.loads((tmp_path / "v7.json").read_text())["validation"]["frozen"]
    assert f"{evaluated['loss']['value']:.4f}" == loss and evaluated["tokens"] == 128 * 128


def test_the_report_reads_validation_text_of_the_model(demo):
    traces = {path.stem for path in (demo / "runs/demo/report/traces").glob("*.safetensors")}
    assert traces == {"validation-1", "validation-2", "general"}
    page = (demo / "runs/demo/report/index.html").read_text(encoding="utf-8")
    assert "Result of the demo" in page and "Shuffling the edges of v7" in page and "Words used on this page" in page


# --- the README, run in the same folder ---


def test_the_commands_run_in_order(demo):
    """All commands that need neither network nor GPU, as they are printed."""
    (demo / "texts").mkdir(exist_ok=True)
    (demo / "texts" / "book.txt").write_text("\n".join(invented(1500)), encoding="utf-8")
    ran = 0
    for command, comment in commands():
        if command in NOT_RUN or "needs a" in comment:
            continue
        words = shlex.split(command)[1:]
        if words[0] == "explore":
            explore(demo, words)
        else:
            words = [w for word in words for w in (map(str, demo.glob(word)) if "*" in word else [word])]
            done = subprocess.run([*GMT, *words], cwd=demo, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            assert "split by tokens: 1 document" in done.stdout or words[0] != "prepare"
        ran += 1
    assert ran >= 6


def explore(place: Path, words: list[str]) -> None:
    """The page opens, then Ctrl+C ends the command."""
    server = subprocess.Popen([*GMT, *words, "--port", "0"], cwd=place, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert b"<html" in answer.read(2000)
    finally:
        server.terminate()
        server.wait(timeout=30)


def test_the_python_of_the_readme(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    (block,) = blocks(README, "python")
    exec(block, {})
    token, change = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"\w+ \d+", token) and abs(float(change)) < 1


PYTHON = [(path.stem, n, block) for path in GUIDES for n, block in enumerate(blocks(path.read_text("utf-8"), "python"))]


@pytest.mark.parametrize(("name", "number", "block"), PYTHON, ids=[f"{name}-{n}" for name, n, _ in PYTHON])
def test_the_python_of_the_guides(name, number, block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- tables and trees ---


def test_the_preset_table_is_true():
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \|$", (ROOT / "docs/guides/train.md").read_text(), re.MULTILINE)
    assert len(rows) == 7
    for name, count in rows:
        with torch.device("meta"):
            lm = GraphMemoryLM(GMTConfig.preset(name))
        assert f"{sum(p.numel() for p in lm.parameters()):,}" == count, name


def test_the_file_tree_names_every_package():
    tree = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## File tree")[1].split("```")[1]
    package = ROOT / "src" / "gmt"
    for path in package.glob("memory/*.py"):
        assert path.name in tree or path.stem == "__init__", f"{path} is not in the file tree"
    for folder in (p for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"):
        assert f"{folder.name}/" in tree, f"{folder} is not in the file tree"
