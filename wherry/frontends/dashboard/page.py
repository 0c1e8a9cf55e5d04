"""What does a browser show at `/`?

One file with its style and script inside, which may load nothing from elsewhere: its data comes
from /v2/models, by relative addresses, so that it works under any prefix.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Exchange


def page(exchange: Exchange) -> None:
    """The handler of `/`."""
    respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)


def page_headers(html: str) -> list[tuple[str, str]]:
    """A policy that allows exactly this page's own style and script, and its own server."""
    styles = " ".join(_hashes(html, "style"))
    scripts = " ".join(_hashes(html, "script"))
    policy = (
        f"default-src 'none'; style-src {styles}; script-src {scripts}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        ("Content-Security-Policy", policy),
        ("X-Frame-Options", "DENY"),  # for what does not know frame-ancestors
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-cache"),
    ]


def _hashes(html: str, element: str) -> list[str]:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = [hashlib.sha256(text.encode()).digest() for text in contents]
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


#: Read when the server is imported: its event loop must not read files.
PAGE = Path(__file__).with_name("index.html").read_text(encoding="utf-8")
HEADERS = page_headers(PAGE)
