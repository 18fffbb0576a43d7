"""`gmt report`: one page that holds all it shows, and clear words where it cannot."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib")

from gmt import plot
from gmt.analysis import trace
from gmt.analysis.diagnostics import surprise
from gmt.analysis.report import ReportOptions, choose_blocks, read_texts, report
from gmt.analysis.texts import default_texts
from gmt.checkpoint.format import write_checkpoint
from gmt.cli import app
from gmt.data.batches import Stream, ValidationBatches
from gmt.errors import GMTError
from gmt.hf.load import Loaded, open_model
from tests.conftest import assert_same, snapshot
from tests.data.conftest import WORDS
from tests.evaluate.conftest import CONTEXT, make_model, make_stream

FIRST = "the cat sat on a mat. The cat didn't count <b>stars</b> & more; they cost $5 $6."
SECOND = "they counted 345 stars while the cat sat in a café"


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text(FIRST, encoding="utf-8")
    (folder / "b.txt").write_text(SECOND, encoding="utf-8")
    return f"first={folder / 'a.txt'}", f"second={folder / 'b.txt'}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, texts) -> Path:
    folder = tmp_path_factory.mktemp("report")
    told: list[tuple[str, int, int]] = []
    options = ReportOptions(texts, blocks="2")
    found = report(str(make_model(folder / "model")), folder / "out", options, lambda *part: told.append(part))
    assert told[0] == ("reading", 0, 2) and told[-1][0] == "drawing" and told[-1][1] == told[-1][2]
    return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Loaded:
    return open_model(make_model(tmp_path_factory.mktemp("texts-model") / "model"))


@pytest.fixture(scope="module")
def stream(tmp_path_factory) -> Path:
    return make_stream(tmp_path_factory.mktemp("texts-data") / "stream")


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Pictures are drawn for one page; the others are about words."""

    def save(figure, folder, name):
        paths = folder / f"{name}.png", folder / f"{name}.svg"
        for path in paths:
            path.write_bytes(b"picture")
        return paths

    monkeypatch.setattr(plot, "save", save)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.pictures += tag == "img"
        assert tag not in ("script", "iframe", "object"), "nothing runs on this page"
        self.links += [found[name] for name in ("href", "src") if name in found]


def test_the_page_holds_all_it_shows(whole):
    text = whole.read_text(encoding="utf-8")
    parser = Links()
    parser.feed(text)
    assert parser.pictures >= 20
    assert len(parser.ids) == len(set(parser.ids))
    for link in parser.links:
        assert not re.match(r"(https?:)?//", link), f"{link} leaves the machine"
        if not link.startswith(("data:", "#")):
            assert (whole.parent / link).is_file(), link
        if link.startswith("#"):
            assert link[1:] in parser.ids
    assert "<b>stars</b>" not in text and "&lt;" in text, "a text is words, and no page"
    for section in ("glance", "depth", "memory", "routing", "words", "prediction", "meaning", "tokens"):
        assert section in parser.ids


def test_every_figure_has_its_files_and_its_table(whole):
    figures = sorted(path.stem for path in (whole.parent / "figures").glob("*.png"))
    tables = {path.stem for path in (whole.parent / "tables").glob("*.csv")}
    assert figures and set(figures) <= tables
    for name in figures:
        assert (whole.parent / "figures" / f"{name}.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
    for name in tables:
        with (whole.parent / "tables" / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert all(len(row) == len(rows[0]) for row in rows), name


def test_texts_stand_side_by_side(whole):
    text = whole.read_text(encoding="utf-8")
    for block in (0, 1):
        names = re.findall(rf'<figure id="(routing-flow-[a-z]+-block-{block})"', text)
        assert names == [f"routing-flow-first-block-{block}", f"routing-flow-second-block-{block}"]


def test_the_traces_are_kept(whole):
    from gmt.analysis import load_trace

    assert load_trace(whole.parent / "traces" / "first.safetensors").text == FIRST


def test_blocks_are_chosen_over_the_depth_or_named():
    assert choose_blocks(16, "4") == [0, 5, 10, 15]
    assert choose_blocks(2, "4") == [0, 1]
    assert choose_blocks(7, "1") == [0]
    assert choose_blocks(16, "6, 0,15,6") == [0, 6, 15]
    with pytest.raises(GMTError, match="there is no block 16; there are 0 to 15"):
        choose_blocks(16, "3,16")
    for wrong in ("", "x", "0", "-1"):
        with pytest.raises(GMTError, match="--blocks takes a number"):
            choose_blocks(16, wrong)


def test_a_second_report_takes_the_first_ones_place(tmp_path, texts, undrawn):
    model = str(make_model(tmp_path / "model"))
    for name in ("first", "second"):
        report(model, tmp_path / "out", ReportOptions((texts[name == "second"],), blocks="1"))
        (tmp_path / "out" / "figures" / "mine.txt").write_text("a stranger's file")
        (tmp_path / "out" / "figures" / "mine.png").write_text("a stranger's picture")
    left = {path.name for path in (tmp_path / "out").rglob("*") if "first" in path.name}
    assert left == set()
    assert (tmp_path / "out" / "figures" / "mine.txt").exists() and (tmp_path / "out" / "figures" / "mine.png").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(GMTError, match="file is a file: use a folder"):
        report(model, tmp_path / "file", ReportOptions(texts[:1]))


def test_one_token_and_no_second_sublayer(tmp_path, undrawn):
    (tmp_path / "one.txt").write_text("t")
    options = ReportOptions((f"one={tmp_path / 'one.txt'}",))
    for sublayer in ("memory", "none"):
        page = report(
            str(make_model(tmp_path / sublayer, f"model.sublayer={sublayer}")), tmp_path / f"o{sublayer}", options
        )
        text = page.read_text(encoding="utf-8")
        assert "No text has a token that something comes before" in text and not re.search(r"\bnan\b", text)
    assert "What the model does" in text and "How far tokens are moved" not in text


def test_a_model_without_memory_has_a_report_too(tmp_path, texts, undrawn):
    folder = make_model(tmp_path / "dense", "model.sublayer=dense", "model.dense_width=20")
    text = report(str(folder), tmp_path / "out", ReportOptions(texts[:1])).read_text(encoding="utf-8")
    assert "this model has no memory" in text
    assert 'id="prediction"' in text and 'id="depth"' in text
    assert 'id="routing"' not in text and 'id="memory"' not in text


def test_two_models_are_set_side_by_side(tmp_path, texts, undrawn):
    one, two = make_model(tmp_path / "one"), make_model(tmp_path / "two", seed=1)
    out = report(str(one), tmp_path / "out", ReportOptions(texts[:1], compare=str(two), blocks="1"))
    assert 'id="compare"' in out.read_text(encoding="utf-8")
    with (tmp_path / "out" / "tables" / "compare-losses.csv").open() as file:
        _, (_, mine, other, change) = csv.reader(file)
    found = [surprise(trace(str(folder), FIRST))["loss"] for folder in (one, two)]
    assert [float(mine), float(other)] == pytest.approx(found, rel=1e-4)
    assert float(change) == pytest.approx(found[1] - found[0], abs=1e-4)
    assert (tmp_path / "out" / "traces" / "compared" / "first.safetensors").exists()
    report(str(one), tmp_path / "out", ReportOptions(texts[:1], blocks="1"))
    assert not (tmp_path / "out" / "traces" / "compared" / "first.safetensors").exists(), "nothing old is left"
    same = report(str(one), tmp_path / "same", ReportOptions(texts[:1], compare=str(one), blocks="1"))
    with (same.parent / "tables" / "compare-centroids.csv").open() as file:
        assert {float(row[2]) for row in list(csv.reader(file))[1:]} == {1.0}


def test_the_same_model_is_as_good_and_one_token_says_nothing(tmp_path, undrawn):
    model = str(make_model(tmp_path / "model"))
    for name, text in (("one", "t"), ("many", FIRST)):
        (tmp_path / f"{name}.txt").write_text(text)
        options = ReportOptions((f"{name}={tmp_path / f'{name}.txt'}",), compare=model, blocks="1")
        page = report(model, tmp_path / f"o{name}", options).read_text(encoding="utf-8")
        assert "B is as good as A" in page and "nan nats" not in page


def test_a_long_text_is_windowed_and_said_so(tmp_path, undrawn):
    (tmp_path / "long.txt").write_text(SECOND * 6, encoding="utf-8")
    folder = make_model(tmp_path / "model")
    out = report(str(folder), tmp_path / "out", ReportOptions((f"long={tmp_path / 'long.txt'}",), blocks="1"))
    assert f"Texts longer than the context of {CONTEXT} tokens are read in independent windows: long" in out.read_text(
        encoding="utf-8"
    )


def test_without_a_tagger_only_the_classes_are_missing(tmp_path, texts, monkeypatch, undrawn):
    from gmt.analysis import pos

    monkeypatch.setattr(pos, "available", lambda: False)
    out = report(str(make_model(tmp_path / "model")), tmp_path / "out", ReportOptions(texts[:1], blocks="1"))
    text = out.read_text(encoding="utf-8")
    assert "No tagger is installed" in text and 'id="routing-flow-first-block-0"' in text
    assert "pos-slots" not in text


def test_the_model_is_left_as_it_was(tmp_path, texts):
    from gmt.analysis.report import read

    loaded = open_model(make_model(tmp_path / "model"))
    before = snapshot(loaded.lm)
    read(loaded, {"a": FIRST}, None, lambda *_: None)
    assert_same(loaded.lm, before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("plain", "NAME=FILE, not 'plain'"),
        ("a=", "NAME=FILE"),
        ("../x=f", "may have letters, digits"),
        ("a.b=f", "may have letters, digits"),
        ("a=/nowhere", "cannot be read from /nowhere"),
    ],
)
def test_bad_texts_are_told_in_a_sentence(given, message):
    with pytest.raises(GMTError, match=message):
        read_texts((given,))


def test_an_empty_text_and_two_of_one_name(tmp_path):
    (tmp_path / "empty.txt").write_text("  \n")
    with pytest.raises(GMTError, match=r"the text 'e' in .* is empty"):
        read_texts((f"e={tmp_path / 'empty.txt'}",))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(GMTError, match="two texts called 'A'"):
        read_texts((f"a={tmp_path / 'a.txt'}", f"A={tmp_path / 'a.txt'}"))
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_texts((f"d={tmp_path / 'dos.txt'}",)) == {"d": "a\r\nb"}, "line ends are the text's own"
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(GMTError, match="cannot be read"):
        read_texts((f"l={tmp_path / 'latin.txt'}",))


def test_without_data_the_texts_are_those_of_the_project(loaded):
    texts = default_texts(loaded, None, 8)
    assert list(texts) == ["narrative", "politics", "science"]
    assert all(60 < len(text.split()) < 150 for text in texts.values())


def test_with_data_the_texts_are_validation_windows_in_whole_words(loaded, stream):
    texts = default_texts(loaded, stream, 8)
    assert list(texts) == ["validation-1", "validation-2", "general"]
    ids = Stream(stream, "val").tokens.tolist()
    for name, window in (("validation-1", 0), ("validation-2", 4)):
        near = loaded.words.decode(ids[window * CONTEXT : (window + 1) * CONTEXT], skip_special_tokens=False)
        words = texts[name].split()
        assert texts[name] in near and "<|endoftext|>" not in texts[name]
        assert words and set(words) <= set(WORDS), "every word is a whole word of the corpus"


def test_the_page_states_the_validation_loss(tmp_path, loaded, stream, undrawn):
    options = ReportOptions(blocks="1", data=stream)
    page = report(str(loaded.folder), tmp_path / "out", options).read_text(encoding="utf-8")
    lm, batches = loaded.lm, ValidationBatches(Stream(stream, "val"), CONTEXT, 1)
    losses = []
    for n in range(len(batches)):  # the definition: the mean over windows of the mean cross-entropy
        batch = batches.at(n)
        logits = lm(torch.from_numpy(batch.ids)).logits.detach()
        losses.append(torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(batch.labels)[0]).item())
    windows = min(len(losses), 128)
    assert f"{sum(losses[:windows]) / windows:.4f} nats (frozen memory, {windows} windows)" in page
    without = report(str(loaded.folder), tmp_path / "none", ReportOptions(blocks="1")).read_text(encoding="utf-8")
    assert "not measured: add --data" in without


def test_a_checkpoint_of_another_version_is_told(tmp_path, texts):
    folder = make_model(tmp_path / "model")
    (folder / "MANIFEST.json").write_text(json.dumps({"format": 99, "sha256": {}}))
    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "out"), "--text", texts[0]])
    assert result.exit_code == 1
    assert "is of format 99; this version reads format 1" in result.output


def test_a_step_of_a_run_can_be_named(tmp_path):
    from gmt.hf.load import find_model

    kept = tmp_path / "run" / "checkpoints" / "step-00000007"
    make_model(tmp_path / "model")
    files = {path.name: path.read_bytes for path in (tmp_path / "model").iterdir()}
    write_checkpoint(kept, files)
    assert find_model(f"{tmp_path / 'run'}@7") == kept
    with pytest.raises(GMTError, match="has no checkpoint of step 9; it has those of 7"):
        find_model(f"{tmp_path / 'run'}@9")


def test_matplotlib_missing_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "available", lambda: False)
    with pytest.raises(GMTError, match=r"a report needs matplotlib: pip install .*\[report\]"):
        report("model", tmp_path, ReportOptions())
