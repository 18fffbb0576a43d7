"""What the page is told of a text, counted on paper, and against the library's own numbers."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gmt.analysis.diagnostics import role_switching
from gmt.analysis.layout import place_slots
from gmt.analysis.meaning import Meaning
from gmt.analysis.trace import Trace
from gmt.errors import GMTError
from gmt.explorer import answers
from gmt.explorer.answers import Reading
from tests.analysis.conftest import CLASSES, TOKENS, dense_trace, hand_trace, small_trace

MEANING = Meaning([(" up", 2.0), (" high", 1.0)], [(" down", -3.0)])


def reading(trace: Trace | None = None, classes: list[str] | None = CLASSES) -> Reading:
    trace = trace or small_trace()
    count = len(trace.tokens)
    facts = trace.facts | {"predicted_words": [f" p{n}" for n in range(count)], "windows": 1}
    lengths = np.arange(1.0, trace.blocks * count + 1).reshape(trace.blocks, count)
    arrays = trace.arrays | {"update_norm": lengths}
    if trace.has_memory:
        arrays["shift_norm"] = arrays["update_norm"] * 2
        for name in ("source", "target"):
            arrays[f"top_{name}"] = np.argsort(-arrays[name], axis=-1, kind="stable")[..., :5]
    words = [[f" n{place}", " other"] for place in range(count)]
    return Reading(Trace(facts, arrays), classes, words, np.array([[0.75, 0.25]] * count), [])


def strict(answer: dict[str, Any]) -> dict[str, Any]:
    """It is JSON, without NaN."""
    return json.loads(json.dumps(answer, allow_nan=False))


def test_numbers_that_are_none_are_null():
    assert answers.plain(np.array([[1.23456789, np.nan], [np.inf, -np.inf]])) == [[1.234568, None], [None, None]]
    assert answers.plain(math.nan) is None and answers.plain(np.float32(0.5)) == 0.5
    assert type(answers.plain(np.float32(0.5))) is float


def test_a_text_is_told_token_by_token():
    found = strict(answers.read(reading()))
    assert found["tokens"] == TOKENS and found["classes"] == CLASSES
    assert found["surprise"] == [None, 1, 2, 3, 4, 5] and found["loss"] == 3
    assert found["source_slot"] == [[1, 1, 1, 0, 2, 1], [0] * 6]
    assert found["target_slot"] == [[3, 3, 3, 0, 1, 2], [1] * 6]
    assert found["next"] == [{"word": " n5", "p": 0.75}, {"word": " other", "p": 0.25}]
    assert list(found["quantities"]) == list(answers.TITLES)
    assert found["quantities"]["update_norm"] == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
    assert found["quantities"]["self_route"] == [[0, 0, 0, 1, 0, 0], [0] * 6]
    assert answers.read(reading(hand_trace([[0]], [[1]])))["loss"] is None, "one token has nothing before it"


def test_a_token_is_followed_down_all_blocks():
    found = strict(answers.token(reading(), 4))
    assert (found["token"], found["class"], found["surprise"], found["predicted"]) == (" d", "NOUN", 4, " p4")
    assert [step["block"] for step in found["blocks"]] == [0, 1]
    first = found["blocks"][0]
    assert first["source"][0] == {"slot": 2, "p": pytest.approx(0.7, abs=1e-3)} and first["target"][0]["slot"] == 1
    assert first["update_norm"] == 5 and first["shift"] == 10
    parts = sum(step["logit_update"] + step["logit_attention"] for step in found["blocks"])
    assert found["embedding"] + found["bias"] + parts == pytest.approx(found["logit"])


@pytest.mark.parametrize("place", [-1, 6, 99])
def test_a_place_that_is_not_there(place):
    with pytest.raises(GMTError, match=f"no place {place}; this text has the places 0 to 5"):
        answers.token(reading(), place)


def test_a_block_is_told_by_its_moves():
    found = strict(answers.block(reading(), 0))
    assert found["leaving"] == [1, 4, 1, 0] and found["entering"] == [1, 1, 1, 3]
    moves = [(m["source"], m["target"], m["class"], m["count"], m["examples"]) for m in found["moves"]]
    assert moves == [
        (1, 3, "DET", 2, ["a"]), (0, 0, "VERB", 1, [" c"]), (1, 2, "PUNCT", 1, [" e"]), (1, 3, "NOUN", 1, [" b"]),
        (2, 1, "NOUN", 1, [" d"]),
    ]  # fmt: skip
    places, share = place_slots(small_trace().states[0])
    assert np.allclose(found["places"], places, atol=1e-5) and found["share"] == pytest.approx(share, abs=1e-5)
    assert found["transition"][0] == [0, 0.33333, 0.33333, 0.33333]
    assert found["gate"] == pytest.approx(0.1) and found["momentum"] == pytest.approx(0.9)
    untagged = answers.block(reading(classes=None), 0)["moves"]
    assert [(m["count"], m["class"]) for m in untagged] == [(3, None), (1, None), (1, None), (1, None)]


def test_a_slot_has_its_card():
    edges = small_trace().transition.copy()
    edges[0, 1] = [0.5, 0, 0.2, 0.3]
    corpus = [{"before": "the", "token": " cat", "after": " sat"}]
    found = strict(answers.slot(reading(small_trace(transition=edges)), 0, 1, MEANING, corpus))
    assert found["leaving"] == [{"token": "a", "count": 2}, {"token": " b", "count": 1}, {"token": " e", "count": 1}]
    assert found["entering"] == [{"token": " d", "count": 1}]
    assert found["goes_to"] == [{"slot": 3, "count": 3}, {"slot": 2, "count": 1}]
    assert found["comes_from"] == [{"slot": 2, "count": 1}]
    assert [edge["slot"] for edge in found["edges"]] == [0, 3, 2, 1]
    assert found["promotes"] == [{"word": " up", "change": 2}, {"word": " high", "change": 1}]
    assert found["suppresses"] == [{"word": " down", "change": -3}]
    assert found["classes_leaving"] == {"DET": 2, "NOUN": 1, "PUNCT": 1} and found["classes_entering"] == {"NOUN": 1}
    assert found["dead"] is False and found["usage"] == 0.25 and found["corpus"] == corpus
    idle = small_trace(usage=np.full((2, 4), 0.001))
    assert answers.slot(reading(idle), 0, 1, MEANING, [])["dead"] is True


def test_a_slot_that_switches_roles_says_so():
    trace = hand_trace([[0, 0, 0, 1, 1, 1]], [[2, 2, 2, 0, 0, 0]])
    classes = ["NOUN"] * 3 + ["VERB"] * 3
    assert [switch.slot for switch in role_switching(trace, classes, 0)[0]] == [0]
    told = [answers.slot(reading(trace, classes), 0, slot, MEANING, [])["switches"] for slot in range(4)]
    assert told == [True, False, False, False]
    assert answers.slot(reading(trace, None), 0, 0, MEANING, [])["switches"] is False


@pytest.mark.parametrize(
    ("block", "slot", "message"), [(2, 0, "no block 2"), (-1, 0, "no block -1"), (0, 4, "no slot 4")]
)
def test_blocks_and_slots_that_are_not_there(block, slot, message):
    with pytest.raises(GMTError, match=message):
        answers.slot(reading(), block, slot, MEANING, [])


def test_without_memory_the_rest_is_told():
    made = replace(reading(dense_trace()), classes=None)
    found = strict(answers.read(made))
    assert set(found["quantities"]) == set(answers.TITLES) - answers.OF_MEMORY
    assert found["source_slot"] == found["target_slot"] == [] and found["classes"] is None
    step = strict(answers.token(made, 0))["blocks"][0]
    assert step["source"] == [] and step["shift"] is None and step["update_norm"] == 1
    for refused in (lambda: answers.block(made, 0), lambda: answers.slot(made, 0, 0, MEANING, [])):
        with pytest.raises(GMTError, match="no memory"):
            refused()
