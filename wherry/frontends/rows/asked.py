"""How does an owner answer an HTTP request that a front has passed on?"""

from __future__ import annotations

from collections.abc import Callable

from wherry.frontends.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    RequestHead,
)
from wherry.remote.messages import Ask, Told


class AskedExchange(Exchange):
    """An HTTP request that came over a link. `send` takes the parts of its answer."""

    __slots__ = ("_id", "_tell", "answers_after")

    def __init__(self, ask: Ask, tell: Callable[[Told], None]) -> None:
        head = RequestHead(ask.method, ask.path, ask.query, ask.headers, len(ask.body))
        super().__init__(HttpRequest(head, ask.body, ask.peer))
        self._id = ask.id
        self._tell = tell
        #: Calls the function that it is given when the answer may leave.
        self.answers_after: Callable[[Callable[[], None]], None] = _at_once

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._may_go_on(WAITING):
            self._phase = ANSWERED
            whole = body if isinstance(body, bytes) else b"".join(body)
            told = Told(self._id, status, content_type, list(headers), whole, True)
            self.answers_after(lambda: self._tell(told))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if self._may_go_on(WAITING):
            self._phase = STREAMING
            self._tell(Told(self._id, status, content_type, list(headers), b"", False))

    def send(self, chunk: bytes) -> None:
        if self._may_go_on(STREAMING):
            self._tell(Told(self._id, 0, "", [], chunk, False))

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self._phase = ANSWERED
            self._tell(Told(self._id, 0, "", [], b"", True))

    @property
    def congested(self) -> bool:
        return False


def _at_once(call: Callable[[], None]) -> None:
    call()
