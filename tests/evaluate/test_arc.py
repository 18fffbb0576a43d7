"""ARC-Easy on its own, against the paper's equations one item and one token at a time."""

import json
import math

import pytest
import torch

from gmt.errors import DataError
from gmt.evaluate.arc import Item, arc_easy, judge, read_items, requests_of
from gmt.evaluate.likelihood import Request, encode_pair, log_likelihoods
from tests.evaluate.conftest import CONTEXT, ITEMS, row, write_items


@pytest.fixture
def items(tmp_path):
    return read_items(write_items(tmp_path / "items.jsonl"))


def oracle(loaded, item: Item) -> list[tuple[float, int]]:
    """S_raw and m_k of each choice: log p of every token from a forward pass over just the tokens before it."""
    scores = []
    for choice in item.choices:
        text = "Question: " + item.question + "\nAnswer:"
        whole = loaded.words.encode(text + " " + choice).ids
        count = len(whole) - len(loaded.words.encode(text).ids)
        # what does not fit is cut from the left, the last token being none that is read
        cut = max(0, len(whole) - 1 - CONTEXT)
        total, scored = 0.0, 0
        for place in range(max(len(whole) - count, cut + 1), len(whole)):
            with torch.no_grad():
                logits = loaded.lm(torch.tensor([whole[cut:place]]), observe=False).logits[0, -1].double()
            total += float(logits[whole[place]] - torch.logsumexp(logits, 0))
            scored += 1
        scores.append((total, scored))
    return scores


def test_it_is_the_papers_equations(loaded, items):
    wanted = [oracle(loaded, item) for item in items]
    found = log_likelihoods(loaded.lm, requests_of(items, loaded.words), batch=4)
    flat = [score for scores in wanted for score in scores]
    assert [score.tokens for score in found] == [count for _, count in flat]
    for score, (total, _) in zip(found, flat, strict=True):
        assert math.isclose(score.total, total, abs_tol=2e-4)
    result = arc_easy(loaded.lm, loaded.words, items)
    raw = [max(range(len(s)), key=lambda k: s[k][0]) == item.answer for s, item in zip(wanted, items, strict=True)]
    norm = [
        max(range(len(s)), key=lambda k: s[k][0] / s[k][1]) == item.answer
        for s, item in zip(wanted, items, strict=True)
    ]
    assert result.metrics["acc"].value == pytest.approx(sum(raw) / len(items))
    assert result.metrics["acc_norm_tokens"].value == pytest.approx(sum(norm) / len(items))
    assert result.metrics["acc"].each == "".join(str(int(r)) for r in raw)


def test_the_items_exercise_what_they_should(loaded, items):
    """A question over the context, choices of different lengths, and a case where the two accuracies part."""
    requests = requests_of(items, loaded.words)
    assert any(len(r.context) > CONTEXT for r in requests)
    assert any(len(r.continuation) > CONTEXT for r in requests)
    assert len({len(r.continuation) for r in requests}) > 4
    result = arc_easy(loaded.lm, loaded.words, items)
    assert result.metrics["acc"].each != result.metrics["acc_norm_tokens"].each


@pytest.mark.parametrize("batch", [1, 3, 100])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_size_and_padding_side_change_no_prediction(loaded, items, batch, side):
    plain = arc_easy(loaded.lm, loaded.words, items, batch=2)
    found = arc_easy(loaded.lm, loaded.words, items, batch=batch, side=side)
    assert {n: m.each for n, m in found.metrics.items()} == {n: m.each for n, m in plain.metrics.items()}
    a, b = (
        log_likelihoods(loaded.lm, requests_of(items, loaded.words), size, side=s)
        for size, s in ((1, "right"), (batch, side))
    )
    for x, y in zip(a, b, strict=True):
        assert math.isclose(x.total, y.total, abs_tol=2e-4)


def test_order_of_items_changes_no_prediction(loaded, items):
    forth = arc_easy(loaded.lm, loaded.words, items, batch=4).metrics["acc"].each
    back = arc_easy(loaded.lm, loaded.words, items[::-1], batch=4).metrics["acc"].each
    assert isinstance(forth, str) and isinstance(back, str)
    assert forth == back[::-1]


def test_spaces_go_with_the_continuation():
    """As the harness: trailing spaces of the context are moved, and tokens are those of the whole text."""
    calls = []

    def encode(text: str) -> list[int]:
        calls.append(text)
        return [ord(c) for c in text]

    assert encode_pair(encode, "Answer:  ", "yes") == Request([ord(c) for c in "Answer:"], [ord(c) for c in "  yes"])
    assert calls == ["Answer:  yes", "Answer:"]


def test_the_first_of_equals_is_the_answer():
    from gmt.evaluate.likelihood import Score

    items = [Item("q", ["a", "b"], 0), Item("q", ["a", "b"], 1)]
    result = judge(items, [Score(-1.0, 1), Score(-1.0, 1), Score(-2.0, 2), Score(-1.0, 1)])
    assert result.metrics["acc"].each == "11"
    assert result.metrics["acc_norm_tokens"].each == "10"


def edited(number: int, change) -> list[str]:
    rows = [row(n, *item) for n, item in enumerate(ITEMS)]
    change(rows[number])
    return [json.dumps(r) for r in rows]


BAD = {
    "malformed": (lambda lines: lines.__setitem__(2, lines[2][:-9]), r":3: not a line of JSON"),
    "no object": (lambda lines: lines.__setitem__(1, "[1, 2]"), r":2: not an ARC item"),
    "empty choice": (
        lambda lines: lines.__setitem__(0, edited(0, lambda r: r["choices"]["text"].__setitem__(1, " "))[0]),
        r":1: choice B is empty",
    ),
    "unknown answer": (
        lambda lines: lines.__setitem__(5, edited(5, lambda r: r.__setitem__("answerKey", "9"))[5]),
        r":6: the answer '9' is none of the labels",
    ),
    "one choice": (
        lambda lines: lines.__setitem__(
            5, edited(5, lambda r: r.__setitem__("choices", {"text": ["a"], "label": ["1"]}))[5]
        ),
        r":6: 1 choices for 1 labels",
    ),
    "labels short": (
        lambda lines: lines.__setitem__(5, edited(5, lambda r: r["choices"]["label"].pop())[5]),
        r":6: 2 choices for 1 labels",
    ),
    "no items": (lambda lines: lines.clear(), r"holds no items"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_items_are_told_by_line(tmp_path, name):
    spoil, told = BAD[name]
    path = write_items(tmp_path / "items.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines()
    spoil(lines)
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=told):
        read_items(path)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(DataError, match="cannot read the items"):
        read_items(tmp_path / "none.jsonl")


def test_items_from_the_hub(monkeypatch):
    from gmt.evaluate import arc

    asked = []

    def rows(*name):
        asked.append(name)
        return [row(n, *item) for n, item in enumerate(ITEMS)]

    monkeypatch.setattr(arc, "hub_rows", rows)
    assert [item.question for item in read_items(None, limit=2)] == [ITEMS[0][0], ITEMS[1][0]]
    assert asked == [("allenai/ai2_arc", "ARC-Easy", "test")]
