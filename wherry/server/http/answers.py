"""How is a request answered: in one piece, by an error, or by events as the client reads them?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from wherry.core.api import WherryError, log_internal_error
from wherry.server.calls.client_text import encode_json
from wherry.server.calls.compression import (
    MAX_BYTES_IN_LOOP,
    MIN_BYTES,
    UnknownCoding,
    best_coding,
    compressed,
)
from wherry.server.calls.terms import client_request_id, new_request_id
from wherry.server.http.exchange import JSON, Body, Exchange, Headers, error_body


def request_id_of(exchange: Exchange) -> str:
    """The client's X-Request-Id, or an id that is made once for each request."""
    request = exchange.request
    headers = request.head.headers
    if "x-request-id" in headers and (request_id := client_request_id(headers)):
        return request_id
    request.own_id = request.own_id or new_request_id()
    return request.own_id


def respond(
    exchange: Exchange,
    body: Body,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: Headers = (),
    compress: bool = True,
) -> None:
    """Answer in one piece: with the client's request id, compressed if the client accepts that."""
    request_headers = exchange.request.head.headers
    if "x-request-id" in request_headers and (request_id := client_request_id(request_headers)):
        headers = (*headers, ("X-Request-Id", request_id))
    if compress and "accept-encoding" in request_headers and status < 300:
        body, extra = packed(body, request_headers["accept-encoding"], MAX_BYTES_IN_LOOP)
        headers = (*headers, *extra)
    exchange.respond(status, body, content_type=content_type, headers=headers)


def respond_json(exchange: Exchange, value: Any) -> None:
    # As Triton: its asyncio client accepts gzip everywhere, and unpacks the answers of infer only.
    respond(exchange, encode_json(value), compress=False)


def fail(exchange: Exchange, error: Exception) -> None:
    """Answer with an error: its own status and text, or a neutral 500 for a bug of ours."""
    status, message, headers = describe(exchange, error)
    exchange.respond(status, error_body(message), headers=headers)


def describe(exchange: Exchange, error: Exception) -> tuple[int, str, Headers]:
    """Status, message and headers of an error; a bug of ours is logged and not shown."""
    request_id = request_id_of(exchange)
    headers = [("X-Request-Id", request_id)]
    if not isinstance(error, WherryError):
        logged = log_internal_error(error, request_id=request_id, path=exchange.request.path)
        where = f"it under request id {request_id}" if logged else "one like it"
        return 500, f"internal error; the server's log has {where}", headers
    if error.retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(error.retry_after))))
    if isinstance(error, UnknownCoding):
        headers.append(("Accept-Encoding", "gzip, deflate"))
    status, text = exchange.outcome_of(error)
    # An error text may quote lone surrogates, which UTF-8 cannot carry.
    return status, text.encode(errors="replace").decode(), headers


def packed(
    body: Body, accept_encoding: str, most: int, *, least: int = MIN_BYTES
) -> tuple[Body, Headers]:
    """Compress a body if the client accepts it; return it with the headers for that.

    Below `least` bytes, and above `most`, it stays as it is.
    """
    size = len(body) if isinstance(body, bytes) else sum(len(part) for part in body)
    if not least <= size <= most:
        return body, ()
    coding = best_coding(accept_encoding)
    if coding is None:
        return body, (("Vary", "Accept-Encoding"),)
    whole = body if isinstance(body, bytes) else b"".join(body)
    extra = (("Content-Encoding", coding), ("Vary", "Accept-Encoding"))
    return compressed(whole, coding), extra


CONTENT_TYPE = "text/event-stream; charset=utf-8"
#: Proxies must hand events on one by one, as they come.
UNBUFFERED = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
#: Seconds without an event after which a comment shows that the stream lives: proxies close
#: connections on which nothing moves, often after 60 seconds.
PING_INTERVAL: Final = 15.0
PING: Final = b": ping\n\n"


class IdleTimer(Protocol):
    def cancel(self) -> None: ...


class EventStream:
    """One streamed answer. The first event decides its status, or a ping that comes before it."""

    content_type = CONTENT_TYPE

    def __init__(
        self,
        exchange: Exchange,
        call_later: Callable[[float, Callable[[], Any]], IdleTimer] | None = None,
        headers: Headers = (),
    ) -> None:
        self._exchange = exchange
        self._headers = headers
        self._unread: list[Callable[[], None]] = []
        #: Whether the head of the answer was sent, so that its status can no longer change.
        self.started = False
        self._silent = True
        exchange.on_drain = self._drained
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._timer: IdleTimer | None = None

    def keep_alive(self) -> None:
        """Send a comment whenever the stream has been silent for one to two PING_INTERVALs."""
        self._timer = self._call_later(PING_INTERVAL, self._tick)

    def send(self, data: bytes, name: str = "", consumed: Callable[[], None] | None = None) -> None:
        """Send one line of data as an event, which may have a name. `consumed` is called once the
        client has room for it."""
        self._start(200)
        self._silent = False
        self._exchange.send(self.framed(data, name))
        if consumed is not None:
            if self._exchange.congested:
                self._unread.append(consumed)
            else:
                consumed()

    def framed(self, data: bytes, name: str = "") -> bytes:
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
        if self.started:
            return
        self.started = True
        sent = self._exchange.request.head.headers
        if status == 200 and "x-request-id" in sent and (request_id := client_request_id(sent)):
            headers = (("X-Request-Id", request_id),)
        self._exchange.start(
            status,
            content_type=self.content_type,
            headers=(*UNBUFFERED, *headers, *self._headers),
        )

    def _tick(self) -> None:
        """Send a comment if nothing was sent since the last tick. A timer per event costs more."""
        if self._silent and not self._exchange.congested:
            self._start(200)
            self._exchange.send(PING)
        self._silent = True
        self.keep_alive()

    def _drained(self) -> None:
        unread, self._unread = self._unread, []
        for consumed in unread:
            consumed()


class JsonLines(EventStream):
    """One streamed answer of one line for each response. A line is an object with `error` if the
    stream fails. It has no comments: it is silent while the model is."""

    content_type = "application/x-ndjson"

    def keep_alive(self) -> None:
        """Do nothing: a line must be a value."""

    def framed(self, data: bytes, name: str = "") -> bytes:
        return data + b"\n"
