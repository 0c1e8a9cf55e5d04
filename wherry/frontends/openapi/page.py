"""What does a browser show at `/docs`?

One document that holds its style and its script and may load nothing from elsewhere: it reads
/openapi.json, by a relative address.
"""

from __future__ import annotations

from pathlib import Path

from wherry.frontends.dashboard.page import whole_page
from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Exchange


def docs_page(exchange: Exchange) -> None:
    """The handler of `/docs`. The page tells nothing of the server before it has asked for it."""
    respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


#: Read when the server is imported: its event loop must not read files.
PAGE, HEADERS = whole_page(_file("docs.html"), _file("docs.css"), _file("docs.js"))
