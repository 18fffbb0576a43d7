"""A small model directory with a vocabulary of its own, a prepared stream, and invented items."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gmt.config import GMTConfig
from gmt.data.manifest import Manifest
from gmt.data.tokenizer import train_tokenizer
from gmt.hf import GMTForCausalLM
from gmt.hf.load import Loaded, open_model
from gmt.model.language_model import GraphMemoryLM
from gmt.utils.io import sha256_of
from tests.data.conftest import invented

VOCAB, CONTEXT = 300, 48


def config(*overrides: str) -> GMTConfig:
    tree = {
        "model": {"blocks": 2, "hidden": 16, "heads": 2, "context": CONTEXT, "vocab": VOCAB, "dropout": 0.1},
        "memory": {"slots": 6, "navigation": 4},
    }
    return GMTConfig.from_dict(tree, overrides)


def make_model(folder: Path, *overrides: str, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    lm = GraphMemoryLM(config(*overrides))
    with torch.no_grad():  # away from the start, so that predictions differ
        for p in lm.parameters():
            p.add_(torch.randn_like(p) * 0.4)
        lm.tau.fill_(0.4)
    GMTForCausalLM.from_lm(lm).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(train_tokenizer(VOCAB, invented(200)).to_str(), encoding="utf-8")
    return folder


def make_stream(folder: Path, tokens: int = 3000) -> Path:
    tokenizer = train_tokenizer(VOCAB, invented(200))
    folder.mkdir(parents=True)
    ids = [i for text in invented(600, seed=3) for i in [*tokenizer.encode(text).ids, 0]]
    counts = {"train": 200, "val": tokens}
    for split, count in counts.items():
        np.array(ids[:count], dtype=np.uint16).tofile(folder / f"{split}.bin")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    Manifest(
        sources=[], options={}, documents={}, tokens=counts, text_bytes={}, caps={}, dtype="uint16",
        tokenizer={"sha256": sha256_of(folder / "tokenizer.json"), "vocab": VOCAB},
        sha256={split: sha256_of(folder / f"{split}.bin") for split in counts},
    ).save(folder)  # fmt: skip
    return folder


# questions and choices of different lengths; one question is longer than the context, one choice nearly so
ITEMS = [
    ("Who sat on the mat?", ["the cat", "a naïve café owner in Łódź", "12 stars", "nobody"], "A"),
    ("What did they count while the cat sat on a mat in the café", ["345", "stars, stars, stars", "or"], "3"),
    ("the cat sat on a mat while " * 12, ["a mat", "the café owners", "日本 stars"], "2"),
    ("Where?", ["in Łódź", "on " + "the mat " * 20, "in a café, they didn't"], "C"),
    ("Did  they?  ", [" on a mat", "didn't they? 12 or 345", "the", "sat\n\ton"], "D"),
    ("12 or 345", ["12", "345"], "1"),
]


def row(number: int, question: str, choices: list[str], answer: str) -> dict:
    labels = [str(n + 1) if answer.isdigit() else "ABCDE"[n] for n in range(len(choices))]
    return {
        "id": f"item-{number}",
        "question": question,
        "choices": {"text": list(choices), "label": labels},
        "answerKey": answer,
    }


def write_items(path: Path, items=ITEMS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row(n, *item), ensure_ascii=False) for n, item in enumerate(items)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "memory")


@pytest.fixture(scope="session")
def dense_folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "dense", "model.sublayer=dense", "model.dense_width=20")


@pytest.fixture(scope="session")
def stream(tmp_path_factory) -> Path:
    return make_stream(tmp_path_factory.mktemp("data") / "stream")


@pytest.fixture
def loaded(model_folder) -> Loaded:
    return open_model(model_folder)
