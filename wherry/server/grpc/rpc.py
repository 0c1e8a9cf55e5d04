"""What is the interface between a gRPC transport and the application, and what is a handler?

A transport (`h2.py`, on our own sockets) reads a call and gives the application an
`Rpc`; the application answers through it, now or later. Messages are bytes. Nothing here knows of
HTTP/2, and nothing in the application needs to.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from wherry.core.api import Buffer, WherryError, log_internal_error
from wherry.server.calls.client_text import text_of
from wherry.server.calls.terms import client_request_id, new_request_id
from wherry.server.grpc.proto import Method
from wherry.server.grpc.wire import Values

#: Names and values that end a call.
Metadata = Sequence[tuple[str, str]]
#: Of a call that may be made again soon.
SOON: Metadata = (("grpc-retry-pushback-ms", "1000"),)


class CallMetadata(dict[str, str]):
    """The client's metadata of a call. Names are in lower case; binary values are left out.

    Equal calls may share it, and with it `notes`, in which the application keeps what it finds out
    once, and `trailers`, which gives names and values for the end of each. `trace` is the call's
    RequestTrace, if it is traced: then it is one call's alone. `words` gives errors the code and
    text that this server's clients expect.
    """

    __slots__ = ("notes", "trace", "trailers", "words")

    def __init__(self, values: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(values)
        self.notes: Any = None
        self.trailers: Callable[[], Metadata] | None = None
        self.trace: Any = None
        self.words: Callable[[WherryError], tuple[str, str]] | None = None


class CannotListen(OSError):
    """A gRPC transport could not take its address, which is `filename`."""


def report(message: str, error: BaseException) -> None:
    """Hand a bug of ours to the loop's exception handler, which logs it."""
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": f"gRPC: {message}", "exception": error})


class Rpc(ABC):
    """One call of one method. Everything happens on the event loop's thread.

    A call ends with exactly one of `respond`, `finish` and `fail`; ending one whose client has
    left, or ending it again, does nothing: both may happen at any moment.

    Where the method takes a stream, `on_message` gets each message and `on_half_close` comes when
    there will be no more. `on_leave` is called once if the client leaves before the call's end.
    """

    __slots__ = (
        "caller", "ended", "message", "metadata", "on_half_close", "on_leave", "on_message", "path",
        "timeout",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        metadata: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        message: Buffer = b"",
    ) -> None:
        self.path = path
        self.metadata = CallMetadata(metadata or {})
        #: The name of the key that it was made with, once that was found right.
        self.caller = ""
        #: What is left of the client's deadline, in seconds.
        self.timeout = timeout
        self.message = message
        self.ended = False
        self.on_message: Callable[[Buffer], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        self.on_leave: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Rpc {self.path}{' (ended)' if self.ended else ''}>"

    @abstractmethod
    def respond(self, *message: Buffer) -> None:
        """Send the one message of a method that gives one, and end the call.

        The message may come in pieces, which must not change: a large one is written from where
        it lies, in time.
        """

    @abstractmethod
    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        """Send one message of a stream, in pieces as `respond` does. Never blocks: `sent` is called
        when the client's window has taken it."""

    @abstractmethod
    def finish(self) -> None:
        """End a stream with OK, behind all that was sent."""

    @abstractmethod
    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        """End the call with an error, behind all that was sent. `code` is a name: NOT_FOUND."""

    @abstractmethod
    def pause(self) -> None:
        """Take no further messages of the client's stream; in time it has to wait."""

    @abstractmethod
    def resume(self) -> None: ...

    @property
    def takes_nothing(self) -> bool:
        """Whether the client has taken none of more answers than it may leave: the next one that it
        is sent is refused."""
        return False

    # For transports

    def leave(self) -> None:
        """End the call because the client has gone; notify the application, unless it has ended."""
        if not self.ended:
            self.ended = True
            self.call_back(self.on_leave)
        self.forget()

    def forget(self) -> None:
        """Drop the callbacks, as the call is over: the reference cycles through them would keep
        the request alive until the garbage collector runs."""
        self.ended = True
        self.on_message = self.on_half_close = self.on_leave = None

    def call_back(self, callback: Callable[..., None] | None, *arguments: Any) -> None:
        """An exception of `callback` ends this call, not the connection."""
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - a bug of ours: logged, and the call fails
            report(f"a callback of {self!r} failed", error)
            self.fail("INTERNAL", "internal error; the server's log has it")


class Application(Protocol):
    """Answers calls. Everything happens on the event loop's thread; nothing may block."""

    @property
    def methods(self) -> Mapping[str, Method]: ...

    @property
    def vital(self) -> Collection[str]:
        """Paths of the methods that are answered when there are too many connections, too."""

    def __call__(self, rpc: Rpc) -> None: ...

    def drain(self) -> None:
        """Stop being ready, and notify the calls that watch health: the server stops."""

    def end_streams(self) -> None:
        """End the calls that a client may keep open, once what they have begun is answered."""


#: An error's text travels in the trailers, and clients refuse long ones: their whole error is lost.
MAX_TEXT_BYTES = 4096


def fail(rpc: Rpc, error: Exception) -> None:
    """End the call with an error's own code and text; a bug of ours is a neutral INTERNAL."""
    rpc.fail(*status_of(rpc, error))


def status_of(rpc: Rpc, error: Exception) -> tuple[str, str, Metadata]:
    """Code, text and trailers of an error; a bug of ours is logged and not shown."""
    if not isinstance(error, WherryError):
        request_id = client_request_id(rpc.metadata) or new_request_id()
        logged = log_internal_error(error, request_id=request_id, path=rpc.path)
        where = f"it under id {request_id}" if logged else "one like it"
        return "INTERNAL", f"internal error; the server's log has {where}", ()
    trailers: Metadata = ()
    if error.retry_after is not None:
        # What gRPC's own retries wait for, where the client has a policy for them.
        trailers = (("grpc-retry-pushback-ms", str(math.ceil(error.retry_after * 1000))),)
    words = rpc.metadata.words
    code, text = (error.grpc_code, text_of(error)) if words is None else words(error)
    if code == "DEADLINE_EXCEEDED":
        # As a client's own clock words it, which ends the call as often: its users look for that.
        text = f"Deadline Exceeded: {text}"
    # It may quote anything: a huge name, or lone surrogates, which are not UTF-8.
    data = text.encode(errors="replace")
    if len(data) > MAX_TEXT_BYTES:
        data = data[:MAX_TEXT_BYTES].decode(errors="ignore").encode() + b"..."
    return code, data.decode(), trailers


@dataclass(frozen=True, slots=True)
class MethodHandler:
    """The function behind one method, and the group of the API that the method belongs to.

    `group` is one of `restricted.GROUPS`: what an operator restricts or switches off. An `open`
    method needs no key: load balancers probe these.
    """

    call: Callable[[Method, Rpc], object]
    group: str
    open: bool = False


def at_once(answer: Callable[[Values], Values], group: str, *, open: bool = False) -> MethodHandler:
    """Make the handler of a unary method that needs no waiting for its response."""
    return MethodHandler(partial(_respond, answer), group, open)


def _respond(answer: Callable[[Values], Values], method: Method, rpc: Rpc) -> None:
    rpc.respond(method.response.encode(answer(method.request.decode(rpc.message))))
