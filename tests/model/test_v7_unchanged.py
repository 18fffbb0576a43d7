"""The numbers of v7 are those of commit 7a6b6de. `benchmarks/compare_commits.py` compares every bit on one machine."""

import json
from pathlib import Path

import pytest
import torch

from tests.v7_values import values

# made with the source of that commit: python tests/v7_values.py tiny float64
STORED = json.loads((Path(__file__).parent.parent / "fixtures" / "v7_tiny_float64.json").read_text())


def test_three_steps_of_tiny_in_float64():
    found = values("tiny", torch.float64)
    assert found.keys() == STORED.keys()
    for name, (total, norm) in STORED.items():
        assert found[name]["norm"] == pytest.approx(norm, rel=1e-6, abs=1e-12), name
        # a sum may cancel: its error is relative to the norm
        assert found[name]["sum"] == pytest.approx(total, abs=1e-6 * max(norm, 1e-6)), name


def test_a_changed_constant_would_be_seen(monkeypatch):
    from gmt import GMTConfig

    original = GMTConfig.preset
    monkeypatch.setattr(GMTConfig, "preset", lambda name, *changes: original(name, *changes, "losses.track=1.001"))
    found = values("tiny", torch.float64)
    assert any(found[name]["norm"] != pytest.approx(norm, rel=1e-6, abs=1e-12) for name, (_, norm) in STORED.items())
