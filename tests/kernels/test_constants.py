"""A number, a sign or an index changed in a kernel is found: each of these changes is made, and the comparison with the
plain cell must fail."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from gmt.kernels import operators
from tests.kernels.test_cell import assert_alike, make_cell

CELL, NORM, SUMS = (f"gmt.kernels.triton_{name}" for name in ("cell", "norm", "sums"))
CHANGES = [
    (NORM, "EPS = tl.constexpr(1e-8)", "EPS = tl.constexpr(40.0)"),
    (CELL, "along * (-1.0 / length)[:, None] + 1.0", "along * (-1.0 / length)[:, None] + 1.001"),
    (NORM, "tl.sum(off * off, 0) / H", "tl.sum(off * off, 0) / (H + 1)"),
    (CELL, "tl.where(counts, slot, -1)", "tl.where(counts, slot, 0)"),
    (CELL, "logit += load(scores_ptr + place_2f + F,", "logit += load(scores_ptr + place_2f,"),
    (CELL, "input_precision=PRECISION) * H", "input_precision=PRECISION) * (H + 1)"),
    (CELL, "(2.0 * total - H * lean) * lean", "(2.1 * total - H * lean) * lean"),
    (CELL, "2.0 * (H * lean - total)", "1.9 * (H * lean - total)"),
    (CELL, "-0.5 * bend[:, None]", "-0.4 * bend[:, None]"),
    (CELL, "tl.dot(bent + bent, gram,", "tl.dot(bent, gram,"),
    (CELL, "usage[None, :] - 2.0 * error * pull", "usage[None, :] - 1.9 * error * pull"),
    (SUMS, "total *= error * H", "total *= error * (H - 1)"),
    (CELL, "/ (length * length)", "/ length"),
    (NORM, "tl.sum(b_dunit * b_unit, 0)) / H", "tl.sum(b_dunit * b_unit, 0)) / (H - 1)"),
    (NORM, "mean = (tl.sum(a_dunit, 0) +", "mean = (0.9 * tl.sum(a_dunit, 0) +"),
    (SUMS, "total, kept_ptr, dscores_ptr + F,", "total, kept_ptr, dscores_ptr,"),
    (SUMS, "tl.minimum(first + tokens_per_part, n_tokens)", "tl.minimum(first + 2 * tokens_per_part, n_tokens)"),
    (SUMS, "block - a_end, 1.0, B_BP", "block - a_end + 1, 1.0, B_BP"),
    (SUMS, "C_TIMES * tl.load(factor_ptr)", "0.9 * C_TIMES * tl.load(factor_ptr)"),
    (SUMS, "D_TIMES * tl.load(factor_ptr)", "0.9 * D_TIMES * tl.load(factor_ptr)"),
    (NORM, "a_whole += a_grad", "a_whole += 0.99 * a_grad"),
    (NORM, "b_whole += b_grad", "b_whole += 0.99 * b_grad"),
    (NORM, "a_product += a_dz * a_unit", "a_product += 0.99 * a_dz * a_unit"),
    (NORM, "b_plain += b_dz", "b_plain = b_dz"),
    (NORM, "unit * weight + bias\n    tl.store", "unit * weight + 1.1 * bias\n    tl.store"),
    (CELL, "offset_ptr + F + slots", "offset_ptr + slots"),
    (NORM, "* (unit * weight + bias)", "* (unit * weight - bias)"),
    (NORM, "+ dz * weight", "+ dz"),
    (NORM, "dscores += load(", "dscores += 1.01 * load("),
    (NORM, "columns_ptr + 3 * H + scores, dscores", "columns_ptr + 3 * H + scores, 0.99 * dscores"),
    (NORM, "dx.to(dupdate_ptr.dtype.element_ty)", "(0.99 * dx).to(dupdate_ptr.dtype.element_ty)"),
]  # fmt: skip


def changed(name: str, old: str, new: str, folder: Path):
    """The module as it would be. In a file: the interpreter reads a kernel's source again."""
    source = Path(str(importlib.import_module(name).__file__)).read_text()
    assert source.count(old) == 1, f"{old} stands {source.count(old)} times in {name}"
    file = folder / "changed.py"
    file.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """So that each has several rows."""
    monkeypatch.setattr(operators, "NORM_PROGRAMS", 7)


def both_alike() -> None:
    assert_alike(make_cell(18, 40), 40, 40)
    assert_alike(make_cell(18, 40), 40, 40, tracking=True)


def masked_alike() -> None:
    """With tiles that are full."""
    assert_alike(make_cell(64, 64), 64, 64, mask=torch.arange(64)[None] % 5 != 2, tracking=True)


@pytest.mark.parametrize(("module", "old", "new"), CHANGES, ids=[change[1] for change in CHANGES])
def test_a_changed_constant_is_found(monkeypatch, tmp_path, module, old, new):
    monkeypatch.setitem(sys.modules, module, changed(module, old, new, tmp_path))
    with pytest.raises(AssertionError):
        both_alike()


MASKS = [
    (SUMS, "fits, EVEN and not HAS_MASK)", "fits, EVEN)"),
    (SUMS, "BT, BI, BJ, HAS_MASK, full, PRECISION", "BT, BI, BJ, False, full, PRECISION"),
    (CELL, "EVEN and not HAS_MASK)", "EVEN)"),
]


@pytest.mark.parametrize(("module", "old", "new"), MASKS, ids=[change[1] for change in MASKS])
def test_a_forgotten_mask_is_found(monkeypatch, tmp_path, module, old, new):
    monkeypatch.setitem(sys.modules, module, changed(module, old, new, tmp_path))
    with pytest.raises(AssertionError):
        masked_alike()


@pytest.mark.parametrize("module", [CELL, NORM, SUMS])
def test_a_copy_that_is_not_changed_agrees(monkeypatch, tmp_path, module):
    monkeypatch.setitem(sys.modules, module, changed(module, "import triton\n", "import triton\n", tmp_path))
    both_alike()
    masked_alike()
