"""How does an owner answer an HTTP request that a front has passed on?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wherry.server.calls.header_names import name_with_capitals
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
from wherry.server.remote.link_protocol import Ask, ResponsePart


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
