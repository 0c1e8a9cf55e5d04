"""How does a front send requests to an owner, and what comes back?

    submit -> channels (numbered) -> one frame for each turn of the loop -> owner
    owner -> frames -> channels -> replies

A channel holds the requests of one model that this owner has and that are not answered. Everything
here happens in the event loop of the front.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from wherry.models.signature import Signature
from wherry.remote.columns import joined, packed, unpacked
from wherry.remote.errors import error_of
from wherry.remote.messages import (
    Ask,
    CancelRows,
    Consumed,
    Goodbye,
    LinkMessage,
    ModelCard,
    OneRequest,
    OwnedModels,
    Response,
    RowAnswers,
    Rows,
    RowsRefused,
    Seen,
    Told,
)
from wherry.remote.model import shaped_strings
from wherry.values.errors import InvalidRequest, WherryError
from wherry.values.reply import StreamReply
from wherry.values.request import InferRequest, InferResponse, parted
from wherry.workers.link import LARGE_BYTES, Messages, WorkerLink
from wherry.workers.loop import LoopCalls

log = logging.getLogger("wherry")

#: Responses of a stream that its reader takes before the owner is told.
CREDIT = 8


#: A request and its answer.
Answer = tuple[InferRequest, InferResponse]


class ChannelRunner(Protocol):
    """The runner whose requests a channel holds."""

    def answered(self, answers: Sequence[Answer]) -> None: ...
    def responded(self, request: InferRequest, response: InferResponse) -> None: ...
    def fail(self, request: InferRequest, error: WherryError) -> bool: ...
    def lost(self, channel: ModelChannel, error: Exception) -> None: ...


class ModelChannel:
    """The requests of one model that one owner has."""

    def __init__(
        self, link: OwnerLink, card: ModelCard, signature: Signature, desk: ChannelRunner
    ) -> None:
        self.link = link
        self.card = card
        self.desk = desk
        #: By their ids.
        self.requests: dict[int, InferRequest] = {}
        self._next = 0
        #: Requests of one row may cross in one message.
        self._bundles = card.config.max_batch_size > 0 and not card.streams
        self._default_priority = card.config.default_priority
        self._shaped_in = shaped_strings(signature.inputs)
        self._shaped_out = shaped_strings(signature.outputs)

    # To the owner

    def send(self, requests: Sequence[InferRequest], now: float) -> None:
        """Send requests that came in one turn of the loop. `now` is by the runtime's clock."""
        alike: dict[tuple[str, Hashable], list[InferRequest]] = {}
        for request in requests:
            if self._bundles and self._is_plain(request):
                alike.setdefault((request.tenant, request.shape_key), []).append(request)
            else:
                self._send_one(request, now)
        for (tenant, _), bundle in alike.items():
            self._send_bundle(bundle, tenant, now)
        self.link.write_soon()

    def _is_plain(self, request: InferRequest) -> bool:
        return (
            request.rows == 1
            and not request.id
            and request.timeout is None
            and request.deadline is None
            and request.parameters is None
            and request.sequence is None
            and request.wanted is None
            and request.priority == self._default_priority
        )

    def _send_bundle(self, bundle: list[InferRequest], tenant: str, now: float) -> None:
        columns: dict[str, Any] | None = bundle[0].inputs
        if len(bundle) > 1:
            columns = joined([request.inputs for request in bundle])
            if columns is None:
                for request in bundle:
                    self._send_one(request, now)
                return
        assert columns is not None
        number, first = self.card.number, self._next
        for id, request in enumerate(bundle, first):
            self.requests[id] = request
            request.queued = (self, id)
        self._next += len(bundle)
        columns = packed(columns, self._shaped_in)
        self.link.add(Rows(number, first, len(bundle), columns, tenant), _size(columns))

    def _send_one(self, request: InferRequest, now: float) -> None:
        id = self._next
        self._next += 1
        self.requests[id] = request
        request.queued = (self, id)
        reply = request.reply
        timeout = request.timeout
        if request.deadline is not None:
            timeout = max(0.0, request.deadline - now)
        if isinstance(reply, StreamReply):
            reply.on_consumed = _Credit(self, id, reply)
        columns = packed(request.inputs, self._shaped_in)
        self.link.add(
            OneRequest(
                self.card.number,
                id,
                request.rows,
                columns,
                request.tenant,
                request.id,
                timeout,
                request.priority,
                request.parameters,
                request.sequence,
                None if request.wanted is None else list(request.wanted),
                request.streams,
            ),
            _size(columns),
        )

    def cancel(self, id: int) -> None:
        """Forget a request that has its outcome, and tell the owner."""
        if self.requests.pop(id, None) is not None:
            self.link.cancel(self.card.number, id)

    def consumed(self, id: int, responses: int) -> None:
        """Tell the owner that the reader of a stream has taken so many responses. Any thread."""
        self.link.call(lambda _: self._consumed(id, responses))

    def _consumed(self, id: int, responses: int) -> None:
        if id in self.requests:
            self.link.add(Consumed(self.card.number, id, responses))
            self.link.write_soon()

    # From the owner

    def answers(self, message: RowAnswers) -> None:
        columns, requests = unpacked(message.columns, self._shaped_out), self.requests
        ids = message.ids
        parts = [columns] if len(ids) == 1 else parted(columns, len(ids))
        answers = [
            (request, InferResponse(part))
            for id, part in zip(ids, parts, strict=True)
            if (request := requests.pop(id, None)) is not None  # else its caller has left
        ]
        self.desk.answered(answers)

    def response(self, message: Response) -> None:
        request = self.requests.get(message.id)
        if request is None:
            return
        columns = unpacked(message.columns, self._shaped_out)
        response = InferResponse(columns, message.rows, message.parameters, message.final)
        if message.ends:
            del self.requests[message.id]
            self.desk.answered([(request, response)])
        else:
            self.desk.responded(request, response)

    def refused(self, message: RowsRefused) -> None:
        error = error_of(message)
        for id in message.ids:
            request = self.requests.pop(id, None)
            if request is not None:
                self.desk.fail(request, error)

    def unsent(self, ids: Sequence[int], error: Exception) -> None:
        """These could not be encoded."""
        name = self.card.config.name
        for id in ids:
            request = self.requests.pop(id, None)
            if request is not None:
                self.desk.fail(request, InvalidRequest(f"model {name!r}: {error}"))


class _Credit:
    """Counts the responses that the reader of one stream takes. Any thread, one at a time."""

    __slots__ = ("_channel", "_id", "_reply", "_taken")

    def __init__(self, channel: ModelChannel, id: int, reply: StreamReply[InferResponse]) -> None:
        self._channel = channel
        self._id = id
        self._reply = reply
        self._taken = 0

    def __call__(self) -> None:
        self._taken += 1
        if self._taken == CREDIT or not self._reply.unread:
            taken, self._taken = self._taken, 0
            self._channel.consumed(self._id, taken)


class LinkEvents(Protocol):
    """What is told of a link as a whole."""

    def models_of(self, link: OwnerLink, models: OwnedModels) -> None:
        """The owner has these models from now on."""

    def leaving(self, link: OwnerLink) -> None:
        """The owner takes no more requests."""

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
        self.call = partial(loop.call, argument=None)
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
        self._asked: dict[int, Callable[[Told | None], None]] = {}
        self._next_ask = 0
        self._writes = False
        self.is_open = True

    def start(self) -> None:
        """Receive from now on."""
        self._wire.start()

    def close(self) -> None:
        self._wire.close()

    # To the owner

    def add(self, message: LinkMessage, size: int = 0) -> None:
        """Send a message of about `size` bytes with the next write, which `write_soon` brings."""
        self._wire.add(message, large=size > LARGE_BYTES)

    def write_soon(self) -> None:
        """Send what was added at the end of this turn of the loop."""
        if not self._writes:
            self._writes = True
            self._loop.loop.call_soon(self._write)

    def cancel(self, model: int, id: int) -> None:
        self._cancelled.setdefault(model, []).append(id)
        self.write_soon()

    def ask(self, make: Callable[[int], Ask], told: Callable[[Told | None], None]) -> int:
        """Have the owner's application answer a request. `told` gets the parts of the answer; None
        if the link ends before the last."""
        id = self._next_ask
        self._next_ask += 1
        if not self.is_open:
            told(None)
            return id
        self._asked[id] = told
        self.add(make(id))
        self.write_soon()
        return id

    def forget(self, id: int) -> None:
        """The client of an `ask` has left."""
        self._asked.pop(id, None)

    def _write(self) -> None:
        self._writes = False
        for model, ids in self._cancelled.items():
            self._wire.add(CancelRows(model, ids))
        self._cancelled.clear()
        self._wire.write()

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

    def _told(self, message: Told) -> None:
        told = self._asked.pop(message.id, None) if message.ends else self._asked.get(message.id)
        if told is not None:
            told(message)

    def _models(self, message: OwnedModels) -> None:
        self._events.models_of(self, message)
        self.add(Seen(message.revision))
        self.write_soon()

    def _goodbye(self, _: Goodbye) -> None:
        self._events.leaving(self)

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
            channel.desk.lost(channel, error)
        asked, self._asked = self._asked, {}
        for told in asked.values():
            told(None)


_RECEIVE: Final[dict[type, Callable[[OwnerLink, Any], None]]] = {
    RowAnswers: OwnerLink._answers,
    Response: OwnerLink._response,
    RowsRefused: OwnerLink._refused,
    Told: OwnerLink._told,
    OwnedModels: OwnerLink._models,
    Goodbye: OwnerLink._goodbye,
}


def _size(columns: dict[str, Any]) -> int:
    """The bytes of the arrays in columns: strings are encoded in no time."""
    return sum([one.nbytes for one in columns.values() if isinstance(one, np.ndarray)])
