"""To which request of which front does an outcome belong, and which leave together?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wherry.core.api import (
    LARGE_BYTES,
    Columns,
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    StreamReply,
    WherryError,
    WorkerLink,
    bytes_of,
    log_internal_error,
    parted,
)
from wherry.server.fronts.encoding import is_small, joined, packed, refused, shaped_strings
from wherry.server.fronts.link_protocol import Response, RowAnswers


class AnswerBox:
    """Makes messages of the outcomes of one front's requests."""

    def __init__(self, wire: WorkerLink) -> None:
        self._wire = wire

    def responded(self, reply: RowStream, response: InferResponse) -> None:
        """A request that streams has a response."""
        self._respond(reply, response, ends=False)

    def tell(self, ended: Sequence[RowOrStream]) -> None:
        """Add the messages that tell of these outcomes to what is sent next."""
        alike: dict[ServedModel, list[RowOrStream]] = {}
        for reply in ended:
            outcome = reply.outcome
            if isinstance(outcome, Exception):
                if not isinstance(outcome, WherryError):
                    log_internal_error(outcome)
                self._wire.add(refused(reply.model.number, [reply.id], outcome))
            elif outcome.rows == 1 and not outcome.parameters and type(reply) is RowReply:
                alike.setdefault(reply.model, []).append(reply)
            else:
                self._respond(reply, outcome, ends=True)
        for model, replies in alike.items():
            self._answer(model, replies)

    def _answer(self, model: ServedModel, replies: list[RowOrStream]) -> None:
        outputs: list[Columns] = [reply.outcome.outputs for reply in replies]  # type: ignore[union-attr]
        columns = outputs[0] if len(outputs) == 1 else joined(outputs)
        if columns is None:
            for reply in replies:
                self._respond(reply, reply.result(), ends=True)
            return
        columns = packed(columns, model.shaped_out)
        message = RowAnswers(model.number, [reply.id for reply in replies], columns)
        self._wire.add(message, large=not is_small(columns) and bytes_of(columns) > LARGE_BYTES)

    def _respond(self, reply: RowOrStream, response: InferResponse, *, ends: bool) -> None:
        columns = packed(response.outputs, reply.model.shaped_out)
        self._wire.add(
            Response(
                reply.model.number,
                reply.id,
                response.rows,
                columns,
                response.parameters,
                response.final,
                ends,
            ),
            large=not is_small(columns) and bytes_of(columns) > LARGE_BYTES,
        )


class ServedModel:
    """One loaded version, as messages name it."""

    def __init__(self, number: int, loaded: LoadedModel) -> None:
        self.number = number
        self.loaded = loaded
        self.shaped_in = shaped_strings(loaded.signature.inputs)
        self.shaped_out = shaped_strings(loaded.signature.outputs)


class RowReply(Reply[InferResponse]):
    """The reply of one request of a front. `ended(reply)` is called in the loop of the port."""

    __slots__ = ("id", "model")

    def __init__(
        self, ended: Callable[[Any], None], port: LoopPort, model: ServedModel, id: int
    ) -> None:
        # In one place, as there is one for each row.
        self.on_done = ended
        self.loop = port
        self.settled = False
        self.unclaimed = True
        self.model = model
        self.id = id


class RowStream(StreamReply[InferResponse]):
    """The reply of one request that streams. `responded(reply, response)` and `ended(reply)` are
    called in the loop of the port."""

    __slots__ = ("id", "model")

    def __init__(
        self,
        responded: Callable[[RowStream, InferResponse], None],
        ended: Callable[[Any], None],
        port: LoopPort,
        model: ServedModel,
        id: int,
    ) -> None:
        super().__init__(
            lambda _, response: port.call(lambda it: responded(self, it), response),
            lambda _: port.call(ended, self),
        )
        self.model = model
        self.id = id


RowOrStream = RowReply | RowStream


def row_requests(
    model: ServedModel, columns: Columns, replies: Sequence[RowReply], tenant: str
) -> list[InferRequest]:
    """Make a request of each row of columns, whose rows may share a batch. Raises what
    `LoadedModel.request` does, which makes the first: the others differ in nothing else."""
    loaded, parts = model.loaded, parted(columns, len(replies))
    first = loaded.request(parts[0], 1, replies[0], tenant=tenant)
    requests = [first]
    for part, reply in zip(parts[1:], replies[1:], strict=True):
        request = InferRequest(
            part, 1, reply, "", first.priority, first.deadline, first.shape_key,
            tenant=tenant, timeout=first.timeout, enqueued_at=first.enqueued_at,
            wait_until=first.wait_until, cost=loaded.size_of(part, 1),
        )  # fmt: skip
        requests.append(request)
    return requests
