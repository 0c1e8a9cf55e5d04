"""How does a generation run, and how is it answered: in one piece, or in chunks?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec

from wherry.core.api import (
    FollowedRequest,
    InferRequest,
    InferResponse,
    LoadedModel,
    Reply,
    RequestTrace,
    StreamReply,
)
from wherry.llm.engine.chat_form import in_texts
from wherry.llm.openai.answers import OpenAIAnswer
from wherry.llm.openai.errors import BadField, described, fail
from wherry.llm.openai.prompts import Inputs, Prompts
from wherry.llm.openai.spans import answered_with, request_attributes
from wherry.server.api import EventStream, Exchange, HttpEntry, respond, terms_of


class GenerationRequest(Protocol):
    """What a request says of its generation, in whatever protocol it came."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...
    @property
    def n(self) -> int | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def include_usage(self) -> bool: ...
    def named(self, blamed: str) -> str:
        """Return the name that a field which the engine blames has in this request."""


class Generation:
    """Submits a generation, and answers in one piece or chunk by chunk as the client reads."""

    def __init__(
        self,
        entry: HttpEntry,
        exchange: Exchange,
        loaded: LoadedModel,
        fields: GenerationRequest,
        answer: OpenAIAnswer,
    ) -> None:
        self._entry = entry
        self._exchange = exchange
        self._loaded = loaded
        self._fields = fields
        self._answer = answer
        self._per_prompt = fields.n or 1
        #: By the number of the prompt.
        self._open: dict[int, InferRequest] = {}
        self._failed: Exception | None = None
        #: Called when the whole answer is known.
        self._at_the_end: Callable[[], None] = _nothing
        #: Whose response each event carries that the client has not read yet.
        self._unread: deque[Reply[InferResponse]] = deque()
        self._events = EventStream(exchange, self._read) if fields.stream else None

    def submit(self, prompts: Prompts) -> None:
        """Send a request for each prompt; what is refused at once is raised, and none is sent."""
        request, port = self._exchange.request, self._entry.port()
        terms = terms_of(request.headers, self._entry.common.tenant_key)
        trace = request.head.trace
        shared = self._shared(prompts.shared)
        admitted: list[InferRequest] = []
        for number, (own, nbytes) in enumerate(zip(prompts.own, prompts.nbytes, strict=True)):
            columns = self._loaded.row_columns((), {**shared, **self._known(own)})
            made = self._loaded.request(
                columns,
                1,
                self._reply(number),
                id=self._answer.id,
                timeout=terms.timeout,
                priority=self._fields.priority or 0,
                tenant=terms.tenant_of(request.caller),
            )
            made.nbytes = nbytes
            admitted.append(made)
        self._entry.admission.enter_all(admitted)
        # Not before: each refers to this object, and what is refused is to be freed at once.
        self._open = dict(enumerate(admitted))
        if trace is not None:
            self._follow(trace)
        self._exchange.on_disconnect = self._cancel
        self._exchange.request.body = b""  # free it: the columns hold what is needed
        for each in admitted:
            port.submit(self._loaded, each)
        if self._events is not None:
            self._events.keep_alive()

    def _follow(self, trace: RequestTrace) -> None:
        """Have what is asked for, and what comes of it, in the request's span."""
        loaded, attributes = self._loaded, trace.draft.attributes
        for each in self._open.values():
            FollowedRequest(trace, loaded.name, loaded.version).follow(each)
        attributes.update(request_attributes(self._fields, self._answer.kind))
        # Once it is known, which is before its span ends: both are of the loop's thread.
        self._at_the_end = lambda: attributes.update(answered_with(self._answer))

    def _shared(self, inputs: Inputs) -> Inputs:
        """What all prompts have, as the model has it. A variant of the model is a parameter."""
        fields = self._fields.model
        if fields is not None and not self._loaded.is_called(fields) and "task" not in inputs:
            inputs = {**inputs, "parameters": {**inputs["parameters"], "adapter": fields}}
        if self._loaded.signature.input("stream") is not None:
            inputs = {**inputs, "stream": bool(self._fields.stream)}
        return self._known(inputs)

    def _known(self, inputs: Inputs) -> Inputs:
        """The inputs that the model has; what it has not must not have been asked for."""
        names = {spec.name for spec in self._loaded.signature.inputs}
        if "messages" in inputs and "template" not in names:  # which renders them as they are
            inputs = {**inputs, "messages": in_texts(inputs["messages"])}
        for name in inputs.keys() - names:
            if asked := inputs[name]:
                field = next(iter(asked)) if name == "parameters" else name
                raise BadField(
                    self._fields.named(field),
                    f"the model '{self._loaded.name}' does not support it",
                )
        return {name: value for name, value in inputs.items() if name in names}

    def _reply(self, number: int) -> Reply[InferResponse]:
        responded, settled = partial(self._respond, number), partial(self._settled, number)
        return self._entry.reply(self._loaded, responded, settled)

    # In the loop

    def _respond(self, number: int, reply: Reply[InferResponse], response: InferResponse) -> None:
        if self._failed is not None:
            return
        try:
            piece = self._answer.piece(self._loaded, response)
            index = number * self._per_prompt + piece.index
            self._send(self._answer.take(replace(piece, index=index)), reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            self._failed = error
            self._cancel()

    def _send(self, choices: Sequence[dict[str, Any]], reply: Reply[InferResponse] | None) -> None:
        if self._events is None or not choices:
            if isinstance(reply, StreamReply):
                reply.consumed()
            return
        chunks = [self._answer.chunk(choice) for choice in choices]
        for chunk in chunks[:-1]:
            self._send_event(self._events, chunk)
        self._send_event(self._events, chunks[-1], reply)

    def _send_event(
        self, events: EventStream, event: dict[str, Any], reply: Reply[InferResponse] | None = None
    ) -> None:
        """Send an event, named by its type if it has one."""
        self._unread.append(reply if reply is not None else Reply(_nobody))
        events.send(msgspec.json.encode(event), event.get("type", ""))

    def _read(self) -> None:
        """Note that the client has read an event: the model may go on."""
        reply = self._unread.popleft()
        if isinstance(reply, StreamReply):
            reply.consumed()

    def _settled(self, number: int, reply: Reply[InferResponse]) -> None:
        self._entry.admission.leave()
        outcome = reply.outcome
        if isinstance(outcome, Exception):
            if self._failed is None:
                self._failed = outcome
                self._cancel()
        elif outcome.outputs:  # a stream's end is an empty response
            self._respond(number, reply, outcome)
        self._open.pop(number, None)
        if not self._open:
            self._end()

    def _cancel(self) -> None:
        for request in list(self._open.values()):
            self._loaded.cancel(request)

    def _end(self) -> None:
        self._exchange.on_disconnect = None
        try:
            if self._failed is None:
                last = self._answer.end()
                self._at_the_end()
                if self._events is None:
                    answer = self._answer
                    respond(self._exchange, answer.body(), content_type=answer.media_type)
                else:
                    self._finish(self._events, last)
                return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            self._failed = error
        self._fail(self._failed)

    def _finish(self, events: EventStream, last: Sequence[dict[str, Any]]) -> None:
        self._send(last, None)
        if self._fields.include_usage:
            self._send_event(events, self._answer.usage_chunk())
        if self._answer.last is not None:
            self._unread.append(Reply(_nobody))
            events.send(self._answer.last)
        events.end()

    def _fail(self, error: Exception) -> None:
        """Answer with the error's status if nothing was sent yet, else end the stream with it."""
        form = self._answer.error_form
        if self._events is None or not self._events.started:
            if self._events is not None:
                self._events.abandon()
            fail(self._exchange, error, self._fields.named, form)
            return
        _, body, _ = described(self._exchange, error, self._fields.named, form)
        self._send_event(self._events, self._answer.failure(msgspec.json.decode(body)))
        self._events.end()


def _nothing() -> None:
    """Do nothing."""


def _nobody(_: Reply[InferResponse]) -> None:
    """The reply of an event that belongs to no response."""
