"""The wheel, built and installed where nothing else is: the dependencies it declares must be enough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FORWARD = """
import torch
from gmt import GMTConfig, GraphMemoryLM
import gmt.hf
lm = GraphMemoryLM(GMTConfig.preset("tiny"))
ids = torch.randint(lm.cfg.model.vocab, (2, 16))
out = lm(ids, labels=ids)
out.loss.backward()
lm.commit(out.writes)
print(gmt.__file__, tuple(out.logits.shape))
"""


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(*command: str | Path) -> str:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("graph_memory_transformer-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert "doctor" in run(tmp_path / "env" / "bin" / "gmt", "--help")
    where, shape = run(python, "-c", FORWARD).strip().split(maxsplit=1)
    assert where.startswith(str(tmp_path / "env")) and shape == "(2, 16, 2048)"
