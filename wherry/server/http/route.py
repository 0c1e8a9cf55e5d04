"""What does a path do, what goes in and comes out, and which clients may ask for it?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from wherry.server.http.operation import Operation

#: Called with the values of the parameters in the path, if it has any, and the exchange.
Handler = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one path by their methods, and the group of the API that it belongs to.

    `group` is one of `restricted.GROUPS`: what an operator restricts, switches off, or serves on
    a port of its own. An `open` route needs no key: load balancers probe these.
    """

    handlers: Mapping[str, Handler]
    group: str
    open: bool = False
    #: What each method takes and gives, for the OpenAPI document.
    operations: Mapping[str, Operation] = field(default_factory=dict)
    #: Abilities of models; the document has the route if a model has one of them, or there is none.
    needs: tuple[str, ...] = ()

    def of(self, *arguments: object) -> Route:
        """The route whose handlers are called with these arguments, and the exchange."""
        handlers = {name: partial(handler, *arguments) for name, handler in self.handlers.items()}
        return replace(self, handlers=handlers)


class Patterns:
    """Routes of paths with parameters, as `/v2/models/{model}`; `{name*}` may have slashes in it,
    and `{version:[0-9]+}` must match.

    The handlers are called with the parameters' values, or what `argument` makes of them once for
    each lookup, and the exchange.
    """

    def __init__(
        self, routes: Mapping[str, Route], argument: Callable[..., object] | None = None
    ) -> None:
        self._argument = argument
        #: By their paths as OpenAPI writes them.
        self.routes = {re.sub(r"(\*|:[^}]+)}", "}", path): route for path, route in routes.items()}
        self._compiled = [(_compiled(pattern), route) for pattern, route in routes.items()]

    def route(self, path: str) -> Route | None:
        """The route of a path; None if it matches no pattern."""
        for pattern, route in self._compiled:
            if (found := pattern.fullmatch(path)) is not None:
                values = found.groups()
                return (
                    route.of(*values)
                    if self._argument is None
                    else route.of(self._argument(*values))
                )
        return None


def _compiled(pattern: str) -> re.Pattern[str]:
    # Texts, and between them what a parameter may be.
    parts = re.split(r"{\w+(\*|:[^}]+|)}", pattern)
    kinds = {"": "[^/]+", "*": ".*"}
    groups = [f"({kinds.get(kind, kind[1:])})" for kind in parts[1::2]]
    texts = [re.escape(text) for text in parts[::2]]
    return re.compile("".join(a + b for a, b in zip(texts, [*groups, ""], strict=True)))
