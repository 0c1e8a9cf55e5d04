"""A real browser on /chat: to ask, stop and ask again, what is kept, and hostile texts."""

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

import wherry
from wherry.testing import local_server

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]
KEY = "key-of-the-test-0123456789"
RICH = """# Title

Some **bold**, *em*, `code` and [a page](https://example.org/a_(b)).

1. one
   - inner
2. two

| a | b |
|---|--:|
| 1 | 2 |

> quoted

```python
x = 1
```
"""
#: What a model may write that a page must not run, load or follow.
HOSTILE = """<script>window.evil = 1</script> <img src=x onerror="window.evil=1">
<svg onload="window.evil=1"></svg> [run](javascript:window.evil=1) ![see](https://evil.example/x.png)
[data](data:text/html,<script>1</script>) **<b onclick="window.evil=1">b</b>** \u202edesrever
<https://example.org/"onmouseover="window.evil=1> `<i>` </div></li></ol>

```html
<script>window.evil = 1</script>
```
"""


class Piece(TypedDict):
    text: str
    details: dict[str, Any]


#: Lets an answer go on.
GATE = threading.Event()
FAILURES: list[str] = []


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[Piece]:
    """Says the last message again; what a message begins with may ask for more."""
    text = messages[-1]["content"]
    if FAILURES:
        raise ValueError(FAILURES.pop())
    if text == "all":
        text = json.dumps([[one["role"], one["content"]] for one in messages])
    if text == "for ever":
        yield {"text": "begun ", "details": {}}
        GATE.wait()
    for at in range(0, len(text), 40):
        yield {"text": text[at : at + 40], "details": {}}


@wherry.model
def thinker(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> Iterator[Piece]:
    """Thinks, and calls a tool, as Qwen's models write it."""
    if messages[-1]["role"] == "tool":
        yield {"text": f"It is {messages[-1]['content']}.", "details": {}}
        return
    style = {"tools": "hermes", "thoughts": "think"}
    yield {"text": "<think>Hm.</think>", "details": {"style": style}}
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
    yield {"text": call, "details": {}}


@wherry.model
def shout(text: str) -> str:
    return text.upper()


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    """A server that is open, and one with keys; before the browser, whose loop is this thread's."""
    models = parrot, thinker, shout
    with local_server(*models) as server, local_server(*models, api_keys=[KEY]) as locked:
        yield server.url, locked.url


@pytest.fixture(scope="module")
def browser(urls: tuple[str, str]) -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """The page in a profile of its own, which must say nothing to its console, call nobody else
    and fit its window."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    errors: list[str] = []
    called: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    page.on("request", lambda request: called.append(request.url))
    page.goto(f"{url}/chat")
    try:
        yield page
        expected = ("status of 4", "status of 5", "TrustedHTML")
        assert [one for one in errors if not any(part in one for part in expected)] == []
        assert [one for one in called if not one.startswith(url)] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("window.evil") is None
    finally:
        context.close()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page) -> str:
    """The text of the last answer, once it is complete."""
    last = page.locator("#talk > li").last
    expect(last.locator(".foot")).to_contain_text("Regenerate")
    return last.locator(".text").last.inner_text()


def check(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_an_answer_is_shown_as_it_is_meant_for_everybody(
    browser: Browser, urls: tuple[str, str], width: int, dark: bool
) -> None:
    with opened(browser, urls[0], width=width, dark=dark) as page:
        say(page, RICH)
        text = page.locator(".assistant > .text")
        expect(text.locator("h3")).to_have_text("Title")
        expect(text.locator("pre code")).to_have_text("x = 1")
        answered(page)
        expect(text.locator("strong")).to_have_text("bold")
        expect(text.locator("a")).to_have_attribute("href", "https://example.org/a_(b)")
        expect(text.locator("ol > li ul > li")).to_have_text("inner")
        expect(text.locator("td")).to_have_text(["1", "2"])
        expect(text.locator("blockquote")).to_have_text("quoted")
        assert "the first after" in page.locator(".assistant .foot").inner_text()
        check(page)
        for name in ("Settings", "Key", *(["Chats"] if width == 390 else [])):
            page.get_by_role("button", name=name, exact=True).click()
            check(page)


def test_what_a_model_writes_is_never_markup(browser: Browser, urls: tuple[str, str]) -> None:
    with opened(browser, urls[0]) as page:
        say(page, HOSTILE)
        text = answered(page)
        assert '<img src=x onerror="window.evil=1">' in text
        assert "\\u202edesrever" in text
        made = page.locator("#talk")
        assert made.locator("script, img, svg, b, i, div > div > div > div div").count() == 0
        links = made.locator("a").evaluate_all("(all) => all.map((one) => one.href)")
        assert links == [
            "https://evil.example/x.png",  # a link, which is not loaded
            "https://example.org/%22onmouseover=%22window.evil=1",
        ]
        tried = (
            "() => { try { document.body.innerHTML = '<b>'; return 1; } catch (e) { return 0; } }"
        )
        assert page.evaluate(tried) == 0


def test_a_text_that_grows_looks_as_if_it_came_at_once(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        grown = """(text) => { const node = make("div"), whole = make("div");
          for (let at = 0; at <= text.length; at++) showMarkdown(node, text.slice(0, at));
          showMarkdown(whole, text); return [node.outerHTML, whole.outerHTML]; }"""
        for text in (RICH, HOSTILE, "- a\n\n- b\n\n  c\n\n      d\n* e\n1) f\n\n\ng *h **i* j** k"):
            after, at_once = page.evaluate(grown, text)
            assert after == at_once


def test_no_text_keeps_the_browser_busy(browser: Browser, urls: tuple[str, str]) -> None:
    shown = "(text) => { window.box = make('div'); showMarkdown(box, text); return true; }"
    with opened(browser, urls[0]) as page:
        for text in (
            "a|b\n" + "-" * 190_000 + "x",
            "- " + " " * 190_000 + "\u2028b",
            "1. " + " " * 190_000 + "\rb",
        ):
            page.wait_for_function(shown, arg=text)
        assert page.evaluate("box.querySelectorAll('ol').length") == 1
        # Rows of a table get no cells that they do not have.
        page.evaluate(shown, "|a" * 64 + "|\n" + "|-" * 64 + "|\n" + "|\n" * 10_000)
        assert page.evaluate("box.querySelectorAll('td').length") <= 10_000


def test_a_browser_that_keeps_nothing_has_all_conversations_of_the_page(
    browser: Browser, urls: tuple[str, str]
) -> None:
    off = """() => { Storage.prototype.setItem = () => {
      throw new DOMException("off", "SecurityError"); }; }"""
    with opened(browser, urls[0]) as page:
        page.evaluate(off)
        for text in ("one", "two", "three"):
            say(page, text)
            assert answered(page) == text
            page.get_by_role("button", name="New chat").click()
        titles = page.locator("#chats .chat")
        expect(titles).to_have_text(["three", "two", "one"])


def test_a_conversation_that_two_tabs_show_goes_on_where_the_other_tab_left_it(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        say(page, "one")
        answered(page)
        other = page.context.new_page()
        other.goto(page.url)
        other.locator("#chats .chat").click()
        say(other, "two")
        answered(other)
        expect(page.locator("#talk > li.user")).to_have_count(2)
        say(page, "all")
        assert json.loads(answered(page))[2] == ["user", "two"]


def test_everything_is_done_by_keyboard(browser: Browser, urls: tuple[str, str]) -> None:
    with opened(browser, urls[0]) as page:
        page.wait_for_selector("#state.live")
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        assert answered(page) == "one\ntwo"
        page.keyboard.type("for ever")
        page.keyboard.press("Enter")
        page.get_by_text("begun").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("stopped").wait_for()
        GATE.set()
        for _ in range(10):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("document.activeElement.textContent") == "Regenerate":
                break
        page.keyboard.press("Enter")
        assert answered(page) == "begun for ever"
        assert page.locator(".assistant").count() == 2


def test_the_last_message_is_changed_and_its_answer_replaced(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        say(page, "first")
        answered(page)
        say(page, "secnod")
        answered(page)
        page.get_by_role("button", name="Edit").click()
        assert page.get_by_label("Message", exact=True).input_value() == "secnod"
        say(page, "all")
        assert json.loads(answered(page)) == [
            ["user", "first"],
            ["assistant", "first"],
            ["user", "all"],
        ]


def test_settings_are_sent_and_conversations_are_kept_until_they_are_deleted(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("System prompt").fill("Be short.")
        page.get_by_label("Max tokens").fill("7")
        with page.expect_request("**/v1/chat/completions") as sent:
            say(page, "all")
        assert sent.value.post_data_json is not None
        assert sent.value.post_data_json["max_tokens"] == 7
        page.locator(".failed", has_text="max_tokens").wait_for()  # of a model without the input
        page.get_by_label("Max tokens").fill("")
        page.get_by_role("button", name="Retry").click()
        assert json.loads(answered(page))[0] == ["system", "Be short."]
        page.reload()
        page.locator("#chats").get_by_role("button", name="all", exact=True).click()
        assert json.loads(answered(page))[0] == ["system", "Be short."]
        page.on("dialog", lambda dialog: dialog.accept())
        page.locator("#delete-all").click()
        expect(page.locator("#talk > li")).to_have_count(0)
        assert page.evaluate("localStorage.length") == 0


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        page.evaluate("""() => { for (let n = 0; n < 60; n++) {
          const chat = newChat(); chat.messages = [{role: "user", content: "chat " + n, calls: []}];
          save(chat); chat.at = n; } showChats(); }""")
        assert page.evaluate("localStorage.length") == 50
        titles = page.locator("#chats .chat").all_inner_texts()
        assert "chat 59" in titles
        assert "chat 0" not in titles
        page.evaluate("""() => { const chat = newChat();
          chat.messages = [{role: "user", content: "x".repeat(3.9e6), calls: []}]; save(chat);
          const other = newChat();
          other.messages = [{role: "user", content: "y".repeat(3e6), calls: []}]; save(other); }""")
        kept = "Object.values(localStorage).reduce((all, text) => all + text.length, 0)"
        assert page.evaluate(kept) <= 4_000_000


def test_an_error_has_its_text_and_a_retry(browser: Browser, urls: tuple[str, str]) -> None:
    with opened(browser, urls[0]) as page:
        FAILURES.append("<b>boom")
        say(page, "hello")
        page.locator(".failed", has_text="<b>boom").wait_for()
        page.get_by_role("button", name="Retry").click()
        assert answered(page) == "hello"
        assert page.locator(".failed:visible").count() == 0


def test_thoughts_are_folded_and_calls_wait_for_their_results(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[0]) as page:
        page.wait_for_selector("#state.live")
        page.get_by_label("Model").select_option("thinker")
        assert page.get_by_label("Model").locator("option").all_inner_texts() == [
            "parrot",
            "thinker",
        ]
        page.get_by_role("button", name="Settings").click()
        tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        page.get_by_label("Tools").fill("[")
        say(page, "What is it like in Ulm?")
        page.locator(".failed", has_text="Settings, tools").wait_for()
        page.get_by_label("Tools").fill(json.dumps([tool]))
        page.get_by_role("button", name="Retry").click()
        page.get_by_text("weather", exact=True).wait_for()
        assert not page.get_by_text("Hm.").is_visible()
        page.get_by_text("Thought").click()
        assert page.get_by_text("Hm.").is_visible()
        check(page)
        page.get_by_label("Result of weather").fill("sunny")
        page.get_by_role("button", name="Send the results").click()
        page.get_by_text("It is sunny.", exact=True).wait_for()


def test_a_key_is_asked_for_and_kept_in_the_tab_only(
    browser: Browser, urls: tuple[str, str]
) -> None:
    with opened(browser, urls[1]) as page:
        page.locator("#state", has_text="API key is needed").wait_for()
        page.get_by_label("API key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#state.live")
        say(page, "hello")
        assert answered(page) == "hello"
        assert KEY not in page.evaluate("JSON.stringify(localStorage)")
        page.reload()
        page.wait_for_selector("#state.live")


def test_a_server_that_comes_back_is_found(browser: Browser, urls: tuple[str, str]) -> None:
    with opened(browser, urls[0]) as page:
        page.wait_for_selector("#state.live")
        page.route("**/v1/**", lambda route: route.fulfill(status=503, body="away"))
        say(page, "hello")
        page.locator(".failed", has_text="away").wait_for()
        page.evaluate("findModels()")
        page.wait_for_selector("#state.lost")
        page.unroute("**/v1/**")
        page.wait_for_selector("#state.live")
        page.get_by_role("button", name="Retry").click()
        assert answered(page) == "hello"
