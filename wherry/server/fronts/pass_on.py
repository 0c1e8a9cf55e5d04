"""How does a front have an owner answer a request that is not for a model?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from wherry.core.api import LoadReport
from wherry.server.calls.terms import as_sent
from wherry.server.dashboard.routes import EVENTS
from wherry.server.fronts.link import OwnerLink
from wherry.server.fronts.link_protocol import ForwardRequest, ResponsePart
from wherry.server.http.exchange import SOON, Exchange
from wherry.server.http.route import Route


def forward_request(exchange: Exchange, id: int) -> ForwardRequest:
    """The request of this exchange, as a message to an owner."""
    request, head = exchange.request, exchange.request.head
    headers = {as_sent(name): value for name, value in head.headers.items()}
    body = bytes(request.body)
    return ForwardRequest(id, head.method, head.path, head.query, headers, body, request.peer)


def no_owner(exchange: Exchange) -> None:
    """Answer that there is none at the moment."""
    why = "the process that owns the models is gone; retry later"
    exchange.respond(503, exchange.refusal(503, why), headers=[SOON])


def put(
    exchange: Exchange,
    link: OwnerLink,
    *,
    started: bool = False,
    went_on: Callable[[], None] = lambda: None,
    ended: Callable[[], None] = lambda: None,
) -> int:
    """Have the owner answer, and return the number by which it knows the request. `started`: the
    client has the beginning of an answer. `went_on` is called after each part but the last one,
    `ended` before that."""

    def on_part(part: ResponsePart | None) -> None:
        nonlocal started
        last = part is None or part.ends
        if last:
            ended()
        if part is None and not started:
            no_owner(exchange)
        elif part is None or (started and last):
            exchange.finish()
        elif last:
            exchange.respond(
                part.status, part.body, content_type=part.content_type, headers=part.headers
            )
        else:
            if not started:
                started = True
                exchange.start(part.status, content_type=part.content_type, headers=part.headers)
            elif part.body:
                exchange.send(part.body)
            went_on()

    return link.forward(partial(forward_request, exchange), on_part, len(exchange.request.body))


class EventsPassedOn:
    """The event streams that a front passes on. In its loop.

    What a client does not read must not pile up here: the owner forgets it, and gets the request
    again when the client reads. Each stream begins with all that matters.
    """

    def __init__(self) -> None:
        #: The owner and the number by which it knows each stream; None: its client does not read.
        self._open: dict[Exchange, tuple[OwnerLink, int] | None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def __call__(self, exchange: Exchange, link: OwnerLink | None) -> None:
        if link is None:
            no_owner(exchange)
            return
        exchange.on_disconnect = lambda: self._forget(exchange)
        self._forward(exchange, link, started=False)

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

    def _forward(self, exchange: Exchange, link: OwnerLink, *, started: bool) -> None:
        def went_on() -> None:
            if self._closed:
                self.close()
            elif exchange.congested:
                self._pause(exchange, link)

        def ended() -> None:
            self._open.pop(exchange, None)

        number = put(exchange, link, started=started, went_on=went_on, ended=ended)
        if link.is_open:
            self._open[exchange] = link, number

    def _pause(self, exchange: Exchange, link: OwnerLink) -> None:
        self._forget(exchange)
        self._open[exchange] = None

        def go_on() -> None:
            exchange.on_drain = None
            self._forward(exchange, link, started=True)

        exchange.on_drain = go_on


#: Groups of routes that a front answers itself, but for the readiness, which only the owner knows.
OWN: Final = frozenset(("inference",))


class PassOn:
    """Passes HTTP requests on to the owner whose link `choose` gives."""

    def __init__(self, choose: Callable[[], OwnerLink | None]) -> None:
        self.choose = choose
        self._events = EventsPassedOn()

    def load_report(self) -> LoadReport | None:
        """The owner's load, if it has reported it."""
        return None if (link := self.choose()) is None else link.load_report()

    def route(self, path: str, route: Route) -> Route:
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
        link = self.choose()
        if link is None:
            no_owner(exchange)
            return
        number = put(exchange, link)
        exchange.on_disconnect = lambda: link.forget(number)

    def _pass_events(self, exchange: Exchange) -> None:
        self._events(exchange, self.choose())
