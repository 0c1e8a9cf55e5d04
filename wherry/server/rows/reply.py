"""To which request of which front does an outcome belong?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wherry.core.api import (
    Columns,
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    StreamReply,
    parted,
)
from wherry.server.remote.model import shaped_strings


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
