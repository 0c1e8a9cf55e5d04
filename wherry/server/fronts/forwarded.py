"""How does an owner answer what a front has passed on, over HTTP or gRPC?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from wherry.core.api import Buffer
from wherry.server.calls.header_names import name_with_capitals
from wherry.server.fronts.link_protocol import (
    Ask,
    AskCall,
    CallResponsePart,
    Forget,
    LinkMessage,
    ResponsePart,
)
from wherry.server.grpc.rpc import Metadata, Rpc
from wherry.server.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    PassedOn,
    RequestHead,
)


class Answerer(Protocol):
    """Has the owner's own applications answer."""

    def answer(self, exchange: ForwardedExchange) -> None: ...
    def answer_call(self, call: ForwardedCall) -> None: ...


class ForwardedRequests:
    """What one front has passed on and that is not answered. `send` takes a message for the front
    and its size."""

    def __init__(self, owner: Answerer, send: Callable[[LinkMessage, int], None]) -> None:
        self._owner = owner
        self._send = send
        self._open: dict[int, ForwardedExchange | ForwardedCall] = {}

    def ask(self, message: Ask) -> None:
        exchange = self._open[message.id] = ForwardedExchange(message, self._send_part)
        self._owner.answer(exchange)

    def ask_call(self, message: AskCall) -> None:
        call = self._open[message.id] = ForwardedCall(message, self._send_part)
        self._owner.answer_call(call)

    def forget(self, message: Forget) -> None:
        """The client has left."""
        request = self._open.pop(message.id, None)
        if request is not None:
            request.leave()

    def leave(self) -> None:
        """The front has gone, and all its clients with it."""
        request, self._open = self._open, {}
        for one in request.values():
            one.leave()

    def _send_part(self, part: ResponsePart | CallResponsePart) -> None:
        if part.id not in self._open:
            return
        if part.ends:
            del self._open[part.id]
        body = part.body if isinstance(part, ResponsePart) else part.message
        self._send(part, len(body or b""))


class ForwardedCall(Rpc):
    """A gRPC call that came over a link. `tell` takes the parts of its answer."""

    __slots__ = ("_id", "_tell", "answers_after")

    def __init__(self, ask: AskCall, tell: Callable[[CallResponsePart], None]) -> None:
        super().__init__(ask.path, ask.metadata, timeout=ask.timeout, message=ask.message)
        self._id = ask.id
        self._tell = tell
        #: Calls the function that it is given when the answer may leave.
        self.answers_after: Callable[[Callable[[], None]], None] | None = None

    def respond(self, *message: Buffer) -> None:
        self._end(CallResponsePart(self._id, b"".join(message), "OK"))

    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        """Send one message. `sent` is called at once: the front keeps what its client is slow to
        take, which is little of what is passed on."""
        if not self.ended:
            self._tell(CallResponsePart(self._id, b"".join(message)))
            self.tell(sent)

    def finish(self) -> None:
        self._end(CallResponsePart(self._id, None, "OK"))

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        self._end(CallResponsePart(self._id, None, code, text, list(metadata)))

    def pause(self) -> None:
        """Do nothing: the one message is here."""

    def resume(self) -> None:
        """Do nothing: the one message is here."""

    def _end(self, part: CallResponsePart) -> None:
        if self.ended:
            return
        self.forget()
        if self.answers_after is None:
            self._tell(part)
        else:
            self.answers_after(lambda: self._tell(part))


class ForwardedExchange(Exchange):
    """An HTTP request that came over a link. `send` takes the parts of its answer."""

    __slots__ = ("_id", "_tell")

    def __init__(self, ask: Ask, tell: Callable[[ResponsePart], None]) -> None:
        headers = {name_with_capitals(name): value for name, value in ask.headers.items()}
        head = RequestHead(ask.method, ask.path, ask.query, headers, len(ask.body))
        super().__init__(HttpRequest(head, ask.body, ask.peer))
        self._id = ask.id
        self._tell = tell

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._may_go_on(WAITING):
            self._phase = ANSWERED
            whole = body if isinstance(body, bytes) else b"".join(body)
            self._tell(ResponsePart(self._id, status, content_type, list(headers), whole, True))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if self._may_go_on(WAITING):
            self._phase = STREAMING
            self._tell(ResponsePart(self._id, status, content_type, list(headers), b"", False))

    def send(self, chunk: bytes) -> None:
        if self._may_go_on(STREAMING):
            self._tell(ResponsePart(self._id, 0, "", [], chunk, False))

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self._phase = ANSWERED
            self._tell(ResponsePart(self._id, 0, "", [], b"", True))

    @property
    def congested(self) -> bool:
        return False


class AnsweredLater(PassedOn):
    """Passes an answer in one piece on when `after` calls what it is given."""

    __slots__ = ("_after",)

    def __init__(self, inner: Exchange, after: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(inner)
        self._after = after

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        answer = partial(
            self._inner.respond, status, body, content_type=content_type, headers=headers
        )
        self._after(answer)
