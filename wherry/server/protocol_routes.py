"""Which paths have the protocols beside V2, wherry's own and those of packages?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

from wherry.core.api import ConfigError, Plugins
from wherry.server.http.route import Patterns, Route
from wherry.server.rows.pass_on import PassOn
from wherry.server.v2.http.entry import HttpEntry

log = logging.getLogger("wherry")


@runtime_checkable
class HasRoutes(Protocol):
    """A protocol of one server, made of its HttpEntry."""

    def routes(self) -> Mapping[str, Route]:
        """By path; one with parameters, as `/predictions/{model}`, is looked at after all others,
        in this order."""


#: All are served, and packages' as soon as they are installed.
PROTOCOLS: Final = Plugins(
    "protocol",
    HasRoutes,
    # Anthropic's before OpenAI's, which have all else below /v1.
    {
        "anthropic": "wherry.llm.anthropic.routes:Anthropic",
        "openai": "wherry.llm.openai.routes:OpenAI",
    },
)


class ProtocolRoutes:
    """Those of one server. A model that has such a path as its own route comes before them."""

    def __init__(self, entry: HttpEntry, pass_on: PassOn | None) -> None:
        self._pass_on = pass_on
        own: dict[str, Route] = {}
        for name in PROTOCOLS.own:
            own |= PROTOCOLS.make(name, entry).routes()
        # A pattern of wherry's may have all below a path: what packages have there is before it.
        routes = {**_of_packages(entry, own), **own}
        self._own = {path: route for path, route in routes.items() if "{" not in path}
        self._patterns = Patterns({path: one for path, one in routes.items() if "{" in path})
        self._routes = {path: self._passed(path, one) for path, one in self._own.items()}

    def route(self, path: str) -> Route | None:
        """The route at this path, as a front has it if this is one."""
        if (route := self._routes.get(path)) is not None:
            return route
        own = self._patterns.route(path)
        return None if own is None else self._passed(path, own)

    def described(self) -> dict[str, Route]:
        """All that a document may describe, by the paths as OpenAPI writes them."""
        return {**self._own, **self._patterns.routes}

    def _passed(self, path: str, route: Route) -> Route:
        return route if self._pass_on is None else self._pass_on.route(path, route)


def _of_packages(entry: HttpEntry, own: Mapping[str, Route]) -> dict[str, Route]:
    """The routes of packages. A protocol that is wrong is passed over, whole."""
    found: dict[str, Route] = {}
    for name in PROTOCOLS.installed():
        try:
            routes = {} if name in PROTOCOLS.own else PROTOCOLS.make(name, entry).routes()
            for path in routes:
                if path in own or path in found:
                    raise ConfigError(f"its path {path} is another's")
                first = path.partition("/")[2].partition("/")[0]
                if not first or "{" in first or first == "v2":
                    raise ConfigError(f"its path {path} would be before those of others")
            found |= routes
        except Exception as error:  # noqa: BLE001 - a package's code: others are served
            why = str(error) if isinstance(error, ConfigError) else repr(error)
            log.error("protocol is passed over", extra={"protocol": name, "why": why})
    return found
