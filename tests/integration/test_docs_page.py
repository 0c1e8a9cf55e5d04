"""/docs in a real browser: with a key, by keyboard, on a phone, in the dark, among strangers."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import wherry
from wherry.testing import local_server

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = [pytest.mark.full]

KEY = "key-of-the-test-0123456789"
EVIL = "</script><img src=x onerror='window.evil=1'><script>window.evil=1</script>"


@wherry.model(description=EVIL, max_batch_size=4, examples=[{"text": EVIL}], route="/shout")
def shout(text: list[str]) -> list[str]:
    return [one.upper() for one in text]


@wherry.model
def count(up_to: int) -> Iterator[int]:
    """Counts."""
    yield from range(up_to)


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """A server that is open, and one with keys; before the browser, whose loop is this thread's."""
    with local_server(shout, count) as server, local_server(shout, count, api_keys=[KEY]) as locked:
        yield server.url, locked.url


@pytest.fixture(scope="module")
def browser(urls: tuple[str, str]) -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page whose console must stay without errors."""
    width = {"light": 1200, "dark": 390}[request.param]
    context = browser.new_context(
        color_scheme=request.param, viewport={"width": width, "height": 800}
    )
    shown = context.new_page()
    errors: list[str] = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield shown
    context.close()
    assert [error for error in errors if "401" not in error] == []


def test_a_route_is_found_read_and_tried_by_keyboard(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[1]}/docs")
    page.get_by_text("a valid API key is needed").wait_for()
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Tab")
    page.get_by_label("Find").fill("count stream")
    card = page.locator("#generate_stream_count")
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    card.get_by_label("Body").fill('{"up_to": 2}')
    assert "curl -s -N -X POST" in card.locator("pre").first.inner_text()
    assert KEY not in card.inner_text()
    card.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    card.get_by_label("answer").get_by_text('"output":1').wait_for()
    assert page.locator("details:visible").count() == 1


def test_the_texts_of_strangers_stay_texts(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs#shout")
    card = page.locator("#shout")
    card.get_by_role("button", name="Send").click()
    card.get_by_label("answer").get_by_text("WINDOW.EVIL").wait_for()
    assert EVIL in card.inner_text()
    assert page.evaluate("window.evil") is None
    assert page.locator("img").count() == 0


def test_nothing_is_wrong_for_those_who_cannot_see_it(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs#shout")
    page.locator("#shout pre").first.wait_for()
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
