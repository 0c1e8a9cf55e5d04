"""How does a front pass on an endless stream of events, of which a slow client may miss some?"""

from __future__ import annotations

from functools import partial

from wherry.frontends.http.exchange import Exchange
from wherry.frontends.rows.to_owner import ask_of, no_owner
from wherry.remote.link import OwnerLink
from wherry.remote.messages import Told


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
        asked = self._open.pop(exchange, None)
        if asked is not None:
            asked[0].forget(asked[1])

    def _ask(self, exchange: Exchange, link: OwnerLink, *, started: bool) -> None:
        ended = False

        def told(part: Told | None) -> None:
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

        number = link.ask(partial(ask_of, exchange), told)
        if not ended:
            self._open[exchange] = link, number

    def _pause(self, exchange: Exchange, link: OwnerLink) -> None:
        self._forget(exchange)
        self._open[exchange] = None

        def go_on() -> None:
            exchange.on_drain = None
            self._ask(exchange, link, started=True)

        exchange.on_drain = go_on
