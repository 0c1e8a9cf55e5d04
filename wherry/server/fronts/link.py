"""How does a front send requests to an owner, and what comes back?

    submit -> channels (numbered) -> one frame for each turn of the loop -> owner
    owner -> frames -> channels -> replies

A channel holds the requests of one model that this owner has and that are not answered. Everything
here happens in the event loop of the front.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from wherry.core.api import (
    FRESH,
    LARGE_BYTES,
    InferRequest,
    InferResponse,
    InvalidRequest,
    LoadReport,
    LoopCalls,
    Messages,
    Signature,
    StreamReply,
    WherryError,
    WorkerLink,
    parted,
)
from wherry.server.fronts.encoding import error_of, joined, packed, shaped_strings, unpacked
from wherry.server.fronts.link_protocol import (
    CallResponsePart,
    CancelRows,
    Consumed,
    Forget,
    ForwardCall,
    ForwardRequest,
    FrontSettings,
    LinkMessage,
    LoadQuery,
    LoadReported,
    Measure,
    ModelCard,
    OneRequest,
    OwnedModels,
    Response,
    ResponsePart,
    RowAnswers,
    Rows,
    RowsRefused,
    Seen,
)

News = OwnedModels | FrontSettings | Measure

#: Responses of a stream that its reader takes before the owner is notified.
CREDIT = 8

#: A request and its answer; None: it has another outcome already.
Answer = tuple[InferRequest, InferResponse | None]


class ChannelRunner(Protocol):
    def answered(self, channel: ModelChannel, answers: Sequence[Answer]) -> None: ...
    def responded(
        self, channel: ModelChannel, request: InferRequest, response: InferResponse
    ) -> None: ...
    def refused(
        self, channel: ModelChannel, requests: Sequence[InferRequest], error: WherryError
    ) -> None: ...
    def give_up_late(self, channel: ModelChannel) -> None: ...
    def remove(self, channel: ModelChannel) -> None: ...
    def lost(self, channel: ModelChannel, error: Exception) -> None: ...


class ModelChannel:
    """The requests of one model that one owner has."""

    def __init__(
        self, link: OwnerLink, card: ModelCard, signature: Signature, runner: ChannelRunner
    ) -> None:
        self.link = link
        self.card = card
        self.runner = runner
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
            and request.requested_outputs is None
            and request.trace is None
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
                None if request.requested_outputs is None else list(request.requested_outputs),
                request.streams,
                request.trace.sent()
                if request.trace is not None and request.trace.is_followed
                else None,
            ),
            _size(columns),
        )

    def cancel(self, id: int) -> None:
        """Forget a request that has its outcome, and notify the owner."""
        request = self.requests.pop(id, None)
        if request is not None:
            self.link.cancel(self.card.number, id)
            self.runner.answered(self, [(request, None)])

    def consumed(self, id: int, responses: int) -> None:
        """Notify the owner that the reader of a stream has taken `responses` more. Any thread."""
        self.link.call(lambda _: self._consumed(id, responses), None)

    def _consumed(self, id: int, responses: int) -> None:
        if id in self.requests:
            self.link.add(Consumed(self.card.number, id, responses))
            self.link.write_soon()

    # From the owner

    def answers(self, message: RowAnswers) -> None:
        columns, requests = unpacked(message.columns, self._shaped_out), self.requests
        ids = message.ids
        parts = [columns] if len(ids) == 1 else parted(columns, len(ids))
        answers: list[Answer] = [
            (request, InferResponse(part))
            for id, part in zip(ids, parts, strict=True)
            if (request := requests.pop(id, None)) is not None  # else its caller has left
        ]
        self.runner.answered(self, answers)

    def response(self, message: Response) -> None:
        request = self.requests.get(message.id)
        if request is None:
            return
        columns = unpacked(message.columns, self._shaped_out)
        response = InferResponse(columns, message.rows, message.parameters, message.final)
        if message.ends:
            del self.requests[message.id]
            self.runner.answered(self, [(request, response)])
        else:
            self.runner.responded(self, request, response)

    def refused(self, message: RowsRefused) -> None:
        self._refuse(message.ids, error_of(message))

    def unsent(self, ids: Sequence[int], error: Exception) -> None:
        self._refuse(ids, InvalidRequest(f"model {self.card.config.name!r}: {error}"))

    def _refuse(self, ids: Iterable[int], error: WherryError) -> None:
        known = [one for id in ids if (one := self.requests.pop(id, None)) is not None]
        self.runner.refused(self, known, error)


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


def _size(columns: dict[str, Any]) -> int:
    """The bytes of the arrays in columns: strings are encoded in no time."""
    return sum([one.nbytes for one in columns.values() if isinstance(one, np.ndarray)])


log = logging.getLogger("wherry")

#: Seconds between two looks at what an owner has.
LOOK: Final = 0.25


class OwnerLink:
    """The connection of a front to its owner. All but `call` is for the loop's thread.

    `on_news` gets what is for the front as a whole, `on_end` is called when the link has ended,
    before its channels are notified.
    """

    def __init__(
        self,
        loop: LoopCalls,
        messages: Messages,
        aside: Callable[[Callable[[], None]], None],
        *,
        on_news: Callable[[News], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._on_news = on_news
        self._on_end = on_end
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
        self._next_forwarded = 0
        #: The owner's last load report, and when one was last requested.
        self._load: LoadReport | None = None
        self._load_requested_at = float("-inf")
        self._writes = False
        #: Whether `_look` will be called, and when.
        self._looks = False
        self.is_open = True

    def start(self) -> None:
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
            self._loop.loop.call_later(LOOK, self._look)

    def cancel(self, model: int, id: int) -> None:
        self._cancelled.setdefault(model, []).append(id)
        self.write_soon()

    def forward(
        self,
        make: Callable[[int], ForwardRequest | ForwardCall],
        callback: Callable[[Any], None],
        size: int = 0,
    ) -> int:
        """Have the owner's application answer a request of about `size` bytes. `callback` gets the
        parts of the answer; None if the link ends before the last."""
        id = self._next_forwarded
        self._next_forwarded += 1
        if not self.is_open:
            callback(None)
            return id
        self._callbacks[id] = callback
        self.add(make(id), size)
        self.write_soon()
        return id

    def forget(self, id: int) -> None:
        """The client of a forwarded request has left."""
        if self._callbacks.pop(id, None) is not None and self.is_open:
            self.add(Forget(id))
            self.write_soon()

    def load_report(self) -> LoadReport | None:
        """The owner's last report. Requests another if that is some time ago, before what follows:
        so it is here when that is answered."""
        now = self._loop.loop.time()
        if now - self._load_requested_at >= FRESH and self.is_open:
            self._load_requested_at = now
            self.add(LoadQuery())
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

    def _look(self) -> None:
        """Give up what is late: the owner may hang."""
        waits = self._callbacks or any(one.requests for one in self.channels.values())
        self._looks = self.is_open and bool(waits)
        if not self._looks:
            return
        for channel in list(self.channels.values()):
            channel.runner.give_up_late(channel)
        self._loop.loop.call_later(LOOK, self._look)

    # From the owner

    def _receive(self, messages: list[Any]) -> None:
        for message in messages:
            _RECEIVE[type(message)](self, message)

    def _response_part(self, message: ResponsePart | CallResponsePart) -> None:
        callback = (
            self._callbacks.pop(message.id, None)
            if message.ends
            else self._callbacks.get(message.id)
        )
        if callback is not None:
            callback(message)

    def _news(self, message: News) -> None:
        self._on_news(message)
        if not isinstance(message, Measure):
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
        self._on_end(error)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.runner.lost(channel, error)
        callbacks, self._callbacks = self._callbacks, {}
        for callback in callbacks.values():
            callback(None)


def _to_channel(take: Callable[[ModelChannel, Any], None]) -> Callable[[OwnerLink, Any], None]:
    def receive(link: OwnerLink, message: Any) -> None:
        channel = link.channels.get(message.model)
        if channel is not None:
            take(channel, message)

    return receive


_RECEIVE: Final[dict[type, Callable[[OwnerLink, Any], None]]] = {
    RowAnswers: _to_channel(ModelChannel.answers),
    Response: _to_channel(ModelChannel.response),
    RowsRefused: _to_channel(ModelChannel.refused),
    ResponsePart: OwnerLink._response_part,
    CallResponsePart: OwnerLink._response_part,
    LoadReported: OwnerLink._load_reported,
    OwnedModels: OwnerLink._news,
    FrontSettings: OwnerLink._news,
    Measure: OwnerLink._news,
}
