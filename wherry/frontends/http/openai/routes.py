"""Which model answers an OpenAI request, and how does the answer go out?

Any model may: one that gives text and has an input `messages` chats, one with `prompt` completes,
one that makes vectors of texts embeds. An LLM of wherry's engine does all that OpenAI's fields ask
for; of a plain model a request may ask what it has inputs for, and is refused otherwise.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import msgspec

from wherry.datatypes import Form
from wherry.errors import ModelNotFound
from wherry.frontends.http.answers import new_request_id, respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.model_path import Entry, Handlers
from wherry.frontends.http.openai.answers import ChatAnswer, TextAnswer
from wherry.frontends.http.openai.embedding import Embedding
from wherry.frontends.http.openai.errors import BadField, UnknownModel, UnknownRoute, fail
from wherry.frontends.http.openai.fields import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    conversation,
    decoded,
)
from wherry.frontends.http.openai.generation import Generation
from wherry.loaded_model import LoadedModel

MODELS: Final = "/v1/models/"


class OpenAI:
    """The routes of one server."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._created = int(time.time())

    def routes(self) -> dict[str, Handlers]:
        return {
            "/v1/models": {"GET": self._list},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._complete},
            "/v1/embeddings": {"POST": self._embed},
        }

    def handlers(self, path: str) -> Handlers | None:
        if path.startswith(MODELS):
            return {"GET": partial(self._show, path.removeprefix(MODELS))}
        return {"GET": _missing, "POST": _missing} if path.startswith("/v1/") else None

    # Models

    def _list(self, exchange: Exchange) -> None:
        names = sorted({m.name for m in self._entry.runtime.models() if abilities(m)})
        data = [self._described(name) for name in names]
        respond(exchange, msgspec.json.encode({"object": "list", "data": data}))

    def _show(self, name: str, exchange: Exchange) -> None:
        try:
            self._model(name)
        except UnknownModel as error:
            fail(exchange, error)
        else:
            respond(exchange, msgspec.json.encode(self._described(name)))

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "wherry"}

    def _model(self, name: str, ability: str = "") -> LoadedModel:
        try:
            loaded = self._entry.runtime.model(name)
        except ModelNotFound:
            able = ", ".join(sorted({m.name for m in self._entry.runtime.models() if abilities(m)}))
            raise UnknownModel(f"the model '{name}' does not exist; there are: {able}") from None
        if ability and ability not in abilities(loaded):
            raise UnknownModel(f"the model '{name}' is none for {ability}: {NEEDS[ability]}")
        return loaded

    # Requests

    def _chat(self, exchange: Exchange) -> None:
        try:
            self._entry.admission.check()
            wanted: ChatRequest = decoded(self._entry.body(exchange), ChatRequest)
            loaded = self._model(wanted.model, "chat")
            answer = ChatAnswer(
                wanted.model,
                new_request_id(),
                [tool.function.name for tool in wanted.callable_tools() if tool.function],
                most_calls=1 if wanted.parallel_tool_calls is False else None,
            )
            Generation(self._entry, exchange, loaded, wanted, answer).submit([chat_inputs(wanted)])
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(exchange, error)

    def _complete(self, exchange: Exchange) -> None:
        try:
            self._entry.admission.check()
            wanted: CompletionRequest = decoded(self._entry.body(exchange), CompletionRequest)
            loaded = self._model(wanted.model, "completions")
            prompts = wanted.prompts()
            echoes = [p if wanted.echo and isinstance(p, str) else "" for p in prompts]
            answer = TextAnswer(wanted.model, new_request_id(), echoes, wanted.n or 1)
            parameters = wanted.sampling()
            if loaded.signature.input("parameters"):
                parameters.setdefault("max_tokens", 16)  # OpenAI's own default
            inputs = [
                {"prompt" if isinstance(p, str) else "token_ids": p, "parameters": parameters}
                for p in prompts
            ]
            Generation(self._entry, exchange, loaded, wanted, answer).submit(inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(exchange, error)

    def _embed(self, exchange: Exchange) -> None:
        try:
            self._entry.admission.check()
            wanted: EmbeddingRequest = decoded(self._entry.body(exchange), EmbeddingRequest)
            loaded = self._model(wanted.model, "embeddings")
            Embedding(self._entry, exchange, loaded, wanted).submit()
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(exchange, error)


def _missing(exchange: Exchange) -> None:
    path = exchange.request.path
    instead = "; send it to /v1/chat/completions" if path == "/v1/responses" else ""
    fail(exchange, UnknownRoute(f"{path} is not among the routes of this server{instead}"))


NEEDS: Final = {
    "chat": "it has no input 'messages' and text as its output",
    "completions": "it has no input 'prompt' and text as its output",
    "embeddings": "it does not make one vector of one text",
}


def abilities(loaded: LoadedModel) -> set[str]:
    """What of OpenAI's API a model can answer, by its signature."""
    signature = loaded.signature
    inputs = {spec.name for spec in signature.inputs}
    texts = [spec for spec in signature.outputs if spec.form is Form.TEXT]
    able: set[str] = set()
    if texts and (len(signature.outputs) == 1 or signature.output("text")):
        by_input = {"messages": "chat", "prompt": "completions"}
        able = {ability for name, ability in by_input.items() if name in inputs}
    if not signature.streams and len(inputs) == 1 and signature.inputs[0].form is Form.TEXT:
        vector = [s for s in signature.outputs if s.form is Form.ARRAY and len(s.shape) == 1]
        if len(vector) == 1 and vector[0].datatype.dtype.kind == "f":
            able.add("embeddings")
    return able


def chat_inputs(wanted: ChatRequest) -> dict[str, Any]:
    """A chat request as inputs of the model."""
    if wanted.modalities not in (None, ["text"]):
        raise BadField("modalities", "only ['text'] is supported")
    inputs: dict[str, Any] = {
        "messages": conversation(wanted.messages),
        "parameters": wanted.sampling(),
    }
    if tools := wanted.callable_tools():
        inputs["tools"] = [msgspec.to_builtins(tool) for tool in tools]
    template = dict(wanted.chat_template_kwargs or {})
    for name in ("add_generation_prompt", "continue_final_message", "reasoning_effort"):
        value = getattr(wanted, name)
        if value is not None:
            template[name] = value
    if template:
        inputs["template"] = template
    return inputs
