"""Makes the pictures of wherry at work again.

    python -m tools.pictures badges  docs/badges.svg: Pythons and licence, as pyproject.toml says
    python -m tools.pictures cast    docs/cast.svg: README's app.py, served, called and loaded
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
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.pictures.badges import badges_svg
from tools.pictures.cast import cast_svg
from tools.pictures.record import Recording

ROOT: Final = Path(__file__).parents[2]
BADGES: Final = ROOT / "docs" / "badges.svg"
CAST: Final = ROOT / "docs" / "cast.svg"
CHAT: Final = ROOT / "docs" / "how-to" / "chat.png"
COLUMNS, ROWS = 92, 27
USUAL_PORT: Final = "8000"
TITLE: Final = (
    "A terminal: wherry serve app.py, a call with curl, wherry bench with 1 and 64 callers, and"
    " wherry top, with the rows of a batch"
)
QUESTION: Final = "Write a Python function that reverses a string."


def main(words: list[str]) -> int:
    makers = {"badges": make_badges, "cast": make_cast, "chat": make_chat}
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
            """curl 127.0.0.1:8000/v2/models/shout/generate -d '{"text": "good"}'; echo"""
        )
        recording.run("wherry bench shout --callers 1,64 --duration 2s")
        recording.run("wherry top --once")


def free_port() -> int:
    """One of four digits, as the usual one has."""
    for port in range(8100, 9000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no port is free")


def make_chat() -> None:
    # Imported here: the recording of a terminal needs no browser.
    from playwright.sync_api import expect, sync_playwright

    from wherry.testing.servers import running_server

    app = str(ROOT / "examples" / "llm" / "app.py")
    with running_server(app) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 640})
        page.goto(f"{url}/chat")
        page.get_by_label("Message", exact=True).fill(QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".assistant .foot")).to_contain_text("Regenerate", timeout=300_000)
        page.evaluate("document.activeElement.blur(); byId('scroll').scrollTop = 0")
        CHAT.write_bytes(page.screenshot())
        browser.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
