"""Makes the pictures of wherry at work again.

    python -m tools.pictures badges  docs/badges.svg: Pythons and licence, as pyproject.toml says
    python -m tools.pictures cast    docs/cast.svg: README's app.py, served, called and loaded
    python -m tools.pictures dashboard
                                     docs/dashboard.png: that app with 64 callers; needs chromium
    python -m tools.pictures chat    docs/how-to/chat.png: /chat with SmolLM2, which `make demo-llm`
                                     has installed; needs chromium

What they show was run for them. Numbers in them are of the machine, and of no account: figures are
in docs/explanation/performance.md.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.pictures.badges import badges_svg
from tools.pictures.cast import cast_svg
from tools.pictures.record import Recording

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT: Final = Path(__file__).parents[2]
BADGES: Final = ROOT / "docs" / "badges.svg"
CAST: Final = ROOT / "docs" / "cast.svg"
DASHBOARD: Final = ROOT / "docs" / "dashboard.png"
CHAT: Final = ROOT / "docs" / "how-to" / "chat.png"
COLUMNS, ROWS = 92, 27
USUAL_PORT: Final = "8000"
TITLE: Final = (
    "A terminal: wherry serve app.py, a call with curl, wherry bench with 1 and 64 callers, and"
    " wherry top, with the rows of a batch"
)
SECONDS_OF_LOAD: Final = 45
DOTS: Final = 60
QUESTION: Final = "Write a Python function that reverses a string."


def main(words: list[str]) -> int:
    makers = {
        "badges": make_badges,
        "cast": make_cast,
        "dashboard": make_dashboard,
        "chat": make_chat,
    }
    if not words or not makers.keys() >= set(words):
        sys.stderr.write(__doc__ or "")
        return 2
    for word in words:
        makers[word]()
    return 0


def make_badges() -> None:
    BADGES.write_text(badges_svg(ROOT / "pyproject.toml"))


def readme_app() -> str:
    """The first program of README.md."""
    found = re.search(
        r"^```python\n(# app\.py\n.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M
    )
    assert found is not None
    return found[1]


def make_cast() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(readme_app())
        port = str(free_port())
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "WHERRY_PORT": port,
            "WHERRY_URL": f"http://127.0.0.1:{port}",
            "PWD": folder,
        }
        before = Path.cwd()
        os.chdir(folder)
        try:
            recording = Recording(COLUMNS, ROWS, environment, {port: USUAL_PORT})
            record(recording)
        finally:
            os.chdir(before)
    CAST.write_text(cast_svg(recording.written, COLUMNS, ROWS, TITLE))


def record(recording: Recording) -> None:
    with recording.background("wherry serve app.py", "stops the server"):
        recording.run(
            "curl 127.0.0.1:8000/v2/models/species/generate"
            """ -d '{"flower": [5.1, 3.5, 1.4, 0.2]}'; echo"""
        )
        recording.run("wherry bench species --callers 1,64 --duration 2s")
        recording.run("wherry top --once")


def free_port() -> int:
    """One of four digits, as the usual one has."""
    for port in range(8100, 9000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no port is free")


def make_dashboard() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder, "app.py")
        app.write_text(readme_app())
        with page_of(str(app), 1280, 890) as (page, url):
            page.goto(url)
            page.get_by_role("tab", name="Live").click()
            load = ("bench", url, "--model", "species", "--callers", "64", "--duration", "60s")
            command = (sys.executable, "-m", "wherry", *load)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                page.wait_for_timeout(1000 * SECONDS_OF_LOAD)
                page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
                page.locator("circle").nth(DOTS).wait_for(state="attached")
                DASHBOARD.write_bytes(page.screenshot())


def make_chat() -> None:
    with page_of(str(ROOT / "examples" / "llm" / "app.py"), 1100, 640) as (page, url):
        page.goto(f"{url}/chat")
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.keyboard.press("Enter")
        page.get_by_text("Regenerate").wait_for(timeout=300_000)
        page.evaluate("document.activeElement.blur(); byId('scroll').scrollTop = 0")
        CHAT.write_bytes(page.screenshot())


@contextmanager
def page_of(app: str, width: int, height: int) -> Iterator[tuple[Page, str]]:
    """A browser's page of this size, and the URL of a server of the app."""
    # Imported here: the recording of a terminal needs no browser.
    from playwright.sync_api import sync_playwright

    from wherry.testing.servers import running_server

    with running_server(app) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield browser.new_page(viewport={"width": width, "height": height}), url
        browser.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
