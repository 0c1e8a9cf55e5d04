"""How do several clients read the events of one answer, each from a place on, and at its pace?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.sse import CONTENT_TYPE, PING, UNBUFFERED

#: What ends a stream whose events are not kept any more.
_LOST: Final = (
    b"event: error\ndata: "
    b'{"type":"error","code":"server_error","param":null,"message":"the events are too many to be'
    b' kept: ask for the response without stream"}\n\n'
)
_END: Final = b"\n\n"


class EventLog:
    """The events of an answer so far, as they go onto the wire, and their followers."""

    def __init__(self, events: Sequence[bytes] = (), *, ended: bool = False) -> None:
        self.events = list(events)
        self.nbytes = sum(map(len, self.events))
        #: Whether it holds no events any more, because they were too many.
        self.lost = False
        self._ended = ended
        #: How the answer was refused before it had an event.
        self._refused: tuple[int, bytes] | None = None
        self._followers: set[_Follower] = set()

    @classmethod
    def of(cls, events: bytes) -> EventLog:
        """The log of an answer that has ended, of which `joined` gave this."""
        return cls([event + _END for event in events.split(_END)[:-1]], ended=True)

    def joined(self) -> bytes:
        return b"".join(self.events)

    def add(self, event: bytes) -> None:
        """Add an event; a ping is for those who follow now."""
        if event == PING:
            for follower in self._followers:
                follower.ping()
        elif not self.lost:
            self.events.append(event)
            self.nbytes += len(event)
            self._tell()

    def lose(self) -> None:
        """Forget the events: they are too many."""
        self.lost, self.events, self.nbytes = True, [], 0
        self._tell()

    def end(self, refused: tuple[int, bytes] | None = None) -> None:
        """There are no further events; `refused`: there were none, but an error's status and
        body."""
        self._ended, self._refused = True, refused
        self._tell()

    def follow(self, exchange: Exchange, place: int) -> None:
        """Answer with the events from this place on, those that are to come among them."""
        follower = _Follower(exchange, place)
        self._followers.add(follower)
        exchange.on_disconnect = partial(self._followers.discard, follower)
        exchange.on_drain = partial(self._go_on, follower)
        self._go_on(follower)

    def _tell(self) -> None:
        for follower in list(self._followers):
            self._go_on(follower)

    def _go_on(self, follower: _Follower) -> None:
        if self.lost or (follower.send(self.events) and self._ended):
            self._followers.discard(follower)
            follower.end(_LOST if self.lost else b"", self._refused)


class _Follower:
    """A client, and the place of the event that it gets next."""

    def __init__(self, exchange: Exchange, place: int) -> None:
        self._exchange = exchange
        self._place = place
        self._started = False

    def send(self, events: Sequence[bytes]) -> bool:
        """Send what the client has room for; return whether it has all."""
        while self._place < len(events) and not self._exchange.congested:
            self._start()
            self._exchange.send(events[self._place])
            self._place += 1
        return self._place >= len(events)

    def ping(self) -> None:
        if not self._exchange.congested:
            self._start()
            self._exchange.send(PING)

    def end(self, last: bytes, refused: tuple[int, bytes] | None) -> None:
        self._exchange.on_drain = self._exchange.on_disconnect = None
        if refused is not None and not self._started:
            self._exchange.respond(refused[0], refused[1])
            return
        self._start()
        if last:
            self._exchange.send(last)
        self._exchange.finish()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._exchange.start(200, content_type=CONTENT_TYPE, headers=UNBUFFERED)
