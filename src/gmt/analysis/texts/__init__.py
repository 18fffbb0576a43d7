"""Three short texts, written for this project: what is read where nobody gives another."""

from importlib.resources import files

NAMES = ("narrative", "politics", "science")


def own_texts() -> dict[str, str]:
    return {name: (files(__name__) / f"{name}.txt").read_text(encoding="utf-8").strip() for name in NAMES}
