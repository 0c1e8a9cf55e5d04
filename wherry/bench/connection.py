"""How does one prepared request become one answered request, at little cost?

An asyncio protocol over httptools: the request's bytes are ready before the run, the answer is
read only as far as needed. One request at a time, no task, no future.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, Protocol

import httptools
import msgspec

from wherry.bench.answers import READERS, AnswerReader
from wherry.bench.figures import OK
from wherry.core.api import ConfigError


def tls_context(ssl_ca: str | None, *, insecure: bool) -> ssl.SSLContext:
    """A context for a client. ConfigError if `ssl_ca` has no certificates."""
    try:
        context = ssl.create_default_context(cafile=ssl_ca)
    except OSError as error:
        raise ConfigError(f"--ssl-ca {ssl_ca}: {error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


#: The longest answer that is kept in memory.
MAX_ANSWER_BYTES = 64 * 2**20


class Encoded(msgspec.Struct, frozen=True):
    """A request, ready to be sent any number of times."""

    data: bytes
    rows: int = 1


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """The server's address, and what is read of its answers."""

    host: str = "127.0.0.1"
    port: int = 80
    uds: str | None = None
    tls: bool = False
    ssl_ca: str | None = None
    #: Accept any certificate.
    insecure: bool = False
    #: "status": nothing but the status; "openai": a whole JSON answer with its usage; with
    #: "_events": a stream of server-sent events; "grpc": a gRPC status; "grpc_stream": the
    #: responses of a gRPC stream.
    reads: Literal["status", "openai", "openai_events", "v2_events", "grpc", "grpc_stream"] = (
        "status"
    )
    #: gRPC: what goes with each call. (Over HTTP it stands in the request.)
    metadata: tuple[tuple[str, str], ...] = ()


class Owner(Protocol):
    def answered(self, connection: LoadConnection, outcome: str, now: float) -> None:
        """The connection's request has ended; its figures stand in the connection."""

    def closed(self, connection: LoadConnection) -> None:
        """The connection is closed, and had no request."""

    def closing(self, closed: asyncio.Future[Any]) -> None:
        """A connection takes time to close: wait for this at the end of the run."""


class LoadConnection(asyncio.Protocol):
    """A connection, with one request at a time.

    Outcomes are `record.OK` or the kind of error; `message` then has the details.
    """

    def __init__(self, owner: Owner | None, caller: int) -> None:
        self.owner = owner
        self.caller = caller
        self.request: Encoded | None = None
        self.intended = 0.0
        self.sent = 0.0
        self.message = ""
        self.transport: asyncio.Transport | None = None
        self.reader: AnswerReader | None = None
        #: The socket, where it can be written to past the transport.
        self._file: int | None = None
        self._first_chunk: bytes | None = None
        self._last_chunk = b""

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, request: Encoded, intended: float, sent: float) -> None:
        """Send a request. `sent`: now, or when connecting for it began."""
        assert self.transport is not None
        self.request = request
        self.intended = intended
        self.sent = sent
        data = request.data
        if self._file is not None:
            try:
                written = os.write(self._file, data)
            except OSError:
                written = 0  # it is full, or gone; the transport finds out
            if written == len(data):
                return
            data = data[written:]
            self._file = None  # from now on nothing may overtake the transport's buffer
        self.transport.write(data)

    def abandon(self) -> None:
        """Close at once, without calling the owner."""
        self.owner = None
        if self.transport is not None:
            self.transport.abort()

    def fail(self, outcome: str, message: str = "") -> None:
        owner, self.message = self.owner, message
        self.abandon()
        self.transport = None
        if owner is not None:
            if self.request is not None:
                owner.answered(self, outcome, perf_counter())
            else:
                owner.closed(self)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        # uvloop writes after it has read from all connections, which would add to the latency.
        connected = transport.get_extra_info("socket")
        if connected is not None and not transport.get_extra_info("sslcontext"):
            self._file = connected.fileno()
        self._parser = httptools.HttpResponseParser(self)
        if self.owner is None:
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._first_chunk is None:
            self._first_chunk = data
        self._last_chunk = data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail("malformed answer", str(error))
        except httptools.HttpParserUpgrade:
            self.fail("malformed answer", "it switches to another protocol")
        except _TooLarge:
            self.fail("answer too large", f"more than {MAX_ANSWER_BYTES} bytes")

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.request is not None and self._first_chunk and _ends_with_eof(self._first_chunk):
            self.on_message_complete()
            return
        seen = "in the middle of" if self._first_chunk else "before"
        self.fail(f"connection closed {seen} the answer", str(error or ""))

    # httptools

    def on_message_complete(self) -> None:
        now = perf_counter()
        status = self._parser.get_status_code()
        if status < 200:
            return
        first, self._first_chunk = self._first_chunk, None
        # A second answer in the chunk that ended the first one is not the next request's.
        if self.request is None or first is None:
            return self.fail("an answer without a request")
        outcome = OK
        if status >= 300:
            outcome = f"HTTP {status}"
            self.message = message_in(first, self._last_chunk)
        elif self.reader is not None:
            problem = self.reader.ended()
            if problem:
                outcome, self.message = "error in the answer", problem
        if self.transport is not None and not self._parser.should_keep_alive():
            self.transport.close()
        if self.owner is not None:
            self.owner.answered(self, outcome, now)


class ReadingConnection(LoadConnection):
    """A connection that reads answers: whole ones for their usage, streams event by event."""

    def __init__(self, owner: Owner | None, caller: int, reader: Callable[[], AnswerReader]):
        super().__init__(owner, caller)
        self._make_reader = reader
        self._read_bytes = 0

    def send(self, request: Encoded, intended: float, sent: float) -> None:
        self.reader = self._make_reader()
        self._read_bytes = 0
        super().send(request, intended, sent)

    def on_body(self, body: bytes) -> None:
        self._read_bytes += len(body)
        if self._read_bytes > MAX_ANSWER_BYTES:
            raise _TooLarge
        if self.reader is not None and self._parser.get_status_code() < 300:
            self.reader.feed(body, perf_counter())


def make_connection(wire: Wire, owner: Owner | None, caller: int) -> LoadConnection:
    reader = READERS.get(wire.reads)
    return (
        LoadConnection(owner, caller)
        if reader is None
        else ReadingConnection(owner, caller, reader)
    )


class _TooLarge(Exception):
    pass


_HAS_LENGTH = re.compile(rb"\r\n(?:content-length|transfer-encoding)\s*:", re.IGNORECASE)


def _ends_with_eof(first_chunk: bytes) -> bool:
    """Whether the answer ends with its connection."""
    head, end, _ = first_chunk.partition(b"\r\n\r\n")
    return bool(end) and not _HAS_LENGTH.search(head)


def message_in(first_chunk: bytes, last_chunk: bytes) -> str:
    """The text of an error's answer, in one line: a JSON `error`, else the body, else the head."""
    body = first_chunk.partition(b"\r\n\r\n")[2] or last_chunk
    start, end = body.find(b"{"), body.rfind(b"}")
    text = " ".join(body[:300].decode(errors="replace").split())
    if 0 <= start < end:
        try:
            error = msgspec.json.decode(body[start : end + 1])["error"]
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (msgspec.DecodeError, KeyError, TypeError):
            pass
    return text[:300]
