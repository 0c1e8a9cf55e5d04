"""What do an HTTP transport and an application know of each other?

A transport (`protocol.py` on our own sockets, `asgi.py` inside another server) parses a
request and hands the application an `Exchange`; the application answers through it, now or later.
Nothing here knows of sockets, and nothing in the application needs to.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer, WherryError
from wherry.server.calls.client_text import text_of

#: The body of an answer: a sequence of buffers is sent end to end.
Body = bytes | Sequence[Buffer]
Headers = Sequence[tuple[str, str]]
JSON: Final = "application/json"
#: Of a refusal, where it is not known when the request would be taken.
SOON: Final = ("Retry-After", "1")
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class RequestHead(msgspec.Struct, eq=False):
    """The head of a request. Requests that began with the same bytes may share one: nothing in it
    changes but `route` and `notes`, in which the application keeps what it finds out once.

    `path` is percent-decoded and without the query, `query` is raw. `sent_path` is the path as it
    was sent, "" if that is the same. Header names are in lower case; repeated headers are joined by
    ", ". `body_bytes` is the Content-Length, 0 without one.

    `route` is the application's, once it was looked up. `notes` is what the route's handler derives
    from the head alone, so that it does so once; None at first. A head may outlive a model: `notes`
    holds none alive. `trace` is the request's RequestTrace, if it is traced: then it is one
    request's alone.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    body_bytes: int = 0
    sent_path: str = ""
    route: Any = None
    notes: Any = None
    trace: Any = None

    def __repr__(self) -> str:
        return f"<RequestHead {self.method} {self.path}>"  # headers may hold a key


class HttpRequest(msgspec.Struct, eq=False):
    """One complete request.

    `body` is as it came: a Content-Encoding is not undone. A body above 64 KiB is a writable
    memoryview that belongs to this request alone. `caller` is the name of the key that it was sent
    with, once that was found right.
    """

    # A Struct, as its head is: these are made without a call of Python code.

    head: RequestHead
    body: Buffer = b""
    peer: str | None = None
    caller: str = ""
    #: Its id where the client sent none; "" until it is needed.
    own_id: str = ""

    def __repr__(self) -> str:
        return f"<HttpRequest {self.method} {self.path}: {len(self.body)} bytes>"

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query(self) -> str:
        return self.head.query

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers


class Phase(Enum):
    WAITING = auto()
    STREAMING = auto()
    ANSWERED = auto()
    LEFT = auto()  # the client is gone: answers are dropped


# Bound once: finding a member on its class each time costs as much as a call.
WAITING, STREAMING, ANSWERED, LEFT = Phase


RefusalForm = Callable[[str, int, str], bytes]
"""Writes the body of a refusal, from its path, status and message."""


class Exchange(ABC):
    """One request and its one answer: whole (`respond`) or streamed (`start`, `send`, `finish`).

    Everything happens on the event loop's thread. Answering twice is a RuntimeError; answering a
    client that has left does nothing, since it may leave at any moment.

    `on_disconnect` is called once if the client leaves before the answer is complete.
    `on_drain` is called whenever `congested` has become false again.
    """

    __slots__ = ("_phase", "on_disconnect", "on_drain", "request")

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._phase = WAITING
        self.on_disconnect: Callable[[], None] | None = None
        self.on_drain: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.request!r}, {self._phase.name.lower()}>"

    @abstractmethod
    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        """Answer in one piece. A sequence of buffers is sent end to end, large ones uncopied:
        they must not change afterwards.
        """

    @abstractmethod
    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        """Begin a streamed answer; `finish` must follow."""

    @abstractmethod
    def send(self, chunk: bytes) -> None:
        """Send a piece of a streamed answer at once. Never blocks: see `congested`."""

    @abstractmethod
    def finish(self) -> None: ...

    @property
    @abstractmethod
    def congested(self) -> bool:
        """Whether the client reads too slowly: hold further chunks until `on_drain`."""

    def refusal(self, status: int, message: str) -> bytes:
        return error_body(message)

    def outcome_of(self, error: WherryError) -> tuple[int, str]:
        """The status and the text of an error, as the request's client expects them."""
        return error.http_status, text_of(error)

    # For transports

    def leave(self) -> None:
        """Notify the application that the client has left, unless the answer is complete."""
        if self._phase is WAITING or self._phase is STREAMING:
            self._phase = LEFT
            callback, self.on_disconnect, self.on_drain = self.on_disconnect, None, None
            if callback is not None:
                self._call(callback)

    def drained(self) -> None:
        """Notify the application that the client has taken what was sent, if it waits for that."""
        if self.on_drain is not None and not self.congested:
            self._call(self.on_drain)

    def _may_go_on(self, expected: Phase) -> bool:
        if self._phase is expected:
            return True
        if self._phase is LEFT:
            return False
        raise RuntimeError(f"{self!r} is not {expected.name.lower()}")

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the other exchanges must still be notified
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a callback of {self!r} failed", "exception": error}
            )


class PassedOn(Exchange):
    """Passes every call on to another exchange. Base of wrappers that change a part of them."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Exchange) -> None:
        super().__init__(inner.request)
        self._inner = inner
        inner.on_disconnect = self._left
        inner.on_drain = self._drained

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        self._inner.respond(status, body, content_type=content_type, headers=headers)

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        self._inner.start(status, content_type=content_type, headers=headers)

    def send(self, chunk: bytes) -> None:
        self._inner.send(chunk)

    def finish(self) -> None:
        self._inner.finish()

    @property
    def congested(self) -> bool:
        return self._inner.congested

    def refusal(self, status: int, message: str) -> bytes:
        return self._inner.refusal(status, message)

    def outcome_of(self, error: WherryError) -> tuple[int, str]:
        return self._inner.outcome_of(error)

    def _left(self) -> None:
        if self.on_disconnect is not None:
            self.on_disconnect()

    def _drained(self) -> None:
        if self.on_drain is not None:
            self.on_drain()


class WithHeaders(PassedOn):
    """An exchange whose answer has the headers that `more` gives when it begins, too."""

    __slots__ = ("_more",)

    def __init__(self, inner: Exchange, more: Callable[[], Headers]) -> None:
        super().__init__(inner)
        self._more = more

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        headers = (*headers, *self._more())
        self._inner.respond(status, body, content_type=content_type, headers=headers)

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        headers = (*headers, *self._more())
        self._inner.start(status, content_type=content_type, headers=headers)


Application = Callable[[Exchange], None]
"""Called for each request on the event loop's thread; must not block, may answer later."""


class Error(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What went wrong, and what to do about it."""

    error: str


def error_body(message: str) -> bytes:
    return msgspec.json.encode(Error(error=message))


def plain_form(path: str, status: int, message: str) -> bytes:
    return error_body(message)
