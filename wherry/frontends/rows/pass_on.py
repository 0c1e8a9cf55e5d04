"""How does a front have an owner answer a request that is not for a model?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wherry.frontends.http.exchange import Exchange, error_body
from wherry.frontends.http.route import Route
from wherry.remote.link import OwnerLink
from wherry.remote.messages import Ask, Told

#: Groups of routes that a front answers itself, but for the readiness, which only the owner knows.
OWN: Final = frozenset(("inference",))


class PassOn:
    """Passes HTTP requests on to the owner whose link `choose` gives."""

    #: Whether the front knows itself that it is ready, as it has several owners.
    knows_health = False

    def __init__(self, choose: Callable[[], OwnerLink | None]) -> None:
        self.choose = choose

    def route(self, path: str, route: Route) -> Route:
        """The route as a front has it."""
        if route.group in OWN or (route.group == "health" and not path.endswith("/ready")):
            return route
        return Route(dict.fromkeys(route.handlers, self), route.group, route.open)

    def __call__(self, exchange: Exchange) -> None:
        link = self.choose()
        if link is None:
            no_owner(exchange)
            return
        started = False

        def told(part: Told | None) -> None:
            nonlocal started
            if part is None:
                if not started:
                    no_owner(exchange)
                else:
                    exchange.finish()
            elif started:
                exchange.send(part.body)
                if part.ends:
                    exchange.finish()
            elif part.ends:
                exchange.respond(
                    part.status, part.body, content_type=part.content_type, headers=part.headers
                )
            else:
                started = True
                exchange.start(part.status, content_type=part.content_type, headers=part.headers)

        request = exchange.request
        head = request.head

        def ask(id: int) -> Ask:
            headers = dict(head.headers)
            body = bytes(request.body)
            return Ask(id, head.method, head.path, head.query, headers, body, request.peer)

        id = link.ask(ask, told, len(request.body))
        exchange.on_disconnect = lambda: link.forget(id)


def no_owner(exchange: Exchange) -> None:
    """Answer that there is none at the moment."""
    why = "the process that owns the models is gone; retry later"
    exchange.respond(503, error_body(why), headers=[("Retry-After", "1")])
