"""What does an owner do with the messages of one front?

    frames -> requests of the runtime -> replies -> the answers of one turn of the loop in one frame

Everything happens in the event loop of the owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import numpy as np

from wherry.core.api import (
    LARGE_BYTES,
    BadModelOutput,
    Columns,
    Garbage,
    InferRequest,
    InferResponse,
    LoadReport,
    LoopPort,
    Messages,
    ModelNotReady,
    SpanKind,
    WherryError,
    WorkerLink,
    bytes_of,
    log_internal_error,
    trace_request,
)
from wherry.server.calls.admission import SMALL_BODY
from wherry.server.fronts.encoding import is_small, joined, packed, refused, unpacked
from wherry.server.fronts.link_protocol import (
    CallResponsePart,
    CancelRows,
    Consumed,
    Forget,
    ForwardCall,
    ForwardRequest,
    FrontMeasured,
    Hello,
    LinkMessage,
    LoadQuery,
    LoadReported,
    OneRequest,
    Response,
    ResponsePart,
    RowAnswers,
    Rows,
    Seen,
    ids_of,
)
from wherry.server.fronts.reply import (
    ForwardedCall,
    ForwardedExchange,
    RowOrStream,
    RowReply,
    RowStream,
    ServedModel,
    row_requests,
)
from wherry.server.v2.common import Common

log = logging.getLogger("wherry")

#: Rows of one message, at most: those that many connections can send in one turn of a loop.
MOST_ROWS: Final = 2**20


class ConnectionOwner(Protocol):
    """What a connection needs of the owner's side as a whole."""

    common: Common
    clock: Callable[[], float]

    def model(self, number: int) -> ServedModel | None: ...
    def load_report(self) -> LoadReport: ...
    def greet(self, connection: FrontConnection) -> None: ...
    def seen(self, connection: FrontConnection, revision: int) -> None: ...
    def left(self, connection: FrontConnection, error: Exception) -> None: ...
    def answer(self, exchange: ForwardedExchange) -> None: ...
    def answer_call(self, call: ForwardedCall) -> None: ...


class FrontConnection:
    """The requests of one front. Made for a front that may call; ends with its link."""

    def __init__(
        self,
        owner: ConnectionOwner,
        port: LoopPort,
        messages: Messages,
        aside: Callable[[Callable[[], None]], None],
    ) -> None:
        self.port = port
        #: The front's, once it has sent it.
        self.name = ""
        #: The last `OwnedModels` that it serves.
        self.revision = -1
        self.is_open = True
        #: Gets the figures that were requested of its front.
        self.on_measured: Callable[[FrontMeasured], None] = lambda _: None
        self._owner = owner
        self._common = owner.common
        #: Requests without an outcome, by model and id.
        self._requests: dict[int, dict[int, InferRequest]] = {}
        #: The replies that have an outcome since the last `_send_outcomes`.
        self._ended: list[RowOrStream] = []
        #: Requests of its clients to the application, by number.
        self._forwarded: dict[int, ForwardedExchange | ForwardedCall] = {}
        self._writes = False
        self._wire = WorkerLink(
            port.without_flush(),
            messages,
            receive=self._receive,
            refused=self._unsent,
            ended=self._lost,
            aside=aside,
            instead=_instead,
        )
        port.after.append(self._send_outcomes)

    def __repr__(self) -> str:
        return f"<FrontConnection {self.name or '?'}: {self.requests} requests>"

    @property
    def has_models(self) -> bool:
        """Whether its front serves some `OwnedModels`."""
        return self.revision >= 0

    def start(self) -> None:
        self._wire.start()

    def close(self) -> None:
        """End the link; what its front still waits for is cancelled."""
        self._wire.close()

    @property
    def requests(self) -> int:
        return sum(map(len, self._requests.values()))

    def send(self, message: LinkMessage, size: int = 0) -> None:
        """Send a message of about `size` bytes at the end of this turn."""
        self._wire.add(message, large=size > LARGE_BYTES)
        self._write_soon()

    # Requests

    def _receive(self, messages: list[Any]) -> None:
        for message in messages:
            kind = type(message)
            if not self.name and kind is not Hello:
                raise Garbage("the first message of a front must be Hello")
            try:
                _RECEIVE[kind](self, message)
            except Garbage:
                raise
            except Exception as error:  # a defect of ours must not end the link of many clients
                if kind is not Rows and kind is not OneRequest:
                    raise Garbage(str(error)) from error
                log_internal_error(error)
                self._refuse(message.model, ids_of(message), error)

    def _hello(self, message: Hello) -> None:
        self.name = message.name or "front"
        self._owner.greet(self)

    def _rows(self, message: Rows) -> None:
        if not 0 < message.count <= MOST_ROWS:
            raise Garbage(f"a message of {message.count} rows")
        ids = range(message.first, message.first + message.count)
        model = self._model(message.model, ids)
        if model is None:
            return
        columns = unpacked(message.columns, model.shaped_in)
        _check(columns, message.count)
        ended, port = self._ended.append, self.port
        replies = [RowReply(ended, port, model, id) for id in ids]
        try:
            requests = row_requests(model, columns, replies, message.tenant)
        except WherryError as error:
            self._refuse(model.number, list(ids), error)
            return
        common = self._common
        if (
            is_small(columns)
            and not common.trace_settings.on
            and common.admission.enter_small(message.count)
        ):
            self._requests.setdefault(model.number, {}).update(zip(ids, requests, strict=True))
            port.submit_all(model.loaded, requests)
            return
        for request in requests:
            self._admit(model, request, small=False)

    def _one(self, message: OneRequest) -> None:
        model = self._model(message.model, (message.id,))
        if model is None:
            return
        columns = unpacked(message.columns, model.shaped_in)
        if model.loaded.config.max_batch_size:
            _check(columns, message.rows)
        reply: RowOrStream
        if message.streams:
            reply = RowStream(self._responded, self._ended.append, self.port, model, message.id)
        else:
            reply = RowReply(self._ended.append, self.port, model, message.id)
        try:
            request = model.loaded.request(
                columns,
                message.rows,
                reply,
                message.request_id,
                message.timeout,
                message.priority,
                message.parameters,
                message.sequence,
                message.requested_outputs,
                message.tenant,
            )
        except WherryError as error:
            self._refuse(model.number, [message.id], error)
        else:
            if message.trace is not None and (tracing := self._common.tracing) is not None:
                about = f"infer {model.loaded.name}", SpanKind.SERVER, message.trace
                if (span := tracing.begin(*about, {})) is not None:
                    trace_request(request, model.loaded, tracing.clock, span)
            self._admit(model, request, small=is_small(columns))

    def _admit(self, model: ServedModel, request: InferRequest, *, small: bool) -> None:
        common, loaded, reply = self._common, model.loaded, cast(RowOrStream, request.reply)
        try:
            common.admission.check()
            if common.trace_settings.on:
                common.traces.follow(loaded, request, self._owner.clock, self.port)
            common.admission.enter(request, 0 if small else SMALL_BODY + 1)
        except WherryError as error:
            self._refuse(model.number, [reply.id], error)
            return
        self._requests.setdefault(model.number, {})[reply.id] = request
        self.port.submit(loaded, request)

    def _model(self, number: int, ids: Sequence[int]) -> ServedModel | None:
        model = self._owner.model(number)
        if model is None:
            self._refuse(number, list(ids), ModelNotReady("the model is unloaded"))
        return model

    def _refuse(self, model: int, ids: list[int], error: Exception) -> None:
        self.send(refused(model, ids, error))

    def _cancel(self, message: CancelRows) -> None:
        requests, model = self._requests.get(message.model, {}), self._owner.model(message.model)
        for id in message.ids:
            request = requests.get(id)
            if request is not None and model is not None:
                model.loaded.cancel(request)

    def _consumed(self, message: Consumed) -> None:
        request = self._requests.get(message.model, {}).get(message.id)
        if request is not None and isinstance(request.reply, RowStream):
            for _ in range(min(message.responses, request.reply.unread)):
                request.reply.consumed()

    def _seen(self, message: Seen) -> None:
        self._owner.seen(self, message.revision)

    # What the owner's applications answer

    def _answer_request(self, message: ForwardRequest) -> None:
        exchange = self._forwarded[message.id] = ForwardedExchange(message, self._send_part)
        self._owner.answer(exchange)

    def _answer_call(self, message: ForwardCall) -> None:
        call = self._forwarded[message.id] = ForwardedCall(message, self._send_part)
        self._owner.answer_call(call)

    def _client_left(self, message: Forget) -> None:
        request = self._forwarded.pop(message.id, None)
        if request is not None:
            request.leave()

    def _send_part(self, part: ResponsePart | CallResponsePart) -> None:
        if part.id not in self._forwarded:
            return
        if part.ends:
            del self._forwarded[part.id]
        body = part.body if isinstance(part, ResponsePart) else part.message
        self.send(part, len(body or b""))

    # Outcomes

    def _responded(self, reply: RowStream, response: InferResponse) -> None:
        if self.is_open:
            self._respond(reply, response, ends=False)
            self._write_soon()

    def _send_outcomes(self) -> None:
        """Send the outcomes of this turn. After the calls of each turn."""
        if not self._ended:
            return
        ended = list(self._ended)
        self._ended.clear()  # not replaced: replies append to it
        self._common.admission.in_flight -= len(ended)
        for reply in ended:
            self._requests[reply.model.number].pop(reply.id, None)
        if self.is_open:
            self._answer_all(ended)
            self._wire.write()

    def _answer_all(self, ended: Sequence[RowOrStream]) -> None:
        """Add the messages of these outcomes to what is sent next."""
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
            self._answer_rows(model, replies)

    def _answer_rows(self, model: ServedModel, replies: list[RowOrStream]) -> None:
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

    def _write_soon(self) -> None:
        if not self._writes:
            self._writes = True
            self.port.loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes = False
        self._wire.write()

    def _unsent(self, message: Any, error: Exception) -> None:
        """A message could not be encoded: a stream of responses that it belongs to is over."""
        if isinstance(message, Response):
            self._cancel(CancelRows(message.model, [message.id]))
        elif not isinstance(message, RowAnswers):
            log.error("a message could not be sent", extra={"why": str(error)})

    def _lost(self, error: Exception, _: bool) -> None:
        self.is_open = False
        for number, requests in self._requests.items():
            model = self._owner.model(number)
            if model is not None:
                for request in list(requests.values()):
                    model.loaded.cancel(request)
        forwarded, self._forwarded = self._forwarded, {}
        for one in forwarded.values():
            one.leave()
        self._owner.left(self, error)
        self.port.call(FrontConnection._forget, self)  # after what is cancelled

    def _forget(self) -> None:
        self._send_outcomes()
        self.port.after.remove(self._send_outcomes)


_RECEIVE: Final[dict[type, Callable[[FrontConnection, Any], None]]] = {
    Hello: FrontConnection._hello,
    Rows: FrontConnection._rows,
    OneRequest: FrontConnection._one,
    CancelRows: FrontConnection._cancel,
    Consumed: FrontConnection._consumed,
    ForwardRequest: FrontConnection._answer_request,
    ForwardCall: FrontConnection._answer_call,
    LoadQuery: lambda connection, _: connection.send(LoadReported(connection._owner.load_report())),
    Forget: FrontConnection._client_left,
    Seen: FrontConnection._seen,
    FrontMeasured: lambda connection, message: connection.on_measured(message),
}


def _instead(message: Any, error: Exception) -> LinkMessage | None:
    """What a front gets in place of answers that cannot be encoded, and before all that follows."""
    if not isinstance(message, RowAnswers | Response):
        return None
    failed = BadModelOutput(f"an output of the model cannot be sent: {error}")
    return refused(message.model, ids_of(message), failed)


def _check(columns: dict[str, Any], rows: int) -> None:
    """Raise Garbage unless each column has `rows` rows."""
    for column in columns.values():
        if not isinstance(column, list | np.ndarray) or len(column) != rows:
            raise Garbage("a column has another number of rows than its message")
