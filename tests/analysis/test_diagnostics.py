"""Diagnostics against numbers worked out by hand."""

import math

import numpy as np
import pytest

from gmt.analysis.diagnostics import (
    block_diagnostics,
    consistency,
    gini,
    mean_cosine,
    role_switching,
    source_overlap,
    surprise,
)
from gmt.analysis.layout import place_slots
from gmt.analysis.trace import Trace


def hand_made(source_slot=(0, 0, 1, 1), target_slot=(1, 1, 1, 2), ids=(7, 8, 7, 9), slots=4) -> Trace:
    """One block; every token stands wholly in one slot and goes wholly to another."""
    tokens = len(ids)
    one_hot = np.eye(slots, dtype=np.float16)
    transition = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0]], dtype=np.float32)
    arrays = {
        "ids": np.array(ids),
        "surprise": np.array([np.nan, 1.0, 2.0, 6.0][:tokens]),
        "source": one_hot[list(source_slot)][None],
        "target": one_hot[list(target_slot)][None],
        "source_slot": np.array([source_slot]),
        "target_slot": np.array([target_slot]),
        "source_entropy": np.array([[0.0, 0.2, 0.4, 0.6]]),
        "target_entropy": np.array([[1.0, 1.0, 1.0, 3.0]]),
        "update_norm": np.array([[1.0, 2.0, 3.0, 6.0]]),
        "attention_norm": np.array([[2.0, 2.0, 2.0, 2.0]]),
        "residual_norm": np.array([[5.0, 5.0, 5.0, 5.0]]),
        "centroids": np.array([[[1.0, 0], [0, 1.0], [-1.0, 0], [0, 2.0]]]),
        "transition": transition[None],
        "usage": np.array([[0.5, 0.4, 0.001, 0.1]]),
        "gate": np.array([0.25]),
        "momentum": np.array([0.9]),
    }
    return Trace({"dead_below": 0.01, "name": "hand", "tokens": list("abcd")[:tokens]}, arrays)


def test_every_number_of_a_block():
    (found,) = block_diagnostics(hand_made())
    log2 = math.log(2)
    wanted = {
        "n_eff": 2.0,  # two slots with half the tokens each
        "gini": (2 * np.arange(1, 5) - 5) @ [0, 0, 0.5, 0.5] / 4,
        "dead_slots": 1.0,
        "coverage": 0.5,
        "target_coverage": 0.5,
        "centroid_cosine": (0 - 1 + 0 + 0 + 1 + 0) / 6,
        "edge_entropy": (0 + 0 + log2 + 1.5 * log2) / 4,
        "largest_edge": (1 + 1 + 0.5 + 0.5) / 4,
        "gate": 0.25,
        "momentum": 0.9,
        "source_entropy": 0.3,
        "target_entropy": 1.5,
        "self_route": 0.25,
        "update_norm": 3.0,
        "attention_norm": 2.0,
        "update_to_attention": 1.5,
        "residual_norm": 5.0,
    }
    assert found.keys() == wanted.keys() | {"edge_row_similarity"}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name


def test_gini_of_equals_is_nought_and_of_one_is_most():
    assert gini(np.full(8, 0.125)) == pytest.approx(0)
    assert gini(np.eye(8)[3]) == pytest.approx(1 - 1 / 8)
    assert gini(np.zeros(3)) == 0.0
    assert mean_cosine(np.array([[1.0, 0], [1.0, 0], [0, 3.0]])) == pytest.approx(1 / 3)


def test_role_switching_names_the_slot_and_both_classes():
    """Slot 1 is left by verbs and entered by nouns; slot 0 is only left, and so does not count."""
    made = hand_made((0, 0, 0, 1, 1, 1), (1, 1, 1, 2, 2, 2), (1, 2, 3, 4, 5, 6))
    switches, looked = role_switching(made, ["NOUN", "NOUN", "DET", "VERB", "VERB", "VERB"], 0)
    assert looked == 1
    assert switches == [(1, "VERB", "NOUN", 3, 3)]
    assert role_switching(made, ["NOUN"] * 6, 0) == ([], 1)
    assert role_switching(made, ["NOUN"] * 6, 0, least=4) == ([], 0)


def test_consistency_counts_pairs_of_one_token():
    found = consistency(hand_made((0, 0, 1, 0), ids=(7, 7, 7, 9)))
    assert found is not None and found.pairs == 3
    assert found.same_slot[0] == pytest.approx(1 / 3) and found.overlap[0] == pytest.approx(1 / 3)
    assert consistency(hand_made(ids=(1, 2, 3, 4))) is None


def test_overlap_of_source_sets():
    assert source_overlap(hand_made((0, 0, 1, 1)), hand_made((1, 2, 2, 2)))[0] == pytest.approx(1 / 3)
    assert source_overlap(hand_made(), hand_made())[0] == 1.0


def test_surprise_leaves_out_what_nothing_comes_before():
    assert surprise(hand_made()) == {"tokens": 4, "scored": 3, "loss": 3.0, "perplexity": pytest.approx(math.exp(3))}


def test_slots_lie_where_their_states_do():
    """Two heaps of slots lie apart, and the same states always lie alike."""
    rng = np.random.default_rng(0)
    heaps = np.repeat([[5.0, 0, 0], [-5.0, 0, 0]], 4, axis=0) + rng.normal(size=(8, 3)) * 0.1
    places = place_slots(heaps)
    assert places.shape == (8, 2) and places.min() >= 0 and places.max() <= 1
    first = places[:, 0]
    assert min(first[:4].min(), first[4:].min()) == first.min()
    assert first[:4].max() < first[4:].min() or first[4:].max() < first[:4].min()
    np.testing.assert_array_equal(places, place_slots(heaps.copy()))
    assert place_slots(np.ones((2, 5))).shape == (2, 2)
