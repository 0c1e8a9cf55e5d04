"""May a model have this path as its route?"""

from __future__ import annotations

import re
from typing import Final

#: First segments of the server's own paths, and of some that it may get. Those of OpenAI's and
#: others' protocols are not among them: a model's own route comes before theirs.
RESERVED: Final = frozenset(
    (
        "",
        "admin",
        "dashboard",
        "debug",
        "docs",
        "favicon.ico",
        "health",
        "healthz",
        "livez",
        "load",
        "metrics",
        "openapi.json",
        "ping",
        "readyz",
        "redoc",
        "robots.txt",
        "v2",
        "version",
    )
)
_PATH: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]{1,100}){1,16}")


def wrong_route(route: str) -> str | None:
    if _PATH.fullmatch(route) is None:
        return (
            f'must be a path such as "/predict", of letters, digits and -._~!$&\'()*+,;=:@ between'
            f" slashes and without one at its end, not {route!r}"
        )
    first = route.split("/")[1]
    if first.lower() in RESERVED or first.startswith("_"):
        return f"{route!r} begins as paths of the server itself do (/{first}); choose another"
    return None
