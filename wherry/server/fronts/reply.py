"""How does an owner reply to what a front has sent: rows, HTTP requests, gRPC calls?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wherry.core.api import (
    Buffer,
    Columns,
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    StreamReply,
    parted,
)
from wherry.server.calls.terms import name_with_capitals
from wherry.server.fronts.encoding import shaped_strings
from wherry.server.fronts.link_protocol import (
    CallResponsePart,
    ForwardCall,
    ForwardRequest,
    ResponsePart,
)
from wherry.server.grpc.rpc import Metadata, Rpc
from wherry.server.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    PassedOn,
    RequestHead,
)


class ForwardedCall(Rpc):
    """A gRPC call that came over a link. `send_part` takes the parts of its answer."""

    __slots__ = ("_id", "_send_part", "answers_after")

    def __init__(self, call: ForwardCall, send_part: Callable[[CallResponsePart], None]) -> None:
        super().__init__(call.path, call.metadata, timeout=call.timeout, message=call.message)
        self._id = call.id
        self._send_part = send_part
        #: Calls its argument when the answer may leave.
        self.answers_after: Callable[[Callable[[], None]], None] | None = None

    def respond(self, *message: Buffer) -> None:
        self._end(CallResponsePart(self._id, b"".join(message), "OK"))

    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        """Send one message. `sent` is called at once: the front keeps what its client is slow to
        take, which is little of what is passed on."""
        if not self.ended:
            self._send_part(CallResponsePart(self._id, b"".join(message)))
            self.call_back(sent)

    def finish(self) -> None:
        self._end(CallResponsePart(self._id, None, "OK"))

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        self._end(CallResponsePart(self._id, None, code, text, list(metadata)))

    def pause(self) -> None:
        """Do nothing: the one message is here."""

    def resume(self) -> None:
        """Do nothing: the one message is here."""

    def _end(self, part: CallResponsePart) -> None:
        if self.ended:
            return
        self.forget()
        if self.answers_after is None:
            self._send_part(part)
        else:
            self.answers_after(lambda: self._send_part(part))


class ForwardedExchange(Exchange):
    """An HTTP request that came over a link. `send` takes the parts of its answer."""

    __slots__ = ("_id", "_send_part")

    def __init__(self, request: ForwardRequest, send_part: Callable[[ResponsePart], None]) -> None:
        headers = {name_with_capitals(name): value for name, value in request.headers.items()}
        head = RequestHead(request.method, request.path, request.query, headers, len(request.body))
        super().__init__(HttpRequest(head, request.body, request.peer))
        self._id = request.id
        self._send_part = send_part

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._may_go_on(WAITING):
            self._phase = ANSWERED
            whole = body if isinstance(body, bytes) else b"".join(body)
            self._send_part(
                ResponsePart(self._id, status, content_type, list(headers), whole, True)
            )

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if self._may_go_on(WAITING):
            self._phase = STREAMING
            self._send_part(ResponsePart(self._id, status, content_type, list(headers), b"", False))

    def send(self, chunk: bytes) -> None:
        if self._may_go_on(STREAMING):
            self._send_part(ResponsePart(self._id, 0, "", [], chunk, False))

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self._phase = ANSWERED
            self._send_part(ResponsePart(self._id, 0, "", [], b"", True))

    @property
    def congested(self) -> bool:
        return False


class AnsweredLater(PassedOn):
    """Passes an answer in one piece on when `after` calls its argument."""

    __slots__ = ("_after",)

    def __init__(self, inner: Exchange, after: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(inner)
        self._after = after

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        answer = partial(
            self._inner.respond, status, body, content_type=content_type, headers=headers
        )
        self._after(answer)


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
