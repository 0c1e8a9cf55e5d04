"""/docs in a real browser: with a key, by keyboard, on a phone, in the dark, among strangers."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
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
def parrot(messages: Sequence[dict[str, Any]]) -> str:
    return str(messages[-1]["content"])


@wherry.model(route="/turn")
def turn(data: bytes) -> bytes:
    return data[::-1]


@wherry.model
def count(up_to: int) -> Iterator[int]:
    """Counts."""
    yield from range(up_to)


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """A server that is open, and one with keys; before the browser, whose loop is this thread's."""
    models = shout, count, parrot, turn
    with local_server(*models) as server, local_server(*models, api_keys=[KEY]) as locked:
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
    card.get_by_label("Body").fill('{"up_to": 2}')
    assert "curl -s -N -X POST" in card.get_by_label("curl").inner_text()
    assert KEY not in card.inner_text()
    card.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    card.get_by_label("answer").get_by_text('"output":1').wait_for()
    assert page.locator(".route:visible").count() == 1
    page.get_by_label("Find").fill("livez")
    card = page.locator("#get_livez")
    card.locator("summary").first.focus()
    page.keyboard.press("Enter")
    card.get_by_role("button", name="Send").focus()
    page.keyboard.press("Enter")
    card.get_by_role("status").get_by_text("200 OK").wait_for()


def test_the_models_come_first_with_bodies_that_they_take(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs")
    first = page.locator(".route[open]")
    first.last.get_by_label("Body").wait_for()
    assert page.locator("h2").all_inner_texts()[:3] == ["count", "parrot", "shout"]
    for card in first.all():
        card.get_by_role("button", name="Send").click()
        card.get_by_role("status").get_by_text("200 OK").wait_for()
    assert page.locator(".group > .route:visible").count() == 0
    page.get_by_text("OpenAI and Anthropic").click()
    card = page.locator("#post_v1_chat_completions")
    card.locator("summary").first.click()
    card.get_by_role("button", name="Send").click()
    card.get_by_label("answer").get_by_text("Hello").wait_for()


def test_a_file_is_the_body_where_a_route_takes_one(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs#turn")
    card = page.locator("#turn")
    content = {
        "name": "a b.bin",
        "mimeType": "application/octet-stream",
        "buffer": bytes([1, 2, 255]),
    }
    card.locator("input[type=file]").set_input_files(content)
    assert "--data-binary '@a b.bin'" in card.get_by_label("curl").inner_text()
    card.get_by_role("button", name="Send").click()
    card.get_by_text("200 OK").wait_for()
    with page.expect_download() as saved:
        card.get_by_role("link", name="3 bytes").click()
    assert Path(saved.value.path()).read_bytes() == bytes([255, 2, 1])


def test_the_texts_of_strangers_stay_texts(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs#shout")
    card = page.locator("#shout")
    card.get_by_role("button", name="Send").click()
    card.get_by_label("answer").get_by_text("WINDOW.EVIL").wait_for()
    assert EVIL in page.locator("section", has=card).inner_text()
    assert page.evaluate("window.evil") is None
    assert page.locator("img").count() == 0


def test_nothing_is_wrong_for_those_who_cannot_see_it(page: Any, urls: tuple[str, str]) -> None:
    page.goto(f"{urls[0]}/docs#shout")
    page.locator("#shout textarea").wait_for()
    for summary in page.locator(".group > summary, .group .route > summary").all():
        summary.click()
    found = axe.Axe().run(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert found.violations_count == 0, found.generate_report()
