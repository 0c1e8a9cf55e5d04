"""How does a front have an owner answer a request that is not for a model?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from wherry.core.api import LoadReport
from wherry.server.dashboard.paths import EVENTS
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.remote.link import OwnerLink
from wherry.server.remote.link_protocol import ResponsePart
from wherry.server.rows.to_owner import ask_of, load_of, no_owner


class EventsPassedOn:
    """The event streams that a front passes on. In its loop.

    What a client does not read must not pile up here: the owner forgets it, and is asked again when
    the client reads. Each stream begins with all that matters.
    """

    def __init__(self) -> None:
        #: The owner and the number by which it knows each stream; None: its client does not read.
        self._open: dict[Exchange, tuple[OwnerLink, int] | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self, exchange: Exchange, link: OwnerLink | None) -> None:
        """Pass on what this owner tells."""
        if link is None:
            no_owner(exchange)
            return
        exchange.on_disconnect = lambda: self._forget(exchange)
        self._ask(exchange, link, started=False)

    def close(self) -> None:
        """End all streams, and those that are still to come."""
        self._closed = True
        for exchange in list(self._open):
            self._forget(exchange)
            exchange.finish()

    def _forget(self, exchange: Exchange) -> None:
        forwarded = self._open.pop(exchange, None)
        if forwarded is not None:
            forwarded[0].forget(forwarded[1])

    def _ask(self, exchange: Exchange, link: OwnerLink, *, started: bool) -> None:
        ended = False

        def on_part(part: ResponsePart | None) -> None:
            nonlocal started, ended
            ended = part is None or part.ends
            if part is None or (started and part.ends):
                self._open.pop(exchange, None)
                exchange.finish() if started else no_owner(exchange)
            elif part.ends:  # it refuses
                self._open.pop(exchange, None)
                exchange.respond(
                    part.status, part.body, content_type=part.content_type, headers=part.headers
                )
            elif not started:
                started = True
                exchange.start(part.status, content_type=part.content_type, headers=part.headers)
                if self._closed:
                    self.close()
            elif part.body:
                exchange.send(part.body)
                if exchange.congested:
                    self._pause(exchange, link)

        number = link.ask(partial(ask_of, exchange), on_part)
        if not ended:
            self._open[exchange] = link, number

    def _pause(self, exchange: Exchange, link: OwnerLink) -> None:
        self._forget(exchange)
        self._open[exchange] = None

        def go_on() -> None:
            exchange.on_drain = None
            self._ask(exchange, link, started=True)

        exchange.on_drain = go_on


#: Groups of routes that a front answers itself, but for the readiness, which only the owner knows.
OWN: Final = frozenset(("inference",))


class PassOn:
    """Passes HTTP requests on to the owner whose link `choose` gives."""

    def __init__(self, choose: Callable[[], OwnerLink | None]) -> None:
        self.choose = choose
        self._events = EventsPassedOn()

    def load_report(self) -> LoadReport | None:
        """How busy the owner is, if it has said so."""
        return load_of(self.choose())

    def route(self, path: str, route: Route) -> Route:
        """The route as a front has it."""
        if route.group in OWN or (
            route.group == "health" and not path.endswith(("/ready", "/readyz"))
        ):
            return route
        handler = self._pass_events if path == EVENTS else self
        return Route(dict.fromkeys(route.handlers, handler), route.group, route.open)

    @property
    def watchers(self) -> int:
        """Clients whose streams of events are passed on."""
        return len(self._events)

    def drain(self) -> None:
        """End the streams that have no end of their own."""
        self._events.close()

    def __call__(self, exchange: Exchange) -> None:
        self._pass_to(self.choose(), exchange)

    def _pass_events(self, exchange: Exchange) -> None:
        self._events(exchange, self.choose())

    def _pass_to(self, link: OwnerLink | None, exchange: Exchange) -> None:
        if link is None:
            no_owner(exchange)
            return
        started = False

        def on_part(part: ResponsePart | None) -> None:
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

        id = link.ask(partial(ask_of, exchange), on_part, len(exchange.request.body))
        exchange.on_disconnect = lambda: link.forget(id)
