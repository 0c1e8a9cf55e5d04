"""A real browser on the dashboard: what it shows, by keyboard, to a screen reader, of strangers.

With WHERRY_PICTURES=docs/how-to the pictures of docs/how-to/monitoring.md are made again.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FilePayload, Page, sync_playwright

import wherry
from tests.fakes import TIMEOUT, until
from tests.integration.dashboard_models import MARKUP
from wherry.testing import servers

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]
HERE = Path(__file__).parent
MODELS = str(HERE / "dashboard_models.py")
KEY = "key-of-the-test-0123456789"
T = TypeVar("T")
PICTURES = os.environ.get("WHERRY_PICTURES", "")
MILLISECONDS = 1000 * TIMEOUT


@contextmanager
def aside(make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """Make, enter and leave a context in a thread: in this one the browser's event loop runs."""
    with ThreadPoolExecutor(1) as pool:
        context = pool.submit(make).result(TIMEOUT)
        entered = pool.submit(context.__enter__).result(TIMEOUT)
        try:
            yield entered
        finally:
            pool.submit(context.__exit__, None, None, None).result(TIMEOUT)


def running_server(*arguments: str) -> AbstractContextManager[str]:
    return aside(lambda: servers.running_server(*arguments))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server(MODELS) as url:
        yield url


class Load:
    """Callers of a server, until it is closed."""

    def __init__(self, url: str, callers: int = 4) -> None:
        self._url = url
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _call(self) -> None:
        with httpx.Client(base_url=self._url) as client:
            while not self._ends.wait(0.01):
                client.post("/v2/models/sentiment/generate", json={"text": "a lovely day"})


@contextmanager
def opened(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """The page in a tab of its own, which must say nothing to its console and call nobody else."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(MILLISECONDS)
    page = context.new_page()
    said: list[str] = []
    called: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("request", lambda request: called.append(request.url))
    page.goto(url)
    try:
        yield page
        assert page.title() == "wherry"
        expected = ("status of 4", "status of 5", "TrustedHTML", "ERR_")
        refused = [one for one in said if not any(part in one for part in expected)]
        assert refused == []
        own = (url.split("/", 3)[2], "")
        assert [one for one in called if one.split("/", 3)[2] not in own] == []
    finally:
        context.close()


def live(page: Page) -> None:
    page.wait_for_selector("#state.live")


def shown(page: Page, model: str) -> None:
    """Open a model as its link does."""
    page.get_by_role("tab", name="Live").click()
    page.get_by_role("link", name=model, exact=True).click()
    page.wait_for_selector(f"#model-title:has-text('{model}')")


def tried(page: Page, model: str) -> None:
    """Open the form of a model."""
    page.get_by_role("tab", name="Try").click()
    page.get_by_role("combobox", name="Model", exact=True).select_option(label=model)
    page.wait_for_selector(f"#trial form[aria-label$='{model}']", state="attached")


def text_of(page: Page, selector: str) -> str:
    text: str = page.locator(selector).inner_text()
    return text


def wait(page: Page, condition: str) -> None:
    # Not `wait_for_function`: the page's policy forbids what evaluates text.
    until(lambda: bool(page.evaluate(condition)))


def test_the_page_shows_what_happens_under_load(browser: Browser, server: str) -> None:
    with opened(browser, server) as page, Load(server):
        live(page)
        shown(page, "sentiment")
        row = page.get_by_role("row", name="sentiment version")
        wait(page, "parseFloat(document.querySelector('#tiles dd').textContent) > 5")
        page.wait_for_selector("figure:has-text('Batch sizes') .columns li")
        page.wait_for_selector("figure:has-text('Why each batch started') .bars tr")
        page.wait_for_selector("figure:has-text('Seconds of a batch') tbody tr", state="attached")
        throughput = page.locator("figure", has_text="Throughput")
        assert float(throughput.locator(".legend b").first.inner_text().replace("k", "")) > 0
        throughput.get_by_text("As a table").click()
        throughput.locator("tbody tr").nth(1).wait_for()
        assert "sentiment_0" in text_of(page, "#model")
        assert "ready" in row.inner_text()
        assert "6 of 6 models ready" in text_of(page, "#state")


def test_pause_stops_the_stream_and_goes_on(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        live(page)
        pause = page.get_by_role("button", name="Pause")
        pause.click()
        assert text_of(page, "#state") == "Paused."
        with httpx.Client(base_url=server) as client:
            while client.get("/dashboard/numbers").json()["server"]["viewers"]:
                pass
        page.get_by_role("button", name="Go on").click()
        live(page)


SIZES = [(1280, False), (1280, True), (390, False), (390, True)]


@pytest.mark.parametrize(("width", "dark"), SIZES, ids=lambda one: str(one).lower())
def test_no_rule_of_accessibility_is_broken(
    browser: Browser, server: str, width: int, dark: bool
) -> None:
    with httpx.Client(base_url=server) as client:
        client.post("/v2/models/sentiment/generate", json={"text": "boom"})
    with opened(browser, server, width=width, dark=dark) as page, Load(server, 2):
        live(page)
        shown(page, "sentiment")
        page.wait_for_selector("figure:has-text('Batch sizes') .columns li")
        if PICTURES:
            take_picture(page, f"dashboard-{width}-{'dark' if dark else 'light'}.png", width)
        for summary in page.locator("figure summary:visible").all()[::3]:
            summary.click()
        check(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Key").click()
        for model in ("measure", "parrot"):
            tried(page, model)
            for summary in page.locator("#trial summary:visible").all():
                summary.click()
            check(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("tab", name="Errors").click()
        page.wait_for_selector(".errors li")
        check(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def take_picture(page: Page, name: str, width: int) -> None:
    """Some time of load, and the page from its top."""
    page.wait_for_timeout(40_000)
    page.set_viewport_size({"width": width, "height": 1300})
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    (Path(PICTURES) / name).write_bytes(page.screenshot())  # a path leaves a thread behind


def check(page: Page) -> None:
    results = Axe().run(page)
    found = [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in results.response["violations"]
    ]
    assert found == []


def test_everything_can_be_done_by_keyboard(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        live(page)
        page.wait_for_selector("[role=tab][aria-selected=true]")
        focused = "document.activeElement.textContent.trim()"
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == "Skip to the views"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.role") == "tab"
        page.keyboard.press("Home")
        assert page.evaluate(focused) == "Live"
        seen: list[str] = []
        while "story" not in seen:
            page.keyboard.press("Tab")
            seen.append(page.evaluate(focused))
            assert len(seen) < 50
        assert any("failures" in one for one in seen)  # a line of a chart can be left out
        page.keyboard.press("Enter")
        page.wait_for_selector("#model-title:focus")
        assert "story" in text_of(page, "#model-title")
        while page.evaluate("document.activeElement.role") != "tab":
            page.keyboard.press("Shift+Tab")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(focused) == "Try"
        while page.evaluate("document.activeElement.tagName") != "TEXTAREA":
            page.keyboard.press("Tab")
        page.keyboard.press("Control+a")
        page.keyboard.type("boat")
        page.keyboard.press("Tab")
        page.keyboard.press("Control+a")
        page.keyboard.type("3")
        page.keyboard.press("Enter")
        page.wait_for_selector("#trial pre:has-text('boat0 boat1 boat2')")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"


def test_tabs_are_in_the_address_and_arrows_go_around(browser: Browser, server: str) -> None:
    with opened(browser, server + "/#errors/story%2F1") as page:
        live(page)
        page.wait_for_selector("#panel-errors:visible")
        page.get_by_role("tab", name="Errors").press("ArrowRight")
        page.wait_for_selector("#panel-requests:visible")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#panel-live:visible")
        assert page.url.endswith("#live/story%2F1")
        assert "story" in text_of(page, "#model-title")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("#panel-requests:visible")
        page.get_by_role("tab", name="Errors").click()
        page.get_by_role("tab", name="Try").click()
        assert page.get_by_role("combobox", name="Model", exact=True).input_value() == "story/1"
        page.go_back()
        page.wait_for_selector("#panel-errors:visible")


def test_the_page_opens_with_what_was_before_it(browser: Browser) -> None:
    with running_server(MODELS) as url:
        with opened(browser, url) as page:
            live(page)
            page.wait_for_selector("#panel-try:visible")  # there is nothing to be seen yet
        with Load(url), httpx.Client(base_url=url) as client:
            history = "/dashboard/history?model=sentiment&version=1"
            until(
                lambda: len(client.get(history).json()["figures"].get("queued_requests", "")) > 40
            )
        with opened(browser, url) as page:
            live(page)
            page.wait_for_selector("#panel-live:visible")
            shown(page, "sentiment")
            throughput = page.locator("#model figure", has_text="Throughput")
            throughput.get_by_text("As a table").click()
            throughput.locator("tbody tr").nth(6).wait_for()
            page.wait_for_selector("figure:has-text('Batch sizes') .columns li")


def test_values_are_shown_under_the_pointer_and_a_drag_zooms_all_charts(
    browser: Browser, server: str
) -> None:
    with opened(browser, server) as page, Load(server):
        live(page)
        shown(page, "sentiment")
        plot = page.locator("#model figure", has_text="Throughput").locator(".u-over")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 0.98 * box["width"], middle)
        moment = page.locator("#model figure", has_text="Queue time").locator(".moment")
        until(lambda: moment.inner_text() != "")
        page.mouse.move(box["x"] + 0.5 * box["width"], middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.9 * box["width"], middle, steps=4)
        page.mouse.up()
        page.wait_for_selector("#spans [role=status]:has-text(' to ')")
        assert page.locator("#spans [aria-pressed=true]").count() == 0
        page.get_by_role("button", name="5 min", exact=True).click()
        page.wait_for_selector("#spans [role=status]:has-text('drag')")
        line = page.get_by_role("button", name="failures").last
        line.click()
        assert line.get_attribute("aria-pressed") == "false"


def test_requests_are_listed_with_their_batch_mates_and_drawn_as_dots(browser: Browser) -> None:
    with running_server(MODELS, "--recent-requests") as url, opened(browser, url) as page:
        with Load(url):
            live(page)
            shown(page, "sentiment")
            page.locator("#picture").scroll_into_view_if_needed()  # else nothing is asked for
            page.wait_for_selector("#picture circle", state="attached")
            assert "sentiment_0" in text_of(page, "#picture")
            play = page.get_by_role("button", name="Play")  # this browser wants no motion
            play.click()
            page.get_by_role("button", name="Stop").click()
            page.get_by_role("tab", name="Requests").click()
            page.wait_for_selector("#requests tbody tr:nth-child(50)")
        with httpx.Client(base_url=url) as client:  # now, so that they are among the last
            for id in ("<b>first", "second"):
                headers = {"x-request-id": id}
                client.post(
                    "/v2/models/story/generate_stream", json={"topic": "a"}, headers=headers
                )
        page.wait_for_selector("#requests td:has-text('alone')")
        long = "one => { one.textContent = 'W'.repeat(128); return one.offsetWidth; }"
        assert page.locator("#requests tbody .name").first.evaluate(long) <= 304
        check(page)
        shown(page, "story")
        page.wait_for_selector("#picture:has-text('Requests of story')")


def test_requests_that_are_not_kept_are_recorded_while_somebody_looks(
    browser: Browser, server: str
) -> None:
    with opened(browser, server, width=390) as page, Load(server):
        live(page)
        page.get_by_role("tab", name="Requests").click()
        page.wait_for_selector("#requests tbody tr")
        assert "--recent-requests" in text_of(page, "#requests .note")
        check(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_stream_is_shown_as_it_comes_and_can_be_stopped(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        live(page)
        tried(page, "story")
        page.get_by_label("topic").fill("sea")
        page.get_by_label("words").fill("100000")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#trial pre:has-text('sea5')")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("#trial [role=status]:has-text('stopped')")
        assert page.get_by_role("button", name="Run").is_enabled()


def test_what_strangers_say_is_shown_and_never_executed(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        live(page)
        shown(page, "hostile")
        wait(page, "document.querySelector('#model .about').textContent !== ''")
        assert text_of(page, "#model .about") == MARKUP
        tried(page, "hostile")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#trial .try pre")
        assert json.dumps(MARKUP)[1:-1] in text_of(page, "#trial .try pre")
        tried(page, "sentiment")
        page.get_by_label("text").fill("boom")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#trial .try .failed")
        assert "document.title" in text_of(page, "#trial .try .failed")
        page.get_by_role("tab", name="Errors").click()
        page.locator(".errors li", has_text="document.title").first.wait_for()
        message = page.locator(".errors li p").first.inner_text()
        assert "\\u202edesrever" in message
        assert len(message) < 2000
        edge = page.locator(".errors").bounding_box()
        text = page.locator(".errors li").first.bounding_box()
        assert edge is not None
        assert text is not None
        assert text["x"] - edge["x"] > 10
        assert page.locator("img[src=x], main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_browser_itself_refuses_text_as_markup(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        tried = """() => {
          try { document.body.innerHTML = "<b>markup</b>"; return "made"; }
          catch (error) { return error.name; }
        }"""
        assert page.evaluate(tried) == "TypeError"


def test_a_file_is_sent_with_a_preview_beside_other_inputs(browser: Browser, server: str) -> None:
    png = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c"
        "63606060f80f0001040100b5c8d1770000000049454e44ae426082"
    )
    with opened(browser, server) as page:
        live(page)
        tried(page, "measure")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#trial .failed:has-text('picture: choose a file')")
        file = FilePayload(name="<b>a.png", mimeType="image/png", buffer=png)
        page.locator("input[type=file]").set_input_files(file)
        wait(page, "document.querySelector('.preview').naturalWidth === 1")
        assert page.locator(".preview").get_attribute("alt") == "<b>a.png"
        page.get_by_label("scale").fill("2.5")
        page.get_by_label("exact").check()
        with page.expect_request("**/generate") as sent:
            page.get_by_role("button", name="Run").click()
        body = sent.value.post_data_json
        assert body is not None
        assert body["picture"]["b64"].startswith("iVBORw0KGgo")
        assert (body["scale"], body["exact"]) == (2.5, True)
        page.wait_for_selector("#trial pre:has-text('70 bytes')")
        tried(page, "mirror")
        page.locator("input[type=file]").set_input_files(file)
        page.get_by_role("button", name="Run").click()
        page.get_by_alt_text("the answer").wait_for()
        with page.expect_download() as saved:
            page.get_by_role("link", name="Save").click()
        assert Path(saved.value.path()).read_bytes() == png


def test_a_model_that_chats_has_a_link_to_the_page_for_it(browser: Browser, server: str) -> None:
    with opened(browser, server) as page:
        live(page)
        tried(page, "parrot")
        link = page.get_by_role("link", name="Chat with it")
        assert link.get_attribute("href") == "/chat#parrot"
        link = page.get_by_role("link", name="Chat", exact=True)
        assert link.get_attribute("href") == "/chat"


def test_a_server_without_a_model_that_chats_leads_to_its_api_only(browser: Browser) -> None:
    with aside(lambda: wherry.Server(echo, port=0)) as other, opened(browser, other.url) as page:
        live(page)
        tried(page, "echo")
        assert page.get_by_role("link", name="Chat", exact=True).count() == 0
        link = page.get_by_role("link", name="API", exact=True)
        assert link.get_attribute("href") == "/docs"


def test_a_key_is_asked_for_and_kept_in_the_tab_only(browser: Browser) -> None:
    with running_server(MODELS, "--api-key", KEY) as url, opened(browser, url) as page:
        page.wait_for_selector("#state.lost")
        assert "API key is needed" in text_of(page, "#state")
        page.get_by_label("API key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        live(page)
        tried(page, "story")
        page.get_by_role("button", name="Run").click()
        page.wait_for_selector("#trial pre:has-text('some text0')")
        page.reload()
        live(page)
        assert page.evaluate("localStorage.length") == 0
        assert KEY not in page.url
        page.get_by_role("button", name="Key").click()
        page.get_by_role("button", name="Forget").click()
        page.wait_for_selector("#state.lost")
        assert page.evaluate("sessionStorage.length") == 0


def test_the_page_works_behind_a_prefix_and_over_fronts(browser: Browser) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    with ThreadPoolExecutor(1) as pool:  # in this thread an event loop runs: it must read no files
        app = pool.submit(wherry.asgi, echo).result(TIMEOUT)
    with running_asgi(Starlette(routes=[Mount("/deep/down", app)], lifespan=app.lifespan)) as url:
        for path in ("/deep/down", "/deep/down/"):
            with opened(browser, url + path) as page:
                live(page)
                tried(page, "echo")
                page.get_by_role("button", name="Run").click()
                page.wait_for_selector("#trial pre:has-text('some text!')")
    with running_server(MODELS, "--fronts", "2") as url, opened(browser, url) as page:
        live(page)
        page.wait_for_selector("#fronts tbody tr:nth-child(2)")


def test_a_server_that_ends_is_told_and_its_successor_is_found(browser: Browser) -> None:
    with ExitStack() as stack:
        with aside(lambda: wherry.Server(echo, port=0)) as first:
            page = stack.enter_context(opened(browser, first.url))
            live(page)
        page.wait_for_selector("#state.lost")
        port = int(first.url.rpartition(":")[2])
        with aside(lambda: wherry.Server(echo, port=port)):
            live(page)


@wherry.model
def echo(text: str) -> str:
    return text + "!"


@contextmanager
def running_asgi(app: Callable[..., Any]) -> Iterator[str]:
    import uvicorn

    config = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
