"""Universal parts of speech for a model's tokens: words are found and tagged, and tokens take their word's class.

The tagger is TextBlob's, whose lexicon and rules are part of its package, so that it needs no download. It is optional:
without it there are no classes. The one file that imports textblob.
"""

import re
from importlib.util import find_spec

CLASSES = (
    "NOUN", "PROPN", "VERB", "AUX", "ADJ", "ADV", "PRON", "DET", "ADP", "CCONJ", "SCONJ", "PART", "NUM", "INTJ",
    "PUNCT", "SYM", "X",
)  # fmt: skip

# words, their contracted endings apart as taggers expect them (did|n't, it|'s), numbers, then anything else
WORD = re.compile(
    r"(?P<stem>[^\W\d_]+)(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\d+(?:[.,:]\d+)*|[^\W_]+(?:-[^\W_]+)*|\S",
    re.IGNORECASE,
)

PENN = {
    "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "NNPS": "PROPN", "JJ": "ADJ", "JJR": "ADJ", "JJS": "ADJ",
    "RB": "ADV", "RBR": "ADV", "RBS": "ADV", "WRB": "ADV", "MD": "AUX", "PRP": "PRON", "PRP$": "PRON", "WP": "PRON",
    "WP$": "PRON", "EX": "PRON", "DT": "DET", "PDT": "DET", "WDT": "DET", "IN": "ADP", "CC": "CCONJ", "TO": "PART",
    "RP": "ADP", "POS": "PART", "CD": "NUM", "UH": "INTJ", "SYM": "SYM", "FW": "X", "LS": "X",
}  # fmt: skip
BE = {"am", "is", "are", "was", "were", "be", "been", "being", "'m", "'re"}
HELPERS = {"have", "has", "had", "do", "does", "did", "'ve"}
JOINING = {"because", "although", "though", "while", "if", "unless", "whether", "since", "until", "whereas"}
ENDINGS = {"n't": "PART", "not": "PART", "'ll": "AUX", "'d": "AUX", "'re": "AUX", "'ve": "AUX", "'m": "AUX"}


def available() -> bool:
    return find_spec("textblob") is not None


def words_of(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand, contractions in two and punctuation on its own."""
    return [match.span() for match in WORD.finditer(text)]


def tag_words(words: list[str]) -> list[str]:
    """Universal classes of words in their order."""
    from textblob.en import parser

    plain = [word.replace("’", "'") for word in words]
    penn = [tag for _, tag in parser.find_tags(plain)] if plain else []
    return [_universal(plain, penn, place) for place in range(len(plain))]


def _universal(words: list[str], penn: list[str], place: int) -> str:
    word, tag = words[place].lower(), penn[place]
    if not any(character.isalnum() for character in word):
        return "SYM" if word in "$€£%&+=<>@#^~|" else "PUNCT"
    if word in ENDINGS:
        return ENDINGS[word]
    following = penn[place + 1] if place + 1 < len(penn) else ""
    if word == "'s":  # a possessor's, or a verb
        before = penn[place - 1] if place else ""
        return "AUX" if before in ("PRP", "EX", "WP", "WRB", "DT") else "PART"
    if word in BE or (word in HELPERS and _helps(words, penn, place)):
        return "AUX"
    if word == "to" and not following.startswith("VB"):
        return "ADP"
    if word in JOINING:
        return "SCONJ"
    if tag.startswith("VB"):
        return "VERB"
    return PENN.get(tag, "X")


def _helps(words: list[str], penn: list[str], place: int) -> bool:
    """Whether have or do stands before a verb of its own, with at most a negation, adverb or pronoun between."""
    for later in range(place + 1, min(place + 4, len(words))):
        if penn[later].startswith("VB"):
            return True
        if words[later].lower() != "n't" and not penn[later].startswith(("RB", "PRP")):
            return False
    return False


def word_classes(text: str, spans: list[list[int]]) -> list[str] | None:
    """The class of each token, given where it stands; None without a tagger. White space has the class X."""
    if not available():
        return None
    places = words_of(text)
    tags = tag_words([text[start:end] for start, end in places])
    return align(places, tags, spans)


def align(places: list[tuple[int, int]], tags: list[str], spans: list[list[int]]) -> list[str]:
    """A token's class is that of the word it shares most characters with; of equals the first."""
    found, first = [], 0
    for start, end in spans:
        while first < len(places) and places[first][1] <= start:
            first += 1
        best, most = "X", 0
        for place in range(first, len(places)):
            begin, stop = places[place]
            if begin >= end:
                break
            shared = min(end, stop) - max(start, begin)
            if shared > most:
                best, most = tags[place], shared
        found.append(best)
    return found
