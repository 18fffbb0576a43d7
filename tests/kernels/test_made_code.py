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
    turned = made["products"]["turned"]
    assert turned["products"] and "xor.b32" in turned["integers"]


def test_every_kernel_reads_its_products_as_numbers(made):
    found = made["products"]
    wrong = {name: seen for name, seen in found.items() if not seen["products"] or seen["integers"]}
    assert list(wrong) == ["turned"] and len(found) == 14


def test_rows_of_the_norm_are_fetched_ahead(made):
    """It is a hint, which a Triton may leave out: the same numbers, and a tenth slower."""
    assert made["fetched"] > 20
