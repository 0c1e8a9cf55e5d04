"""The search of the documentation in a real browser, from a disk: users' questions find their page.

`site_questions.txt` has what users type, as they type it, with the page that must be among the
first three.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.site.sources import write_search

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [pytest.mark.full]

ROOT = Path(__file__).parents[2]
SITE = ROOT / "tools/site"
LINES = Path(__file__).with_name("site_questions.txt").read_text().splitlines()
QUESTIONS = [tuple(line.split(" | ")) for line in LINES]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The search page without its theme."""
    folder = tmp_path_factory.mktemp("search")
    write_search(ROOT, folder / "sections.js")
    shutil.copy(SITE / "static/search.js", folder)
    template = (SITE / "templates/search.html").read_text()
    content = re.findall(r"\{% block content %\}(.*?)\{% endblock %\}", template, re.DOTALL)
    scripts = '<script src="sections.js"></script><script src="search.js"></script>'
    (folder / "search.html").write_text(f"<!doctype html>{content[0]}{scripts}")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page()
        shown.goto((folder / "search.html").as_uri())
        yield shown
        browser.close()


def found(page: Any, question: str) -> list[str]:
    """The places of the pages that the search shows, best first."""
    page.fill("#question", question)
    links = page.eval_on_selector_all("#found a", "all => all.map(a => a.getAttribute('href'))")
    return [re.sub(r"\.html(#.*)?$", "", link) for link in links]


@pytest.mark.parametrize(("question", "place"), QUESTIONS, ids=[line[0] for line in QUESTIONS])
def test_a_question_finds_its_page_among_the_first_three(
    page: Any, question: str, place: str
) -> None:
    assert place in found(page, question)[:3]


def test_there_are_sixty_questions_each_once() -> None:
    assert len({question for question, _ in QUESTIONS}) == len(QUESTIONS) >= 60


def test_a_question_without_a_word_finds_nothing_and_markup_is_text(page: Any) -> None:
    for question in ["", "   ", "?", "how to", "qqqzzz", "\u00fc\u00df"]:
        assert found(page, question) == []
        assert bool(page.locator("#count").inner_text()) == bool(question.strip())
    assert found(page, "<img src=x onerror=alert(1)>__proto__ constructor hasOwnProperty")
    assert page.locator("#found img").count() == 0


def test_the_question_of_an_address_is_answered_and_its_words_are_marked(page: Any) -> None:
    page.goto(f"{page.url.partition('?')[0]}?q=upload+image")
    assert page.input_value("#question") == "upload image"
    first = page.locator("#found li").first
    assert first.locator("a").get_attribute("href").startswith("how-to/files.html")
    assert page.locator("#count").inner_text() == ""
    assert page.locator("#found mark").count() > 0
