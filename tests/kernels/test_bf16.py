"""The fused cell in bfloat16 against float64, on a CPU: with an interpreter that was taught bfloat16 (bf16.py)."""

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from gmt.model.parity import repeat_distances
from tests.kernels.bf16 import right_bfloat16
from tests.kernels.test_constants import changed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from parity_gpu import compare, digest, sized

SIZES = [(16, 32, 64), (5, 24, 37), (33, 40, 100), (128, 64, 96)]  # slots, hidden, tokens


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr):
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    a, b = tl.load(a_ptr + place), tl.load(b_ptr + place)
    chosen = (a > 0).to(tl.bfloat16)
    tl.store(out_ptr + place, tl.dot(a + b, b) + tl.dot(chosen, a) + (a.to(tl.float32) * 0.3).to(tl.bfloat16))


def test_the_interpreter_computes_in_bfloat16():
    a, b = (torch.randn(16, 16).bfloat16() for _ in range(2))
    out = torch.empty(16, 16)
    with right_bfloat16():
        product_kernel[(1,)](a, b, out)
    wide = [t.float() for t in ((a + b), b, (a > 0), a, (a.float() * 0.3).bfloat16())]
    torch.testing.assert_close(out, wide[0] @ wide[1] + wide[2] @ wide[3] + wide[4], rtol=1e-6, atol=1e-6)


def distances(size: tuple[int, int, int], seed: int = 1) -> dict[str, tuple[float, float]]:
    torch.manual_seed(seed)
    with right_bfloat16():
        return compare(*size, "bf16", "cpu")


def assert_near(found: dict[str, tuple[float, float]]) -> None:
    """Everything within a few roundings; what goes into memory is summed in two parts, and so nearly exact."""
    assert max(value for value, _ in found.values()) < 1.5e-2
    assert max(found[name][0] for name in ("slot sums", "slot counts")) < 3e-5


@pytest.mark.parametrize("size", SIZES)
def test_in_bfloat16_everything_is_within_its_rounding(size):
    assert_near(distances(size))


# of 160 single tokens those whose targets are the smallest beside their sources
PEAKED = {"size": (16, 768, 1), "seed": 110}


def test_a_small_target_keeps_its_digits():
    assert max(value for value, _ in distances(**PEAKED).values()) < 2e-2


def test_a_target_put_together_again_is_found(monkeypatch, tmp_path):
    name, old = "gmt.kernels.triton_cell", "target = narrow_target.to(tl.float32)"
    new = "target = narrow_source.to(tl.float32) + narrow_delta.to(tl.float32)"
    monkeypatch.setitem(sys.modules, name, changed(name, old, new, tmp_path))
    assert max(value for value, _ in distances(**PEAKED).values()) > 5e-2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hard = tl.dot(chosen, rest, hard", "hard = tl.dot(chosen * 0, rest, hard"),
        ("rest = load(rest_ptr + square_place", "rest = load(gram_ptr + square_place"),
    ],
)
def test_what_only_bfloat16_has_is_looked_at(monkeypatch, tmp_path, old, new):
    """The second parts, of outputs and of the gram matrix, are nothing in float32."""
    name = "gmt.kernels.triton_cell"
    monkeypatch.setitem(sys.modules, name, changed(name, old, new, tmp_path))
    with pytest.raises(AssertionError):
        assert_near(distances(SIZES[0]))


def test_the_same_tokens_give_the_same_digest():
    with right_bfloat16():
        first, second, other = (digest(*size, "bf16", "cpu") for size in (SIZES[1], SIZES[1], (5, 24, 38)))
        again = repeat_distances(sized(5, 24), torch.device("cpu"), "bf16", 37)
    assert set(again.values()) == {0.0} and first == second != other
