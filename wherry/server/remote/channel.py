"""What does one owner have of one model's requests, and how do they get there and back?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from wherry.core.api import (
    InferRequest,
    InferResponse,
    InvalidRequest,
    Signature,
    StreamReply,
    WherryError,
    parted,
)
from wherry.server.remote.columns import joined, packed, unpacked
from wherry.server.remote.errors import error_of
from wherry.server.remote.link_protocol import (
    Consumed,
    LinkMessage,
    ModelCard,
    OneRequest,
    Response,
    RowAnswers,
    Rows,
    RowsRefused,
)
from wherry.server.remote.model import shaped_strings

#: Responses of a stream that its reader takes before the owner is told.
CREDIT = 8


#: A request and its answer; None: it has another outcome already.
Answer = tuple[InferRequest, InferResponse | None]


class OwnersLink(Protocol):
    """The link to the owner."""

    def add(self, message: LinkMessage, size: int = 0) -> None: ...
    def write_soon(self) -> None: ...
    def cancel(self, model: int, id: int) -> None: ...
    def call(self, callback: Callable[[Any], None], argument: Any) -> None: ...


class ChannelRunner(Protocol):
    """The runner whose requests a channel holds."""

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
        self, link: OwnersLink, card: ModelCard, signature: Signature, runner: ChannelRunner
    ) -> None:
        self.link = link
        self.card = card
        self.runner = runner
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
                None if request.trace is None else request.trace.sent(),
            ),
            _size(columns),
        )

    def cancel(self, id: int) -> None:
        """Forget a request that has its outcome, and tell the owner."""
        request = self.requests.pop(id, None)
        if request is not None:
            self.link.cancel(self.card.number, id)
            self.runner.answered(self, [(request, None)])

    def consumed(self, id: int, responses: int) -> None:
        """Tell the owner that the reader of a stream has taken `responses` more. Any thread."""
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
        """These could not be encoded."""
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
