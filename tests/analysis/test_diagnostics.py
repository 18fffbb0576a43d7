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
        "shift_norm": np.array([[0.0, 2.0, 2.0, 4.0]]),
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
        "n_eff_hard": 2.0,
        "gini_hard": 0.5,
        "target_n_eff_hard": math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))),
        "target_gini_hard": (2 * np.arange(1, 5) - 5) @ [0, 0, 0.25, 0.75] / 4,
        "largest_source": 0.5,
        "largest_target": 0.75,
        "shift_norm": 2.0,
        "dead_slots": 1.0,
        "coverage": 0.5,
        "target_coverage": 0.5,
        "centroid_cosine": (0 - 1 + 0 + 0 + 1 + 0) / 6,
        "edge_entropy": (0 + 0 + log2 + 1.5 * log2) / 4,
        "largest_edge": (1 + 1 + 0.5 + 0.5) / 4,
        # cosines of the six pairs of rows of P: 0, 1/√2, 1/√6, 1/√2, 2/√6, (1/8 + 1/8) / (√1/2 √3/8)
        "edge_row_similarity": (0 + 0.5**0.5 + 1 / 6**0.5 + 0 + 2 / 6**0.5 + 0.25 / (0.5**0.5 * 0.375**0.5)) / 6,
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
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name


def test_gini_of_equals_is_nought_and_of_one_is_most():
    assert gini(np.full(8, 0.125)) == pytest.approx(0)
    assert gini(np.eye(8)[3]) == pytest.approx(1 - 1 / 8)
    assert gini(np.zeros(3)) == 0.0
    assert mean_cosine(np.array([[1.0, 0], [1.0, 0], [0, 3.0]])) == pytest.approx(1 / 3)


def test_soft_and_hard_use_are_two_things():
    """Tokens spread over all slots that lean to one: soft N_eff is many, hard N_eff is one."""
    made = hand_made((0, 0, 0, 0))
    made.arrays["source"] = np.tile(np.array([0.28, 0.24, 0.24, 0.24], dtype=np.float16), (1, 4, 1))
    (found,) = block_diagnostics(made)
    assert found["n_eff"] > 3.9 and found["n_eff_hard"] == pytest.approx(1.0, abs=1e-6)
    assert found["gini"] < 0.05 and found["gini_hard"] == pytest.approx(0.75)


def test_role_switching_names_the_slot_and_both_classes():
    """Slot 1 is left by verbs and entered by nouns; slot 0 is only left, and so does not count."""
    made = hand_made((0, 0, 0, 1, 1, 1), (1, 1, 1, 2, 2, 2), (1, 2, 3, 4, 5, 6))
    switches, looked = role_switching(made, ["NOUN", "NOUN", "DET", "VERB", "VERB", "VERB"], 0)
    assert looked == 1
    assert switches == [(1, "VERB", 1.0, "NOUN", 2 / 3, 3, 3, True)]
    assert role_switching(made, ["NOUN"] * 6, 0) == ([], 1)
    assert role_switching(made, ["NOUN"] * 6, 0, least=4) == ([], 0)
    third = ["NOUN", "DET", "ADJ", "VERB", "VERB", "VERB"]
    assert role_switching(made, third, 0) == ([], 1), "a third is no majority"


def test_consistency_counts_pairs_of_one_token_and_of_different_ones():
    found = consistency(hand_made((0, 0, 1, 0), ids=(7, 7, 7, 9)))
    assert found is not None and (found.types, found.pairs) == (1, 3)
    assert found.same_slot[0] == pytest.approx(1 / 3) and found.overlap[0] == pytest.approx(1 / 3)
    assert found.different[0] == pytest.approx(2 / 3)  # the last token shares its slot with two of three others
    assert consistency(hand_made(ids=(1, 2, 3, 4))) is None


def test_consistency_counts_every_type_once():
    """One type of three places that agree never, another of two that agree always: a half, and not a quarter."""
    made = hand_made((0, 1, 2, 3, 3), (1, 1, 1, 1, 1), (7, 7, 7, 8, 8))
    found = consistency(made)
    assert found is not None and found.same_slot[0] == pytest.approx(0.5) and found.overlap[0] == pytest.approx(0.5)


def test_overlap_of_source_sets():
    assert source_overlap(hand_made((0, 0, 1, 1)), hand_made((1, 2, 2, 2)))[0] == pytest.approx(1 / 3)
    assert source_overlap(hand_made(), hand_made())[0] == 1.0


def test_surprise_leaves_out_what_nothing_comes_before():
    assert surprise(hand_made()) == {"tokens": 4, "scored": 3, "loss": 3.0, "perplexity": pytest.approx(math.exp(3))}


def test_slots_lie_where_their_states_do():
    """Two heaps of slots lie apart, and the same states always lie alike."""
    rng = np.random.default_rng(0)
    heaps = np.repeat([[5.0, 0, 0], [-5.0, 0, 0]], 4, axis=0) + rng.normal(size=(8, 3)) * 0.1
    places, share = place_slots(heaps)
    assert 0.9 < share <= 1
    assert places.shape == (8, 2) and places.min() >= 0 and places.max() <= 1
    first = places[:, 0]
    assert min(first[:4].min(), first[4:].min()) == first.min()
    assert first[:4].max() < first[4:].min() or first[4:].max() < first[:4].min()
    np.testing.assert_array_equal(places, place_slots(heaps.copy())[0])
    assert place_slots(np.ones((2, 5)))[0].shape == (2, 2)
