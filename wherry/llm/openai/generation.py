"""How does a generation run, and how is it answered: in one piece, or in chunks?"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import msgspec

from wherry.core.api import Buffer, InferResponse, LoadedModel
from wherry.llm.openai.chat_request import in_texts
from wherry.llm.openai.client_request import OPENAI, ClientForm, ClientRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation_request import AnswerParts, Inputs, ModelCall
from wherry.llm.openai.models import AbleModels
from wherry.llm.openai.reading import decoded
from wherry.server.api import (
    JSON,
    EventStream,
    HeadNotes,
    InferCall,
    Operation,
    RequestValues,
    Route,
)


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """A further part of one choice."""

    index: int
    text: str
    finish_reason: str = ""
    logprobs: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    token_ids: Sequence[int] = ()
    #: What else the engine reports: `Delta.details`.
    details: Mapping[str, Any] = field(default_factory=dict)


def piece_of(loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
    """One response of an engine's model, or of a plain one whose only output is text."""
    row = {name: column[0] for name, column in response.outputs.items()}
    if "text" not in row:
        return ChoiceDelta(0, _text(row[loaded.signature.outputs[0].name]))
    return ChoiceDelta(
        int(row.get("index", 0)),
        _text(row["text"]),
        _text(row.get("finish_reason", "")),
        row.get("logprobs") or (),
        row.get("usage") or {},
        [int(token) for token in row.get("token_ids", ())],
        row.get("details") or {},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


class CachedTokens(msgspec.Struct):
    """Tokens of a prompt that were not computed again."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    """Tokens of an answer that are thoughts."""

    reasoning_tokens: int


class TokenUsage(msgspec.Struct, kw_only=True):
    """How many tokens were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    #: Of a model that thinks.
    completion_tokens_details: ReasoningTokens | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class Usage:
    """The tokens of a request, over all its prompts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    #: None: the model does not think, or its engine does not count thoughts.
    reasoning_tokens: int | None = None

    def add(self, usage: Mapping[str, int]) -> None:
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.completion_tokens += usage.get("completion_tokens", 0)
        self.cached_tokens += usage.get("cached_tokens", 0)
        if (thought := usage.get("reasoning_tokens")) is not None:
            self.reasoning_tokens = (self.reasoning_tokens or 0) + thought

    def total(self) -> TokenUsage:
        thought = self.reasoning_tokens
        return TokenUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=CachedTokens(self.cached_tokens),
            completion_tokens_details=msgspec.UNSET
            if thought is None
            else ReasoningTokens(thought),
        )


class OpenAIAnswer(ABC):
    """The answer to one request: gathers pieces, and decides what is sent of them."""

    #: The object's type, and the prefix of its id.
    kind: str
    prefix: str
    #: What ends a stream of them.
    last: bytes | None = b"[DONE]"

    def __init__(
        self,
        model: str,
        request_id: str,
        shown: AnswerParts = AnswerParts(),  # noqa: B008 - frozen
    ) -> None:
        self.model = model
        self.shown = shown
        self.request_id = request_id
        self.id = f"{self.prefix}-{request_id}"
        self.created = int(time.time())
        self.choices: dict[int, Any] = {}
        self.usage = Usage()

    def piece(self, loaded: LoadedModel, response: InferResponse) -> ChoiceDelta:
        return piece_of(loaded, response)

    @abstractmethod
    def add(self, piece: ChoiceDelta) -> Sequence[msgspec.Struct]:
        """Take a piece in; return the choices of the chunks, or the events, that it makes."""

    @abstractmethod
    def end(self) -> Sequence[msgspec.Struct]:
        """End the answer; return the last choices or events."""

    def stopped(self, indexes: Iterable[int]) -> list[Any]:
        """End the choices that the model has not ended: a plain one may send nothing at all."""
        left = [i for i in indexes if i not in self.choices or not self.choices[i].finish_reason]
        return [part for i in left for part in self.add(ChoiceDelta(i, "", "stop"))]

    @abstractmethod
    def whole(self) -> msgspec.Struct:
        """The answer in one object."""

    def chunk(self, choice: Any) -> msgspec.Struct:
        """The event that carries a choice, or the choice if it is an event."""
        event: msgspec.Struct = choice
        return event

    def event(self, choices: list[Any], usage: TokenUsage | msgspec.UnsetType | None) -> Any:
        """The event that carries these choices and the usage, in answers with choices."""
        raise NotImplementedError

    def closing(self) -> Sequence[msgspec.Struct]:
        """The events after the last choice: the usage, if requested."""
        return [self.event([], self.usage.total())] if self.shown.usage else []

    def finish_reasons(self) -> list[str | None]:
        return [choice.finish_reason for choice in self.choices.values()]

    @property
    def media_type(self) -> str:
        return JSON

    def body(self) -> bytes:
        """The answer in one piece, as it goes onto the wire."""
        return msgspec.json.encode(self.whole())

    def usage_of_event(self) -> msgspec.UnsetType | None:
        """Null where the usage was requested: all events but the last carry it as null."""
        return None if self.shown.usage else msgspec.UNSET

    def failure(self, error: bytes) -> tuple[str, bytes]:
        """Name and JSON of the event of an error, in the protocol's form, that ends a stream."""
        return "", error


class GenerationRequest(Protocol):
    """The fields of a generation's request, in any protocol."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...
    @property
    def n(self) -> int | None: ...
    @property
    def priority(self) -> int | None: ...
    def named(self, blamed: str) -> str:
        """Return this request's name of a field that the engine found wrong."""


class PromptCall(InferCall):
    """One prompt of a generation: its responses and outcome carry the prompt's number."""

    __slots__ = ()

    takes_streams = True
    codec: int
    client: Generation

    def respond(self, response: InferResponse) -> None:
        self.client.respond(self, response)

    def write(self, response: InferResponse) -> None:
        self.client.settle(self, response)

    def fail(self, error: Exception) -> None:
        self.client.settle(self, error)


class Generation:
    """Submits a generation, and answers in one piece or chunk by chunk as the client reads."""

    def __init__(
        self,
        request: ClientRequest,
        loaded: LoadedModel,
        fields: GenerationRequest,
        answer: OpenAIAnswer,
    ) -> None:
        self._request = request
        self._loaded = loaded
        self._fields = fields
        self._answer = answer
        self._names = {spec.name for spec in loaded.signature.inputs}
        self._per_prompt = fields.n or 1
        #: By the number of the prompt.
        self._open: dict[int, PromptCall] = {}
        self._failed: Exception | None = None
        self._events = request.events() if fields.stream else None

    def submit(self, model_call: ModelCall) -> None:
        """Send a request for each prompt; an immediate refusal is raised, or fails all of them."""
        entry, exchange = self._request.entry, self._request.exchange
        sent, loaded, nbytes = exchange.request, self._loaded, model_call.nbytes
        notes: HeadNotes = sent.head.notes or entry.note(sent.head)
        terms = notes.terms
        shared = self._shared(model_call.inputs)
        columns = [
            loaded.row_columns((), {**shared, **self._known(own)} if own else shared)
            for own in model_call.own
        ]
        parameters = {"priority": self._fields.priority} if self._fields.priority else {}
        if terms.trace is not None:
            about = request_attributes(self._fields, self._answer.kind)
            terms.trace.draft.attributes.update(about)
        for number, column in enumerate(columns):
            held = None if nbytes is None else nbytes[number]
            values = RequestValues(column, 1, self._answer.id, parameters, held_bytes=held)
            call = PromptCall(entry, loaded, number, self)
            try:
                # What was not measured is small.
                call.send(values, terms, sent.caller, body_bytes=1)
            except Exception as error:  # of any kind: the others are answered, too
                if not self._open:
                    raise
                self._stop(error)
                break
            self._open[number] = call
        exchange.on_disconnect = self._cancel
        sent.body = b""  # free it: the columns hold what is needed
        if self._events is not None:
            self._events.keep_alive()

    def _shared(self, inputs: Inputs) -> Inputs:
        """The inputs that all prompts share, as the model takes them. A variant is a parameter."""
        name, config = self._fields.model, self._loaded.config
        if name not in (None, config.name, *config.served_names) and "task" not in inputs:
            inputs = {**inputs, "parameters": {**inputs["parameters"], "adapter": name}}
        if "stream" in self._names:
            inputs = {**inputs, "stream": bool(self._fields.stream)}
        return self._known(inputs)

    def _known(self, inputs: Inputs) -> Inputs:
        """The inputs that the model has. BadField if the request needs another one."""
        names = self._names
        if "messages" in inputs and "template" not in names:  # a template renders them as sent
            inputs = {**inputs, "messages": in_texts(inputs["messages"])}
        for name in inputs.keys() - names:
            if held := inputs[name]:
                field = next(iter(held)) if name == "parameters" else name
                raise BadField(
                    self._fields.named(field),
                    f"the model '{self._loaded.name}' does not support it",
                )
        return {name: value for name, value in inputs.items() if name in names}

    # In the loop

    def respond(self, call: PromptCall, response: InferResponse) -> None:
        if self._failed is not None:
            return
        try:
            piece = self._answer.piece(self._loaded, response)
            index = call.codec * self._per_prompt + piece.index
            self._send(self._answer.add(replace(piece, index=index)), call)
        except Exception as error:  # noqa: BLE001 - any error is the client's answer
            self._stop(error)

    def settle(self, call: PromptCall, outcome: InferResponse | Exception) -> None:
        if isinstance(outcome, Exception):
            self._stop(outcome)
        elif outcome.outputs:  # a stream's end is an empty response
            self.respond(call, outcome)
        del self._open[call.codec]
        if not self._open:
            self._end()

    def _stop(self, error: Exception) -> None:
        """Fail with the first error."""
        if self._failed is None:
            self._failed = error
            self._cancel()

    def _cancel(self) -> None:
        for call in list(self._open.values()):
            call.cancel()

    def _send(self, choices: Sequence[msgspec.Struct], call: PromptCall | None) -> None:
        """Send choices. When the client has read the last, it has read the response to `call`."""
        consumed = None if call is None or call.stream is None else call.stream.consumed
        if self._events is None or not choices:
            if consumed is not None:
                consumed()
            return
        chunks = [self._answer.chunk(choice) for choice in choices]
        for chunk in chunks[:-1]:
            _send_event(self._events, chunk)
        _send_event(self._events, chunks[-1], consumed)

    def _end(self) -> None:
        self._request.exchange.on_disconnect = None
        try:
            if self._failed is None:
                answer, last = self._answer, self._answer.end()
                if (trace := self._request.exchange.request.head.trace) is not None:
                    # Before its span ends: both are of the loop's thread.
                    trace.draft.attributes.update(answered_with(answer))
                if self._events is None:
                    self._request.respond(answer.body(), answer.media_type)
                else:
                    self._finish(self._events, last)
                return
        except Exception as error:  # noqa: BLE001 - any error is the client's answer
            self._failed = error
        self._fail(self._failed)

    def _finish(self, events: EventStream, last: Sequence[msgspec.Struct]) -> None:
        self._send(last, None)
        for event in self._answer.closing():
            _send_event(events, event)
        if self._answer.last is not None:
            events.send(self._answer.last)
        events.end()

    def _fail(self, error: Exception) -> None:
        """Answer with the error's status if nothing was sent yet, else end the stream with it."""
        if self._events is None or not self._events.started:
            if self._events is not None:
                self._events.abandon()
            self._request.fail(error, self._fields.named)
            return
        _, body, _ = self._request.described(error, self._fields.named)
        name, event = self._answer.failure(body)
        self._events.send(event, name)
        self._events.end()


def _send_event(
    events: EventStream, event: msgspec.Struct, consumed: Callable[[], None] | None = None
) -> None:
    """Send an event, named by its type if it has one."""
    events.send(msgspec.json.encode(event), getattr(event, "type", ""), consumed)


#: Makes an answer: of the request, its model, its fields, and the call made of these.
Answering = Callable[[ClientRequest, LoadedModel, Any, Any], OpenAIAnswer]


def generation_route(
    models: AbleModels,
    kind: type[msgspec.Struct],
    ability: str,
    answering: Answering,
    operation: Operation,
    form: ClientForm = OPENAI,
) -> Route:
    """The route of requests of this kind, each answered by a generation of a model with this
    ability."""

    def read(request: ClientRequest, body: Buffer) -> tuple[Any, ModelCall]:
        fields: Any = decoded(body, kind, request.ignored)
        return fields, request.checked(fields.call(), body)

    def start(request: ClientRequest, decoded: tuple[Any, ModelCall]) -> None:
        fields, call = decoded
        loaded = models.able(fields.model, ability)
        answer = answering(request, loaded, fields, call)
        Generation(request, loaded, fields, answer).submit(call)

    return models.route(read, start, operation, ability, form=form)


# The attributes of a generation's span, by OpenTelemetry's conventions for generative AI: numbers
# and names only. Prompts and answers are private.

_OPERATIONS: Final = {
    "chat.completion": "chat", "response": "chat", "message": "chat",
    "text_completion": "text_completion", "embeddings": "embeddings",
}  # fmt: skip
#: Fields of requests, by what the conventions call them.
_FIELDS: Final = {
    "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
    "seed": "seed", "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty", "n": "choice.count",
}  # fmt: skip


def request_attributes(request: object, kind: str) -> dict[str, Any]:
    """The attributes of a request, whose answer is called `kind`."""
    attributes: dict[str, Any] = {"gen_ai.provider.name": "wherry"}
    if (operation := _OPERATIONS.get(kind)) is not None:
        attributes["gen_ai.operation.name"] = operation
    if model := getattr(request, "model", ""):
        attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = model
    for name, called in _FIELDS.items():
        value = getattr(request, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{called}"] = value
    return attributes


def answered_with(answer: OpenAIAnswer) -> dict[str, Any]:
    attributes: dict[str, Any] = {"gen_ai.response.id": answer.id}
    usage = answer.usage
    if usage.prompt_tokens or usage.completion_tokens:
        attributes["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if reasons := answer.finish_reasons():
        attributes["gen_ai.response.finish_reasons"] = [reason or "" for reason in reasons]
    return attributes
