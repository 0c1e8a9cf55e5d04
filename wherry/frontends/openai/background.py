"""How is a response made while its client does not wait for it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

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
from wherry.frontends.openai.event_log import EventLog
from wherry.frontends.openai.kept_responses import KeptResponses, KeptTurn

#: OpenAI's codes of a response that failed, by the status that its client would have had.
_CODES: Final = {429: "rate_limit_exceeded"}


class UnwaitedExchange(Exchange):
    """A request that goes on whether its client waits or not: `done` gets the status and the body,
    or that of the error that ended a stream. `send` gets the events of one."""

    __slots__ = ("_done", "_last", "_take")

    def __init__(
        self,
        request: HttpRequest,
        done: Callable[[int, bytes], None],
        take: Callable[[bytes], None],
    ) -> None:
        # A trace ends with the client's answer.
        head = request.head
        own = RequestHead(head.method, head.path, head.query, head.headers)
        super().__init__(HttpRequest(own, caller=request.caller))
        self._done = done
        self._take = take
        self._last = b""

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._may_go_on(WAITING):
            self._phase = ANSWERED
            self._done(status, body if isinstance(body, bytes) else b"".join(body))

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if self._may_go_on(WAITING):
            self._phase = STREAMING

    def send(self, chunk: bytes) -> None:
        if self._may_go_on(STREAMING):
            self._last = chunk
            self._take(chunk)

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self._phase = ANSWERED
            head, _, data = self._last.partition(b"data: ")
            failed = head == b"event: error\n"
            self._done(500 if failed else 200, data if failed else b"")

    @property
    def congested(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Running:
    turn: KeptTurn
    exchange: UnwaitedExchange
    #: None: its client did not ask for a stream.
    log: EventLog | None


class BackgroundResponses:
    """The responses that are made while no client waits for them; the ended ones go to `kept`.

    They are requests like any others: admitted, bounded and drained as those are. One loop uses it.
    """

    def __init__(self, kept: KeptResponses) -> None:
        self._kept = kept
        self._running: dict[str, _Running] = {}
        #: Bytes of all their events.
        self._logged = 0

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self,
        request: HttpRequest,
        turn: KeptTurn,
        submit: Callable[[Exchange], None],
        *,
        streams: bool = False,
    ) -> EventLog | None:
        """Have `submit` make the response, of which `turn` says what there is so far. Raises what
        `submit` does, and then there is none. `streams`: its events are kept, too, and returned."""
        log = EventLog() if streams else None

        def done(status: int, body: bytes) -> None:
            del self._running[turn.id]
            if self._kept.find(turn.id, turn.owner) is None:  # it failed, or is too large
                self._kept.keep(replace(turn, response=_failed(turn, status, body)))
            if log is not None:
                self._logged -= log.nbytes
                log.end((status, body) if not log.events and body else None)
                self._kept.add_events(turn.id, log.joined())

        def take(event: bytes) -> None:
            assert log is not None
            before = log.nbytes
            log.add(event)
            if self._logged + log.nbytes - before > self._kept.most_bytes:
                log.lose()
            self._logged += log.nbytes - before

        exchange = UnwaitedExchange(request, done, take)
        self._running[turn.id] = _Running(turn, exchange, log)
        try:
            submit(exchange)
        except Exception:
            self._running.pop(turn.id, None)
            raise
        return log

    def log(self, turn: KeptTurn) -> EventLog | None:
        """Return the events of a response that is being made, or that is kept; None if they are
        not."""
        if running := self._running.get(turn.id):
            return None if running.log is None or running.log.lost else running.log
        return EventLog.of(turn.events) if turn.events else None

    def find(self, id: str, owner: str) -> KeptTurn | None:
        """Return the owner's response that is being made."""
        running = self._running.get(id)
        return running.turn if running is not None and running.turn.owner == owner else None

    def cancel(self, id: str) -> KeptTurn:
        """End one that is being made, and return what is kept of it."""
        running = self._running.pop(id)
        running.exchange.leave()
        if running.log is not None:
            self._logged -= running.log.nbytes
            running.log.end()
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
