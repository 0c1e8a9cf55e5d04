"""What does a path do, and which clients may ask for it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wherry.frontends.http.exchange import Exchange

Handler = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one path by their methods, and the group of the API that it belongs to.

    `group` is one of `restricted.GROUPS`: what an operator restricts, switches off, or serves on
    a port of its own. An `open` route needs no key: load balancers probe these.
    """

    handlers: Mapping[str, Handler]
    group: str
    open: bool = False
