"""Which requests has one front passed on, and what becomes of their answers?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wherry.server.remote.messages import Ask, AskCall, Forget, LinkMessage, Told, ToldCall
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
        exchange = self._open[message.id] = ForwardedExchange(message, self._told)
        self._owner.answer(exchange)

    def ask_call(self, message: AskCall) -> None:
        call = self._open[message.id] = ForwardedCall(message, self._told)
        self._owner.answer_call(call)

    def forget(self, message: Forget) -> None:
        """The client has left."""
        asked = self._open.pop(message.id, None)
        if asked is not None:
            asked.leave()

    def leave(self) -> None:
        """The front has gone, and all its clients with it."""
        asked, self._open = self._open, {}
        for one in asked.values():
            one.leave()

    def _told(self, told: Told | ToldCall) -> None:
        if told.id not in self._open:
            return
        if told.ends:
            del self._open[told.id]
        body = told.body if isinstance(told, Told) else told.message
        self._send(told, len(body or b""))
