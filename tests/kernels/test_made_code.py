"""No result of a matrix product may be read by an integer instruction.

ptxas 12.8 and 12.9, which Triton 3.6 and 3.7 bring along, then take the result to be what the sum began with, and leave
the product out, if its loop is short enough to be unrolled: all tokens chose one slot in runs of an earlier version
(docs/performance.md, "Runs that routed nothing").
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def made():
    # a process of its own: in this one Triton's interpreter has taken the kernels over
    script = Path(__file__).with_name("made_code.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_turned_sign_is_found(made):
    assert made["turned"]["products"] and "xor.b32" in made["turned"]["integers"]


def test_every_kernel_reads_its_products_as_numbers(made):
    wrong = {name: found for name, found in made.items() if not found["products"] or found["integers"]}
    assert list(wrong) == ["turned"] and len(made) == 14
