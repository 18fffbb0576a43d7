"""Words, their classes, and the tokens that take them."""

import pytest

from gmt.analysis import pos
from gmt.analysis.pos import CLASSES, align, tag_words, word_classes, words_of


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in words_of(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I can't, won't and didn't.", ["I", "ca", "n't", ",", "wo", "n't", "and", "did", "n't", "."]),
        ("it's the dog's bone", ["it", "'s", "the", "dog", "'s", "bone"]),
        ("We’ve seen it; they’re out!", ["We", "’ve", "seen", "it", ";", "they", "’re", "out", "!"]),
        ("3.5 km at 12:30", ["3.5", "km", "at", "12:30"]),
        ("a half-measure (in Łódź)", ["a", "half-measure", "(", "in", "Łódź", ")"]),
        ("  \n ", []),
    ],
)
def test_words(text, wanted):
    assert words(text) == wanted


def test_classes_of_a_sentence():
    pytest.importorskip("textblob")
    text = "The old fisherman didn't want to sell his boat, but Anna's 3 dogs were here."
    found = dict(zip(words(text), tag_words(words(text)), strict=True))
    wanted = {
        "The": "DET", "old": "ADJ", "fisherman": "NOUN", "did": "AUX", "n't": "PART", "want": "VERB", "to": "PART",
        "sell": "VERB", "his": "PRON", "boat": "NOUN", ",": "PUNCT", "but": "CCONJ", "'s": "PART", "3": "NUM",
        "were": "AUX", ".": "PUNCT",
    }  # fmt: skip
    assert {word: found[word] for word in wanted} == wanted
    assert set(found.values()) <= set(CLASSES)


def test_a_helper_that_stands_alone_is_a_verb():
    pytest.importorskip("textblob")
    assert tag_words(["They", "did", "it"])[1] == "VERB"
    assert tag_words(["They", "did", "not", "see", "it"])[1:3] == ["AUX", "PART"]
    assert tag_words(["It", "'s", "done"])[1] == "AUX"
    assert tag_words(["Walk", "to", "town"])[1] == "ADP"
    assert tag_words([]) == []


def test_tokens_take_the_class_of_the_word_they_share_most_with():
    # "un|believ|able" is one word in three tokens; " dog's" spans two words and shares more with the first
    text = "unbelievable dog's!"
    places = words_of(text)
    assert [text[a:b] for a, b in places] == ["unbelievable", "dog", "'s", "!"]
    spans = [[0, 2], [2, 8], [8, 12], [12, 18], [18, 19]]
    assert align(places, ["ADJ", "NOUN", "PART", "PUNCT"], spans) == ["ADJ", "ADJ", "ADJ", "NOUN", "PUNCT"]


def test_white_space_and_nothing_have_the_class_x():
    assert align([(2, 4)], ["NOUN"], [[0, 2], [2, 4], [4, 5], [5, 5]]) == ["X", "NOUN", "X", "X"]
    assert align([], [], [[0, 1]]) == ["X"]


def test_without_a_tagger_there_are_no_classes(monkeypatch):
    monkeypatch.setattr(pos, "available", lambda: False)
    assert word_classes("a cat", [[0, 1], [1, 5]]) is None


def test_a_long_text_is_aligned_in_linear_time():
    """Work is counted, not time: each word is looked at a constant number of times."""

    class Counted(list):
        looks = 0

        def __getitem__(self, index):
            Counted.looks += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
            return super().__getitem__(index)

    for count in (1000, 4000):
        Counted.looks = 0
        places = Counted((3 * n, 3 * n + 2) for n in range(count))
        assert align(places, ["NOUN"] * count, [[a, b] for a, b in list(places)]) == ["NOUN"] * count
        assert Counted.looks < 8 * count
