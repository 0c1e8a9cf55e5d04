"""Which requests has one front passed on, and what becomes of their answers?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wherry.server.remote.link_protocol import (
    Ask,
    AskCall,
    CallResponsePart,
    Forget,
    LinkMessage,
    ResponsePart,
)
from wherry.server.rows.forwarded import ForwardedExchange
from wherry.server.rows.forwarded_call import ForwardedCall


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
