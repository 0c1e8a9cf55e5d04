"""How do responses become server-sent events, no faster than the client reads them?"""

from __future__ import annotations

from collections.abc import Callable

from wherry.frontends.http.answers import Headers, describe, given_request_id
from wherry.frontends.http.exchange import Exchange

CONTENT_TYPE = "text/event-stream; charset=utf-8"
#: Proxies must hand events on one by one, as they come.
UNBUFFERED = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


class EventStream:
    """One streamed answer. The first event decides its status.

    `consumed` is called once for each event that the client has room for.
    """

    def __init__(self, exchange: Exchange, consumed: Callable[[], None]) -> None:
        self._exchange = exchange
        self._consumed = consumed
        self._unread = 0
        self._started = False
        exchange.on_drain = self._drained

    def send(self, data: bytes) -> None:
        """Send one line of data as an event."""
        self._start(200)
        self._exchange.send(b"data: %b\n\n" % data)
        if self._exchange.congested:
            self._unread += 1
        else:
            self._consumed()

    def end(self, error: Exception | None = None) -> None:
        """End the answer; an error is its last event, and its status if it is the first, too."""
        if error is not None:
            status, body, headers = describe(self._exchange, error)
            self._start(status, headers)
            self._exchange.send(b"data: %b\n\n" % body)
        self._start(200)
        self._exchange.on_drain = None
        self._exchange.finish()

    def _start(self, status: int, headers: Headers = ()) -> None:
        if self._started:
            return
        self._started = True
        request_id = given_request_id(self._exchange.request.headers)
        if request_id and status == 200:
            headers = (("X-Request-Id", request_id),)
        self._exchange.start(status, content_type=CONTENT_TYPE, headers=(*UNBUFFERED, *headers))

    def _drained(self) -> None:
        unread, self._unread = self._unread, 0
        for _ in range(unread):
            self._consumed()
