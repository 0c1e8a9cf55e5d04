"""What does a browser get at `/`?

One document that holds its style and its script and may load nothing from elsewhere: numbers,
models and answers come from this server by relative addresses, so that it works under any prefix,
with or without a slash at its end.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from wherry.server.http.answers import respond
from wherry.server.http.exchange import Exchange, Headers


def page(exchange: Exchange) -> None:
    """The handler of `/`. The page tells nothing of the server before it has asked for it."""
    respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)


def whole_page(html: str, style: str, script: str) -> tuple[str, Headers]:
    """The document with its style and script, and a policy that allows exactly these and its own
    server. What is shown is of strangers: the browser refuses any markup made of text, too."""
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
        " connect-src 'self'; img-src data: blob:; media-src blob:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Frame-Options", "DENY"),  # for what does not know frame-ancestors
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    )
    html = html.replace("<style></style>", f"<style>{style}</style>", 1)
    return html.replace("<script></script>", f"<script>{script}</script>", 1), headers


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


#: Read when the server is imported: its event loop must not read files.
PAGE, HEADERS = whole_page(_file("page.html"), _file("page.css"), _file("page.js"))
