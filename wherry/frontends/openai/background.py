"""How is a response made while its client does not wait for it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from wherry.frontends.http.exchange import (
    ANSWERED,
    JSON,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    RequestHead,
)
from wherry.frontends.openai.kept_responses import KeptResponses, KeptTurn

#: OpenAI's codes of a response that failed, by the status that its client would have had.
_CODES: Final = {429: "rate_limit_exceeded"}


class UnwaitedExchange(Exchange):
    """A request whose client has been answered already: `done` gets the status and the body."""

    __slots__ = ("_done",)

    def __init__(self, request: HttpRequest, done: Callable[[int, bytes], None]) -> None:
        # A trace ends with the client's answer.
        head = request.head
        own = RequestHead(head.method, head.path, head.query, head.headers)
        super().__init__(HttpRequest(own, caller=request.caller))
        self._done = done

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._may_go_on(WAITING):
            self._phase = ANSWERED
            self._done(status, body if isinstance(body, bytes) else b"".join(body))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        raise RuntimeError("nobody reads a stream")

    def send(self, chunk: bytes) -> None:
        raise RuntimeError("nobody reads a stream")

    def finish(self) -> None:
        raise RuntimeError("nobody reads a stream")

    @property
    def congested(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Running:
    turn: KeptTurn
    exchange: UnwaitedExchange


class BackgroundResponses:
    """The responses that are being made for nobody who waits; the ended ones go to `kept`.

    They are requests like any others: admitted, bounded and drained as those are. One loop uses it.
    """

    def __init__(self, kept: KeptResponses) -> None:
        self._kept = kept
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self, request: HttpRequest, turn: KeptTurn, submit: Callable[[Exchange], None]
    ) -> None:
        """Have `submit` make the response, of which `turn` says what there is so far. Raises what
        `submit` does, and then there is none."""

        def done(status: int, body: bytes) -> None:
            del self._running[turn.id]
            if self._kept.find(turn.id, turn.owner) is None:  # it failed, or is too large
                self._kept.keep(replace(turn, response=_failed(turn, status, body)))

        exchange = UnwaitedExchange(request, done)
        self._running[turn.id] = _Running(turn, exchange)
        try:
            submit(exchange)
        except Exception:
            self._running.pop(turn.id, None)
            raise

    def find(self, id: str, owner: str) -> KeptTurn | None:
        """Return the owner's response that is being made."""
        running = self._running.get(id)
        return running.turn if running is not None and running.turn.owner == owner else None

    def cancel(self, id: str) -> KeptTurn:
        """End one that is being made, and return what is kept of it."""
        running = self._running.pop(id)
        running.exchange.leave()
        told = {**msgspec.json.decode(running.turn.response), "status": "cancelled"}
        turn = replace(running.turn, response=msgspec.json.encode(told))
        self._kept.keep(turn)
        return turn


def _failed(turn: KeptTurn, status: int, body: bytes) -> bytes:
    """The response that has failed, with what its client would have been told."""
    told: dict[str, Any] = msgspec.json.decode(turn.response)
    if status == 200:
        error = {"code": "server_error", "message": "the response is too large to be kept"}
    else:
        code = _CODES.get(status, "invalid_prompt" if status < 500 else "server_error")
        error = {"code": code, "message": msgspec.json.decode(body)["error"]["message"]}
    return msgspec.json.encode({**told, "status": "failed", "error": error})
