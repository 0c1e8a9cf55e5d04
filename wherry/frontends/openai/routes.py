"""Which model answers an OpenAI request, and how does the answer go out?

Any model may: one that gives text and has an input `messages` chats, one with `prompt` completes,
one that makes vectors of texts embeds. An LLM of wherry's engine does all that OpenAI's fields ask
for; of a plain model a request may ask what it has inputs for, and is refused otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from wherry.frontends.http.answers import new_request_id, respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Route
from wherry.frontends.openai.answers import AnswerParts, OpenAIAnswer
from wherry.frontends.openai.chat_answer import ChatAnswer
from wherry.frontends.openai.embedding import Embedding
from wherry.frontends.openai.errors import BadField, UnknownModel, UnknownRoute, fail
from wherry.frontends.openai.fields.chat import ChatRequest
from wherry.frontends.openai.fields.completion import CompletionRequest
from wherry.frontends.openai.fields.conversion import (
    Conversion,
    DetokenizeRequest,
    TokenizeRequest,
)
from wherry.frontends.openai.fields.decoding import Fields, decoded
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest
from wherry.frontends.openai.fields.generating import Request
from wherry.frontends.openai.generation import Generation
from wherry.frontends.openai.ignored import told
from wherry.frontends.openai.response_answer import ResponseAnswer
from wherry.frontends.openai.responses import ResponsesRequest
from wherry.frontends.openai.text_answer import TextAnswer
from wherry.frontends.openai.token_answers import PromptAnswer, TokensAnswer
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.frontends.v2.long_arrays import check_values
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.datatypes import Form
from wherry.values.errors import ModelNotFound

T = TypeVar("T")
#: Decodes a body, and appends the names of the fields that it ignores to a list; None: there are
#: none.
Reader = Callable[[Buffer, list[str] | None], T]
WithInputs = TypeVar("WithInputs", ChatRequest, Conversion)
#: The model's inputs for one row.
Inputs = dict[str, Any]

MODELS: Final = "/v1/models/"


class OpenAI:
    """The routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._created = int(time.time())

    def routes(self) -> dict[str, Route]:
        # /tokenize and /detokenize: where vLLM has them.
        of_prompts = partial(self._convert, TokenizeRequest, TokensAnswer)
        of_tokens = partial(self._convert, DetokenizeRequest, PromptAnswer)
        of_completions = partial(_read_fields, CompletionRequest)
        of_embeddings = partial(_read_fields, EmbeddingRequest)
        chat = partial(self._read, partial(_read_inputs, ChatRequest), self._start_chat)
        response = partial(self._read, _read_response, self._start_response)
        completion = partial(self._read, of_completions, self._start_completion)
        embedding = partial(self._read, of_embeddings, self._start_embedding)
        return {
            "/v1/models": Route({"GET": self._list}, "metadata"),
            "/v1/chat/completions": Route({"POST": chat}, "inference"),
            "/v1/completions": Route({"POST": completion}, "inference"),
            "/v1/responses": Route({"POST": response}, "inference"),
            "/v1/embeddings": Route({"POST": embedding}, "inference"),
            "/tokenize": Route({"POST": of_prompts}, "inference"),
            "/detokenize": Route({"POST": of_tokens}, "inference"),
        }

    def route(self, path: str) -> Route | None:
        """The route of any other path below /v1; None if there is none."""
        if path.startswith(MODELS):
            return Route({"GET": partial(self._show, path.removeprefix(MODELS))}, "metadata")
        if path.startswith("/v1/"):
            return Route({"GET": _missing, "POST": _missing}, "inference")
        return None

    # Models

    def _list(self, exchange: Exchange) -> None:
        names = sorted({m.name for m in self._entry.runtime.models() if abilities(m)})
        data = [self._described(name) for name in names]
        respond(exchange, msgspec.json.encode({"object": "list", "data": data}))

    def _show(self, name: str, exchange: Exchange) -> None:
        try:
            self._named(name)
        except UnknownModel as error:
            fail(exchange, error)
        else:
            respond(exchange, msgspec.json.encode(self._described(name)))

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "wherry"}

    def _model(self, name: str | None, ability: str) -> LoadedModel:
        """The model of this name, or without one the only model that has the ability."""
        loaded = self._named(self._only(ability) if name is None else name)
        if ability not in abilities(loaded):
            raise UnknownModel(f"the model '{name}' is none for {ability}: {NEEDS[ability]}")
        return loaded

    def _named(self, name: str) -> LoadedModel:
        try:
            return self._entry.runtime.model(name)
        except ModelNotFound:
            able = ", ".join(sorted({m.name for m in self._entry.runtime.models() if abilities(m)}))
            raise UnknownModel(f"the model '{name}' does not exist; there are: {able}") from None

    # Requests

    def _read(
        self, read: Reader[T], start: Callable[[Exchange, T], None], exchange: Exchange
    ) -> None:
        """Have `read` decode the body, here or in another thread, and then call `start` here."""
        entry = self._entry
        ignored: list[str] | None = None if entry.common.strict_fields else []

        def read_large() -> T:
            body = entry.body(exchange)
            check_values(body)
            return read(body, ignored)

        def begin(wanted: T) -> None:
            start(told(exchange, ignored) if ignored else exchange, wanted)

        try:
            entry.admission.check()
            body = entry.small_body(exchange)
            if body is not None:
                begin(read(body, ignored))
            else:
                entry.off_loop(exchange, read_large, begin, fail, reads=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(exchange, error)

    def _start_chat(self, exchange: Exchange, read: tuple[ChatRequest, Inputs]) -> None:
        wanted, inputs = read
        loaded = self._model(wanted.model, "chat")
        shown, echo = _shown(wanted), wanted.echoed()
        answer = ChatAnswer(loaded.name, new_request_id(), *wanted.calls(), echo=echo, shown=shown)
        Generation(self._entry, exchange, loaded, wanted, answer).submit([inputs])

    def _start_response(
        self, exchange: Exchange, read: tuple[ResponsesRequest, ChatRequest, Inputs]
    ) -> None:
        wanted, chat, inputs = read
        loaded, about = self._model(wanted.model, "chat"), wanted.repeated()
        answer = ResponseAnswer(loaded.name, new_request_id(), about, *chat.calls())
        Generation(self._entry, exchange, loaded, wanted, answer).submit([inputs])

    def _start_completion(self, exchange: Exchange, wanted: CompletionRequest) -> None:
        loaded = self._model(wanted.model, "completions")
        prompts = wanted.prompts()
        answer = TextAnswer(
            loaded.name, new_request_id(), wanted.echoes(), wanted.n or 1, _shown(wanted)
        )
        parameters = wanted.sampling()
        if loaded.signature.input("parameters"):
            parameters.setdefault("max_tokens", 16)  # OpenAI's own default
        inputs = [
            {"prompt" if isinstance(p, str) else "token_ids": p, "parameters": parameters}
            for p in prompts
        ]
        Generation(self._entry, exchange, loaded, wanted, answer).submit(inputs)

    def _start_embedding(self, exchange: Exchange, wanted: EmbeddingRequest) -> None:
        loaded = self._model(wanted.model, "embeddings")
        Embedding(self._entry, exchange, loaded, wanted).submit()

    def _convert(
        self,
        fields: type[Conversion],
        answers: type[OpenAIAnswer],
        exchange: Exchange,
    ) -> None:
        """Tokens of a text, or the text of tokens."""

        def start(exchange: Exchange, read: tuple[Conversion, Inputs]) -> None:
            wanted, inputs = read
            loaded = self._model(wanted.model, "tokens")
            answer = answers(loaded.name, new_request_id())
            Generation(self._entry, exchange, loaded, wanted, answer).submit([inputs])

        self._read(partial(_read_inputs, fields), start, exchange)

    def _only(self, ability: str) -> str:
        """Return the only model that has this ability; BadField if there are more or none."""
        able = {m.name for m in self._entry.runtime.models() if ability in abilities(m)}
        if len(able) == 1:
            return able.pop()
        raise BadField("model", f"is missing; there are: {', '.join(sorted(able)) or 'none'}")


def _read_response(
    body: Buffer, ignored: list[str] | None
) -> tuple[ResponsesRequest, ChatRequest, Inputs]:
    wanted = decoded(body, ResponsesRequest, ignored)
    chat = wanted.chat()
    return wanted, chat, chat.inputs()


def _read_inputs(
    kind: type[WithInputs], body: Buffer, ignored: list[str] | None
) -> tuple[WithInputs, Inputs]:
    wanted = decoded(body, kind, ignored)
    return wanted, wanted.inputs()


def _read_fields(kind: type[Fields], body: Buffer, ignored: list[str] | None) -> Fields:
    return decoded(body, kind, ignored)


def _shown(wanted: Request) -> AnswerParts:
    return AnswerParts(
        wanted.include_usage,
        wanted.continuous_usage,
        bool(wanted.return_token_ids),
        bool(wanted.return_tokens_as_token_ids),
    )


def _missing(exchange: Exchange) -> None:
    path = exchange.request.path
    instead = "; responses are not kept here" if path.startswith("/v1/responses") else ""
    fail(exchange, UnknownRoute(f"{path} is not among the routes of this server{instead}"))


NEEDS: Final = {
    "chat": "it has no input 'messages' and text as its output",
    "completions": "it has no input 'prompt' and text as its output",
    "embeddings": "it does not make one vector of one text",
    "tokens": "it has no input 'task'",
}


def abilities(loaded: LoadedModel) -> set[str]:
    """Return the parts of OpenAI's API that a model can answer, by its signature."""
    signature = loaded.signature
    inputs = {spec.name for spec in signature.inputs}
    texts = [spec for spec in signature.outputs if spec.form is Form.TEXT]
    able: set[str] = set()
    if texts and (len(signature.outputs) == 1 or signature.output("text")):
        by_input = {"messages": "chat", "prompt": "completions"}
        able = {ability for name, ability in by_input.items() if name in inputs}
        if "task" in inputs and signature.output("token_ids"):
            able.add("tokens")
    if not signature.streams and len(inputs) == 1 and signature.inputs[0].form is Form.TEXT:
        vector = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
        if len(vector) == 1 and vector[0].datatype.dtype.kind == "f":
            able.add("embeddings")
    return able
