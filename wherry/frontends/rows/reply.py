"""To which request of which front does an outcome belong?"""

from __future__ import annotations

from typing import Protocol

from wherry.remote.model import shaped_strings
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.loop_port import LoopPort
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import InferRequest, InferResponse


class ServedModel:
    """One loaded version, as messages name it."""

    def __init__(self, number: int, loaded: LoadedModel) -> None:
        self.number = number
        self.loaded = loaded
        self.shaped_in = shaped_strings(loaded.signature.inputs)
        self.shaped_out = shaped_strings(loaded.signature.outputs)


class Answered(Protocol):
    """The connection that takes outcomes. In the loop of its port."""

    port: LoopPort

    def done(self, reply: RowOrStream) -> None: ...
    def responded(self, reply: RowStream, response: InferResponse) -> None: ...


class RowReply(Reply[InferResponse]):
    """The reply of one request of a front."""

    __slots__ = ("connection", "id", "model", "request")

    def __init__(self, connection: Answered, model: ServedModel, id: int) -> None:
        # In one place, as there is one for each row.
        self.on_done = _done  # type: ignore[assignment]  # it gets this very object
        self.loop = connection.port
        self.settled = False
        self.unclaimed = True
        self.connection = connection
        self.model = model
        self.id = id
        self.request: InferRequest | None = None


class RowStream(StreamReply[InferResponse]):
    """The reply of one request that streams."""

    __slots__ = ("connection", "id", "model", "request")

    def __init__(self, connection: Answered, model: ServedModel, id: int) -> None:
        port = connection.port
        super().__init__(
            lambda _, response: port.call(self._responded, response),
            lambda _: port.call(_done, self),
        )
        self.connection = connection
        self.model = model
        self.id = id
        self.request: InferRequest | None = None

    def _responded(self, response: InferResponse) -> None:
        self.connection.responded(self, response)


RowOrStream = RowReply | RowStream


def _done(reply: RowOrStream) -> None:
    reply.connection.done(reply)
