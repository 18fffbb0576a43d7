import json
import random
from pathlib import Path

import pytest

WORDS = [
    *("the", "cat", "sat", "on", "a", "mat", "while", "café", "owners", "in", "Łódź", "counted", "12", "or", "345"),
    *("naïve", "日本", "stars,", "didn't", "they?", "\n\t"),
]


def invented(count: int, seed: int = 0) -> list[str]:
    """Documents of different lengths; every seventh is empty, which is no error."""
    random.seed(seed)
    return ["" if n % 7 == 3 else " ".join(random.choices(WORDS, k=random.randint(1, 60))) for n in range(count)]


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: t, "n": n}) + "\n" for n, t in enumerate(texts)), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", invented(400))
