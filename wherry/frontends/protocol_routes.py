"""Which paths have the protocols of language models, and what others have beside them?"""

from __future__ import annotations

from wherry.frontends.anthropic.routes import Anthropic, other_route
from wherry.frontends.http.route import Route
from wherry.frontends.openai.adapter_routes import AdapterRoutes
from wherry.frontends.openai.invocations import Invocations
from wherry.frontends.openai.routes import OpenAI
from wherry.frontends.openai.task_routes import TaskRoutes
from wherry.frontends.rows.pass_on import PassOn
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.control import ModelControl


class ProtocolRoutes:
    """Those of one server. A model that has such a path as its own route comes before them."""

    def __init__(
        self, entry: HttpEntry, openai: OpenAI, control: ModelControl, pass_on: PassOn | None
    ) -> None:
        self._openai = openai
        self._pass_on = pass_on
        routes = {
            **openai.routes(),
            **TaskRoutes(entry).routes(),
            **AdapterRoutes(entry, control).routes(),
            **Anthropic(entry).routes(),
        }
        self._own = {**routes, **Invocations(entry, routes).routes()}
        self._routes = {path: self._passed(path, one) for path, one in self._own.items()}

    def route(self, path: str) -> Route | None:
        """The route at this path, as a front has it if this is one."""
        if (route := self._routes.get(path)) is not None:
            return route
        return None if (own := self.own_route(path)) is None else self._passed(path, own)

    def own_route(self, path: str) -> Route | None:
        """The route at this path, as its handler's room has it. Any thread."""
        # Anthropic's before OpenAI's, which have all else below /v1.
        return self._own.get(path) or other_route(path) or self._openai.route(path)

    def described(self) -> dict[str, Route]:
        """All that a document may describe, by the paths as OpenAPI writes them."""
        return {**self._own, **self._openai.patterns.routes}

    def _passed(self, path: str, route: Route) -> Route:
        return route if self._pass_on is None else self._pass_on.route(path, route)
