"""How does a front send requests to an owner, and what comes back?

    submit -> channels (numbered) -> one frame for each turn of the loop -> owner
    owner -> frames -> channels -> replies

A channel holds the requests of one model that this owner has and that are not answered. Everything
here happens in the event loop of the front.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from wherry.core.api import FRESH, LARGE_BYTES, LoadReport, LoopCalls, Messages, WorkerLink
from wherry.server.remote.channel import ModelChannel
from wherry.server.remote.link_protocol import (
    Ask,
    AskCall,
    AskLoad,
    CallResponsePart,
    CancelRows,
    Forget,
    FrontSettings,
    LinkMessage,
    LoadReported,
    Measure,
    OneRequest,
    OwnedModels,
    Response,
    ResponsePart,
    RowAnswers,
    Rows,
    RowsRefused,
    Seen,
)

log = logging.getLogger("wherry")

#: Seconds between two looks at what an owner has.
LOOK: Final = 0.25


class LinkEvents(Protocol):
    """What is told of a link as a whole."""

    def models_of(self, link: OwnerLink, models: OwnedModels) -> None:
        """The owner has these models from now on."""

    def of_this_machine(self, link: OwnerLink, message: FrontSettings | Measure) -> None:
        """The owner says what is for fronts that it has started itself."""

    def ended(self, link: OwnerLink, error: Exception) -> None:
        """The link has ended. Its channels are told next."""


class OwnerLink:
    """One connection of a front to an owner. All but `call` is for the loop's thread."""

    def __init__(
        self,
        loop: LoopCalls,
        messages: Messages,
        events: LinkEvents,
        aside: Callable[[Callable[[], None]], None],
    ) -> None:
        self._loop = loop
        self._events = events
        self.call = loop.call
        self._wire = WorkerLink(
            loop,
            messages,
            receive=self._receive,
            refused=self._unsent,
            ended=self._ended,
            aside=aside,
        )
        #: By the owner's numbers of their models.
        self.channels: dict[int, ModelChannel] = {}
        self._cancelled: dict[int, list[int]] = {}
        self._callbacks: dict[int, Callable[[Any], None]] = {}
        self._next_ask = 0
        #: How busy the owner was when it said so last, and when it was asked.
        self._load: LoadReport | None = None
        self._load_requested_at = float("-inf")
        self._writes = False
        #: Whether `_look` will be called, and when.
        self._looks = False
        self.is_open = True

    def start(self) -> None:
        """Receive from now on."""
        self._wire.start()

    # To the owner

    def add(self, message: LinkMessage, size: int = 0) -> None:
        """Send a message of about `size` bytes with the next write, which `write_soon` brings."""
        self._wire.add(message, large=size > LARGE_BYTES)

    def write_soon(self) -> None:
        """Send what was added at the end of this turn of the loop."""
        if not self._writes:
            self._writes = True
            self._loop.loop.call_soon(self._write)
        if not self._looks:
            self._looks = True
            self._look_soon()

    def cancel(self, model: int, id: int) -> None:
        self._cancelled.setdefault(model, []).append(id)
        self.write_soon()

    def ask(
        self, make: Callable[[int], Ask | AskCall], callback: Callable[[Any], None], size: int = 0
    ) -> int:
        """Have the owner's application answer a request of about `size` bytes. `callback` gets the
        parts of the answer, Told or ToldCall; None if the link ends before the last."""
        id = self._next_ask
        self._next_ask += 1
        if not self.is_open:
            callback(None)
            return id
        self._callbacks[id] = callback
        self.add(make(id), size)
        self.write_soon()
        return id

    def forget(self, id: int) -> None:
        """The client of an `ask` has left."""
        if self._callbacks.pop(id, None) is not None and self.is_open:
            self.add(Forget(id))
            self.write_soon()

    def load_report(self) -> LoadReport | None:
        """How busy the owner was when it said so last. If that is some time ago it is asked: before
        the requests that follow, so that it has told when these are answered."""
        now = self._loop.loop.time()
        if now - self._load_requested_at >= FRESH and self.is_open:
            self._load_requested_at = now
            self.add(AskLoad())
            self.write_soon()
        return self._load

    def _load_reported(self, message: LoadReported) -> None:
        self._load = message.load

    def _write(self) -> None:
        self._writes = False
        for model, ids in self._cancelled.items():
            self._wire.add(CancelRows(model, ids))
        self._cancelled.clear()
        self._wire.write()

    def _look_soon(self) -> None:
        self._loop.loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        """Give up what is late: the owner may hang."""
        waits = self._callbacks or any(one.requests for one in self.channels.values())
        self._looks = self.is_open and bool(waits)
        if not self._looks:
            return
        for channel in list(self.channels.values()):
            channel.runner.give_up_late(channel)
        self._look_soon()

    # From the owner

    def _receive(self, messages: list[Any]) -> None:
        for message in messages:
            _RECEIVE[type(message)](self, message)

    def _answers(self, message: RowAnswers) -> None:
        channel = self.channels.get(message.model)
        if channel is not None:
            channel.answers(message)

    def _response(self, message: Response) -> None:
        channel = self.channels.get(message.model)
        if channel is not None:
            channel.response(message)

    def _refused(self, message: RowsRefused) -> None:
        channel = self.channels.get(message.model)
        if channel is not None:
            channel.refused(message)

    def _response_part(self, message: ResponsePart | CallResponsePart) -> None:
        callback = (
            self._callbacks.pop(message.id, None)
            if message.ends
            else self._callbacks.get(message.id)
        )
        if callback is not None:
            callback(message)

    def _models(self, message: OwnedModels) -> None:
        self._events.models_of(self, message)
        self.add(Seen(message.revision))
        self.write_soon()

    def _settings(self, message: FrontSettings) -> None:
        self._events.of_this_machine(self, message)
        self.add(Seen(message.revision))
        self.write_soon()

    def _unsent(self, message: Any, error: Exception) -> None:
        if isinstance(message, Rows):
            ids: Sequence[int] = range(message.first, message.first + message.count)
        elif isinstance(message, OneRequest):
            ids = (message.id,)
        else:
            log.error("a message could not be sent", extra={"why": str(error)})
            return
        channel = self.channels.get(message.model)
        if channel is not None:
            channel.unsent(ids, error)

    def _ended(self, error: Exception, _: bool) -> None:
        self.is_open = False
        self._events.ended(self, error)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.runner.lost(channel, error)
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback(None)


_RECEIVE: Final[dict[type, Callable[[OwnerLink, Any], None]]] = {
    RowAnswers: OwnerLink._answers,
    Response: OwnerLink._response,
    RowsRefused: OwnerLink._refused,
    ResponsePart: OwnerLink._response_part,
    CallResponsePart: OwnerLink._response_part,
    LoadReported: OwnerLink._load_reported,
    OwnedModels: OwnerLink._models,
    FrontSettings: OwnerLink._settings,
    Measure: lambda link, _: link._events.of_this_machine(link, Measure()),
}
