"""How do responses become server-sent events, no faster than the client reads them?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from wherry.server.calls.terms import client_request_id
from wherry.server.http.answers import describe
from wherry.server.http.exchange import Exchange, Headers, error_body

CONTENT_TYPE = "text/event-stream; charset=utf-8"
#: Proxies must hand events on one by one, as they come.
UNBUFFERED = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
#: Seconds without an event after which a comment says that the stream lives: proxies close
#: connections on which nothing moves, often after 60 seconds.
PING_INTERVAL: Final = 15.0
PING: Final = b": ping\n\n"


class IdleTimer(Protocol):
    def cancel(self) -> None: ...


class EventStream:
    """One streamed answer. The first event decides its status, or a ping that comes before it.

    `consumed` is called once for each event that the client has room for. With `keep_alive` a
    stream that is silent for one to two PING_INTERVALs says so with a comment.
    """

    content_type = CONTENT_TYPE

    def __init__(
        self,
        exchange: Exchange,
        consumed: Callable[[], None],
        call_later: Callable[[float, Callable[[], Any]], IdleTimer] | None = None,
    ) -> None:
        self._exchange = exchange
        self._consumed = consumed
        self._unread = 0
        self._started = False
        self._silent = True
        exchange.on_drain = self._drained
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._timer: IdleTimer | None = None

    @property
    def started(self) -> bool:
        """Whether the head of the answer was sent, so that its status can no longer change."""
        return self._started

    def keep_alive(self) -> None:
        """Send a comment whenever the stream has been silent for one to two PING_INTERVALs."""
        self._timer = self._call_later(PING_INTERVAL, self._tick)

    def send(self, data: bytes, name: str = "") -> None:
        """Send one line of data as an event, which may have a name."""
        self._start(200)
        self._silent = False
        self._exchange.send(self.framed(data, name))
        if self._exchange.congested:
            self._unread += 1
        else:
            self._consumed()

    def framed(self, data: bytes, name: str = "") -> bytes:
        """Return one line of data as it goes onto the wire."""
        head = b"event: %b\n" % name.encode() if name else b""
        return b"%bdata: %b\n\n" % (head, data)

    def abandon(self) -> None:
        """Stop, before anything was sent: the caller answers the exchange in another way."""
        if self._timer is not None:
            self._timer.cancel()
        self._exchange.on_drain = None

    def end(self, error: Exception | None = None) -> None:
        """End the answer; an error is its last event, and its status if it is the first, too."""
        if self._timer is not None:
            self._timer.cancel()
        if error is not None:
            status, message, headers = describe(self._exchange, error)
            self._start(status, headers)
            self._exchange.send(self.framed(error_body(message)))
        self._start(200)
        self._exchange.on_drain = None
        self._exchange.finish()

    def _start(self, status: int, headers: Headers = ()) -> None:
        if self._started:
            return
        self._started = True
        request_id = client_request_id(self._exchange.request.headers)
        if request_id and status == 200:
            headers = (("X-Request-Id", request_id),)
        self._exchange.start(
            status, content_type=self.content_type, headers=(*UNBUFFERED, *headers)
        )

    def _tick(self) -> None:
        """Send a comment if nothing was sent since the last tick. A timer per event costs more."""
        if self._silent and not self._exchange.congested:
            self._start(200)
            self._exchange.send(PING)
        self._silent = True
        self.keep_alive()

    def _drained(self) -> None:
        unread, self._unread = self._unread, 0
        for _ in range(unread):
            self._consumed()


class JsonLines(EventStream):
    """One streamed answer of one line for each response. A line is an object with `error` if the
    stream fails. It has no comments: it is silent while the model is."""

    content_type = "application/x-ndjson"

    def keep_alive(self) -> None:
        """Do nothing: a line must be a value."""

    def framed(self, data: bytes, name: str = "") -> bytes:
        return data + b"\n"
