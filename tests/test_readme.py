"""The README's Python runs as it stands, in one go, and its numbers are true."""

import re
from pathlib import Path

import torch

from gmt import GMTConfig, GraphMemoryLM

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    scope: dict[str, object] = {}
    for block in blocks:
        exec(block, scope)
    assert (tmp_path / "my-model" / "model.safetensors").exists()


def test_the_preset_table_is_true():
    for name, count in re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \|$", README, re.MULTILINE):
        with torch.device("meta"):
            lm = GraphMemoryLM(GMTConfig.preset(name))
        assert f"{sum(p.numel() for p in lm.parameters()):,}" == count, name


def test_the_annotated_tree_names_what_is_there():
    tree = README.split("## Where things are")[1].split("```")[1]
    root = Path(__file__).parent.parent
    package = root / "src" / "gmt"
    for path in package.glob("*/*.py"):
        if path.parent.name == "memory" and path.stem != "__init__":
            assert path.name in tree, f"{path} is not in the README's tree"
    for folder in (p for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"):
        assert f"{folder.name}/" in tree, f"{folder} is not in the README's tree"
