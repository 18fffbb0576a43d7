"""gmt explore in a real browser: each thing that a person can do there, by mouse or keyboard, and what it shows."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

from gmt.analysis.interventions import from_json
from gmt.explorer import run, server
from gmt.explorer.state import Explorer
from gmt.hf.load import open_model
from tests.browser.conftest import Watched
from tests.evaluate.conftest import make_model
from tests.explorer.conftest import serving

expect = pytest.importorskip("playwright.sync_api").expect

TEXT = "the cat sat on a mat <img src=x onerror=alert(1)> and didn't count 12 stars"
WAIT = 15_000


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("explored")
    dense = "model.sublayer=dense", "model.dense_width=20"
    made = [make_model(folder / "one"), make_model(folder / "two", seed=1), make_model(folder / "dense", *dense)]
    explorer = Explorer([open_model(path) for path in made])
    with serving(server.make_app(explorer, run.LOCAL_NAMES)) as found:
        yield found
    explorer.close()


@pytest.fixture(scope="module")
def tab(browser) -> Iterator[Watched]:
    """One for all tests, so that Plotly's script is fetched and compiled once."""
    made = Watched(browser, 1280, 900, reduced_motion="reduce")
    made.page.set_default_timeout(WAIT)
    yield made
    made.page.close()


@pytest.fixture
def watched(tab, address) -> Iterator[Watched]:
    tab.page.goto("about:blank")
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    tab.page.emulate_media(color_scheme="light")
    tab.complaints.clear()
    tab.requests.clear()
    tab.page.goto(address)
    tab.page.wait_for_selector("#examples button")
    yield tab
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith((address, "data:", "blob:"))] == []


@pytest.fixture
def page(watched) -> Any:
    """With the text read."""
    watched.page.fill("#text", TEXT)
    watched.page.press("#text", "Control+Enter")
    settled(watched.page)
    return watched.page


def settled(page: Any) -> None:
    """Every answer is there and drawn."""
    page.wait_for_selector("#reading-views:not([hidden])")
    page.wait_for_selector("#busy:empty", state="attached")


def legend(page: Any) -> str:
    return page.inner_text("#legend")


def click_at(page: Any, selector: str, x: float = 0.5, y: float = 0.5) -> None:
    """A share of the way across what is drawn there: Plotly's own layer lies over its points."""
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])


def open_slot(page: Any, slot: int) -> None:
    page.fill("#slot-number", str(slot))
    page.press("#slot-number", "Enter")
    page.wait_for_selector(f"#slot-card h3:has-text('Slot {slot} of')")
    settled(page)


def leaving(page: Any) -> list[int]:
    """How many tokens stand in each slot of the shown block."""
    told = page.evaluate("document.getElementById('graph').data.at(-1).hovertext")
    return [int(text.split("<br>")[1].split(" leave")[0]) for text in told]


def busiest(page: Any) -> int:
    return leaving(page).index(max(leaving(page)))


def edits(page: Any) -> list[str]:
    return page.locator("#edit-list li").all_inner_texts()


def downloaded(page: Any, selector: str) -> Path:
    with page.expect_download() as found:
        page.click(selector)
    return found.value.path()


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_text_is_read_and_shown(page):
    tokens = "".join(page.locator("#tokens .chip").all_text_contents())
    assert tokens == TEXT, "every token, HTML as the letters it is"
    assert page.locator("#tokens img").count() == 0
    assert "surprise" in legend(page)
    assert page.locator("#next .bars path").count() == 12
    before = page.evaluate("document.getElementById('map').data[0].z[0][1]")
    page.select_option("#quantity", "attention_norm")
    assert page.evaluate("document.getElementById('map').data[0].z[0][1]") != before
    page.select_option("#colour-by", "source")
    assert "slot " in legend(page)
    first = page.locator("#t1").evaluate("e => e.style.borderBottomColor")
    assert first not in ("", "transparent")
    page.select_option("#colour-block", "1")
    if page.locator("#colour-by option[value=class]").count():
        page.select_option("#colour-by", "class")
        assert "NOUN" in legend(page)


def test_examples_are_one_click_away(watched):
    page = watched.page
    assert page.is_visible("#reading-empty") and page.is_visible("#slot-empty") and page.is_visible("#effect-empty")
    page.click("#examples button:has-text('science')")
    settled(page)
    assert page.input_value("#text") and page.locator("#tokens .chip").count() > 50
    assert page.is_hidden("#reading-empty")


def test_a_token_is_followed_down_the_blocks(page):
    page.click("#t3")
    page.wait_for_selector("#way tbody tr")
    assert page.locator("#way tbody tr").count() == 2
    assert page.get_attribute("#t3", "aria-selected") == "true"
    assert "Token 3" in page.inner_text("#token-facts")
    assert page.locator("#parts .bars path").count() >= 4 and page.locator("#token-next .bars path").count() == 12
    page.focus("#t3")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-facts:has-text('Token 4')")
    click_at(page, "#map .nsewdrag", 0.01)
    page.wait_for_selector("#token-facts:has-text('Token 0')")
    assert "nothing comes before it" in page.inner_text("#token-facts")
    page.click("#way tbody tr:nth-child(2) td:nth-child(2) button")
    page.wait_for_selector("#slot-card h3:has-text('of block 1')")


def test_a_block_shows_its_graph_flow_and_edges(page):
    page.select_option("#block-pick", "1")
    page.wait_for_selector("#block-facts:has-text('Block 1')")
    assert page.locator("#graph .scatterlayer .trace:last-child .point").count() == 6
    assert page.locator("#flow .sankey-link").count() > 0
    assert page.evaluate("document.getElementById('matrix').data[0].z.length") == 6
    click_at(page, "#graph .scatterlayer .trace:last-child .point:nth-child(3)")
    page.wait_for_selector("#slot-card h3:has-text('Slot 2 of block 1')")
    click_at(page, "#matrix .nsewdrag", 4.5 / 6, 1.5 / 6)
    assert (page.input_value("#edge-source"), page.input_value("#edge-target")) == ("1", "4")
    assert "of what leaves slot 1 goes to slot 4" in page.inner_text("#edge-facts")
    assert page.evaluate("document.activeElement.id") == "cut", "the next key press acts on the edge"
    page.select_option("#size-by", "usage")
    node = page.locator("#flow .sankey-node:has-text('to ')").first
    slot = node.locator("text").text_content().removeprefix("to ")
    node.locator(".node-rect").click()
    page.wait_for_selector(f"#slot-card h3:has-text('Slot {slot} of block 1')")


def test_a_slot_has_a_card(page):
    open_slot(page, 3)
    titles = page.locator("#slot-card h4").all_inner_texts()
    assert {"Tokens that stand in it", "Strongest learned edges", "Words it promotes"} <= set(titles)
    assert "age" in page.inner_text("#slot-card")
    edge = page.locator("#slot-card button:has-text('edge…')").first
    edge.click()
    assert page.input_value("#edge-source") or page.input_value("#edge-target")
    page.fill("#slot-number", "99")
    page.press("#slot-number", "Enter")
    assert page.evaluate("document.getElementById('slot-number').validity.valid") is False


def test_silencing_a_slot_shows_before_and_after_and_undo_takes_it_back(page):
    open_slot(page, busiest(page))
    page.click("#silence-source")
    page.wait_for_selector("#effect-views:not([hidden])")
    settled(page)
    assert len(edits(page)) == 1 and "silenced as source" in edits(page)[0] and "fired 0" not in edits(page)[0]
    assert page.locator("#before .bars path").count() == page.locator("#after .bars path").count() == 12
    assert "before" in page.inner_text("#edit-facts") and "after" in page.inner_text("#effect-facts")
    changes = page.locator("#change .chip").evaluate_all("all => all.map(e => e.title)")
    assert any(before != after for before, after in (title.split(": ")[-1].split(" → ") for title in changes[1:]))
    page.click("#continue")
    page.wait_for_selector("#continued-after")
    assert page.inner_text("#continued-before")
    assert "goes on from the last" in page.inner_text("#continued"), "this text is longer than the model's context"
    page.click("#undo")
    page.wait_for_selector("#effect-views", state="hidden")
    assert edits(page) == [] and page.is_visible("#edit-empty") and page.is_disabled("#undo")


def test_edges_and_strength_are_changed_and_the_list_keeps_count(page):
    for name, slot in (("source", busiest(page)), ("target", (busiest(page) + 1) % 6)):
        page.fill(f"#edge-{name}", str(slot))
    page.click("#cut")
    page.wait_for_selector("#edit-list li:has-text('cut')")
    page.fill("#edge-to", str((busiest(page) + 2) % 6))
    page.click("#redirect")
    page.wait_for_selector("#edit-list li:has-text('redirected')")
    page.focus("#alpha")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#edit-list li:has-text('memory × 0.8, all blocks')")
    settled(page)
    assert len(edits(page)) == 3, "one knob is one edit"
    page.select_option("#alpha-scope", "one")
    assert page.inner_text("#alpha-value") == "1.00"
    page.click("#edit-list li:first-child button")
    expect(page.locator("#edit-list li")).to_have_count(2)
    page.click("#reset")
    page.wait_for_selector("#effect-views", state="hidden")
    page.click("#undo")
    expect(page.locator("#edit-list li")).to_have_count(2)
    settled(page)


def test_an_edit_that_never_fires_says_so(page, tmp_path):
    """An edit for a place that this text does not have."""
    page.fill("#text", "the cat")
    page.click("#read")
    expect(page.locator("#tokens")).to_have_text("the cat")
    settled(page)
    (tmp_path / "edits.json").write_text(json.dumps([{"kind": "scale", "alpha": 0.0, "positions": [40]}]), "utf-8")
    page.set_input_files("#edits-file", tmp_path / "edits.json")
    page.wait_for_selector("#edit-list .never")
    assert "fired 0 times" in edits(page)[0] and "Nothing fired" in page.inner_text("#effect-facts")


def test_the_address_and_a_file_hold_the_state(page, browser, address, tmp_path):
    page.select_option("#block-pick", "1")
    open_slot(page, 2)
    page.click("#silence-target")
    page.wait_for_selector("#edit-list li")
    page.click("#t2")
    settled(page)
    other = Watched(browser, 1280, 900)
    other.page.goto(page.url)
    other.page.wait_for_selector("#slot-card h3:has-text('Slot 2 of block 1')")
    settled(other.page)
    assert other.page.input_value("#text") == TEXT and edits(other.page) == edits(page)
    assert "Token 2" in other.page.inner_text("#token-facts") and other.complaints == []
    other.page.close()

    path = downloaded(page, "#save-edits")
    written = json.loads(path.read_text("utf-8"))
    assert written == [{"kind": "ablate", "block": 1, "slot": 2, "role": "target"}]
    assert [edit.to_json() for edit in from_json(written)] == written, "as gmt intervene reads it"
    page.click("#reset")
    page.wait_for_selector("#edit-list li", state="detached")
    page.set_input_files("#edits-file", path)
    page.wait_for_selector("#edit-list li:has-text('slot 2 silenced as target, block 1')")
    settled(page)


def test_a_slot_that_fails_while_its_block_is_drawn_is_told_once(watched, page):
    open_slot(page, 2)
    # drawing takes its time, so that the answer is there before it is waited for
    page.evaluate("() => { const soon = setTimeout; window.setTimeout = (f, t = 0) => soon(f, t + 300); }")
    page.route("**/api/slot", lambda route: route.fulfill(status=400, json={"error": "no slot today"}))
    page.select_option("#block-pick", "1")
    page.wait_for_selector("#error:has-text('no slot today')")
    settled(page)
    page.unroute("**/api/slot")
    # the browser's own word for the status, and nothing that nobody caught
    assert [text for text in watched.complaints if "400 (Bad Request)" not in text] == []
    watched.complaints.clear()


def test_pictures_come_as_svg_and_png(page):
    for view in ("map", "next", "graph", "flow", "matrix"):
        assert b"<svg" in downloaded(page, f"[data-downloads={view}] button:has-text('SVG')").read_bytes(), view
        picture = downloaded(page, f"[data-downloads={view}] button:has-text('PNG')").read_bytes()
        assert picture.startswith(b"\x89PNG"), view


def test_tables_come_as_csv(page):
    open_slot(page, 1)
    page.click("#t1")
    page.wait_for_selector("#way td")
    count = page.locator("#tokens .chip").count()
    header, *body = rows(downloaded(page, "[data-downloads=map] button:has-text('CSV')"))
    assert header == ["place", "token", "block_0", "block_1"] and len(body) == count
    header, *body = rows(downloaded(page, "[data-downloads=tokens] button"))
    assert header[:4] == ["place", "token", "class", "surprise"] and "".join(row[1] for row in body) == TEXT
    header, *body = rows(downloaded(page, "[data-downloads=matrix] button:has-text('CSV')"))
    assert header == ["from", *(f"to_{slot}" for slot in range(6))] and len(body) == 6
    for view, head in {"next": "word", "way": "block", "parts": "part", "graph": "slot", "flow": "class"}.items():
        assert rows(downloaded(page, f"[data-downloads={view}] button:has-text('CSV')"))[0][0] == head
    assert rows(downloaded(page, "[data-downloads=slot] button"))[0] == ["fact", "name", "value"]


def test_two_texts_and_two_checkpoints_side_by_side(page):
    page.fill("#other-text", "stars <b>in</b> a café")
    page.select_option("#other-model", "0")
    page.click("#compare-form button")
    page.wait_for_selector("#right-next .bars path")
    assert page.locator("#left-next .bars path").count() == page.locator("#right-next .bars path").count() == 12
    assert any("<" in name for name in page.locator("#right-map .xtick text").all_text_contents()), "a tag is no tag"
    first = page.inner_text("#right-name")
    page.fill("#other-text", "")
    page.select_option("#other-model", "1")
    page.click("#compare-form button")
    expect(page.locator("#right-name")).not_to_have_text(first)
    ranges = page.evaluate(
        "['left-map', 'right-map'].map(id => document.getElementById(id).data[0]).map(t => [t.zmin, t.zmax])"
    )
    assert ranges[0] == ranges[1], "one scale for both"
    page.select_option("#model", "1")
    expect(page.locator("#facts")).to_contain_text("two")
    settled(page)


def test_mistakes_are_said_in_words(watched, address, tmp_path):
    page = watched.page
    page.click("#read")
    assert "no text to read" in page.inner_text("#error")
    page.fill("#text", "x" * 20_001)
    page.click("#read")
    assert "at most 20000" in page.inner_text("#error")
    page.goto("about:blank")  # else it is the same page with another hash, which it soon writes anew
    page.goto(address + "#text=the+cat&edits=[broken")
    settled(page)
    page.wait_for_selector("#error:has-text('not JSON')")
    assert edits(page) == [] and page.locator("#tokens .chip").count() > 0, "the text is read all the same"
    (tmp_path / "wrong.json").write_text('[{"kind": "no-such"}]', "utf-8")
    page.set_input_files("#edits-file", tmp_path / "wrong.json")
    page.wait_for_selector("#error:has-text('no-such')")
    assert edits(page) == [], "what the server refuses is taken back"
    watched.complaints[:] = [text for text in watched.complaints if "status of 400" not in text]


def test_a_model_without_memory_says_so(page):
    page.select_option("#model", "2")
    page.wait_for_selector("#block-empty:has-text('no memory')")
    settled(page)
    page.click("#t1")
    page.wait_for_selector("#way tbody tr")
    assert page.is_hidden("#edge-form") and "nothing to edit" in page.inner_text("#edit-empty")


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
def test_it_fits_and_is_readable(watched, address, width, scheme):
    page = watched.page
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    page.goto(address + '#text=the+cat+sat+on+a+mat&place=2&slot=1&edits=[{"kind":"scale","alpha":0.5}]')
    page.wait_for_selector("#slot-card h3")
    page.wait_for_selector("#before .bars path")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out to the right"
    assert page.evaluate(
        "[...document.querySelectorAll('input, select, textarea')].filter(e => e.offsetParent)"
        ".every(e => e.labels?.length || e.ariaLabel)"
    ), "every field has a name"
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert page.locator("#next .ytick text").first.evaluate("e => getComputedStyle(e).fill") == ink
