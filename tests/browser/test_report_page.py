"""The report in a real browser, opened from the disk."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from gmt.analysis.report import ReportOptions, report
from tests.browser.conftest import Watched
from tests.evaluate.conftest import make_model


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    folder: Path = tmp_path_factory.mktemp("report")
    (folder / "a.txt").write_text("the cat sat on a mat <script>alert(1)</script> and didn't count 12 stars", "utf-8")
    options = ReportOptions((f"cat={folder / 'a.txt'}",), blocks="1")
    return report(str(make_model(folder / "model")), folder / "out", options).as_uri()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_and_fits(browser, address, width, scheme):
    watched = Watched(browser, width, 844, color_scheme=scheme)
    page = watched.page
    page.goto(address)
    pictures = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth])")
    assert len(pictures) >= 15
    assert all(complete and natural > 300 for complete, natural in pictures), "every picture loads"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out to the right"
    assert page.evaluate("[...document.images].every(i => i.getBoundingClientRect().width <= innerWidth)")
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_the_contents_lead_to_the_sections(browser, address):
    page = Watched(browser, 1280, 900).page
    page.goto(address)
    links = page.locator("nav a")
    assert links.count() >= 8
    for place in range(links.count()):
        target = links.nth(place).get_attribute("href")
        links.nth(place).click()
        top = page.evaluate(f"document.querySelector('{target}').getBoundingClientRect().top")
        bottom = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert 0 <= top < 300 or bottom, target
    page.close()


def test_words_can_be_selected(browser, address):
    page = Watched(browser, 1280, 900).page
    page.goto(address)
    page.locator("figcaption p").first.select_text()
    assert len(page.evaluate("getSelection().toString()")) > 20
    assert page.evaluate("[...document.querySelectorAll('figcaption')].every(e => e.innerText.trim().length > 20)")
    page.close()


def test_a_text_is_shown_and_not_run(browser, address):
    watched = Watched(browser, 1280, 900)
    dialogs: list[str] = []
    watched.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    watched.page.goto(address)
    assert dialogs == [] and watched.page.locator("script").count() == 0
    watched.page.close()
