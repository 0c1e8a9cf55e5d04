"""Which model answers a request of Anthropic's clients?

Any that chats: a message is a chat in other words, and the chat's own parts read and answer it.
"""

from __future__ import annotations

from typing import TypeVar

from wherry.core.api import Buffer
from wherry.llm.anthropic.answer import (
    MessageAnswer,
    MessageCountAnswer,
    MessageEvent,
    MessageObject,
    error_body,
)
from wherry.llm.anthropic.request import CountRequest, MessagesRequest
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.chat_request import AllowedCalls, note_not_followed
from wherry.llm.openai.errors import UnknownRoute, fail
from wherry.llm.openai.generation import Generation
from wherry.llm.openai.generation_request import Prompts
from wherry.llm.openai.models import AbleModels
from wherry.llm.openai.reading import Reader, Start, decoded, read_and_start
from wherry.llm.openai.tokens import CountedTokens
from wherry.server.api import Exchange, HttpEntry, Route, generation, inference, request_id_of

T = TypeVar("T")
MESSAGES = "/v1/messages"
#: The headers with a request's id: the second is where Anthropic's clients look for it.
IDS = ("X-Request-Id", "request-id")


class Anthropic:
    """The routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._models = AbleModels(entry.runtime)

    def routes(self) -> dict[str, Route]:
        route = self._models.route
        generated = generation(
            "Continue a conversation, in Anthropic's form",
            MessagesRequest,
            MessageObject,
            MessageEvent,
        )
        counted = inference(
            "Count the tokens of a conversation in Anthropic's form", CountRequest, CountedTokens
        )
        return {
            MESSAGES: route(self._message, generated, "chat", form=error_body),
            f"{MESSAGES}/count_tokens": route(self._count, counted, "tokens", form=error_body),
            f"{MESSAGES}/{{rest*}}": Route(
                dict.fromkeys(("GET", "POST", "DELETE"), _missing), "inference"
            ),
        }

    def _message(self, exchange: Exchange) -> None:
        self._read(_read_message, self._start_message, exchange)

    def _count(self, exchange: Exchange) -> None:
        self._read(_read_count, self._start_count, exchange)

    def _read(self, read: Reader[T], start: Start[T], exchange: Exchange) -> None:
        read_and_start(self._entry, read, start, exchange, error_body, ids=IDS)

    def _start_message(
        self, exchange: Exchange, read: tuple[MessagesRequest, AllowedCalls, bool, Prompts]
    ) -> None:
        request, calls, tells_cached, prompts = read
        inputs = prompts.shared
        loaded = self._models.able(request.model, "chat")
        has = loaded.signature.input
        if not has("parameters"):  # each request has to have it: it is no wish
            for name in ("max_tokens", "clip_max_tokens"):
                inputs["parameters"].pop(name)
        if not has("template"):  # to which it would be a hint
            inputs.pop("template", None)
        spoken = ChatAnswer(loaded.reported_name(request.model), request_id_of(exchange), calls)
        answer = MessageAnswer(spoken, request.max_tokens, tells_cached=tells_cached)
        Generation(self._entry, exchange, loaded, request, answer).submit(prompts)

    def _start_count(self, exchange: Exchange, read: tuple[CountRequest, Prompts]) -> None:
        request, prompts = read
        loaded = self._models.able(request.model, "tokens")
        answer = MessageCountAnswer(loaded.reported_name(request.model), request_id_of(exchange))
        Generation(self._entry, exchange, loaded, request, answer).submit(prompts)


def _missing(_rest: str, exchange: Exchange) -> None:
    problem = f"{exchange.request.path} is not among the routes of this server"
    fail(exchange, UnknownRoute(problem), form=error_body)


def _read_message(
    body: Buffer, ignored: list[str] | None
) -> tuple[MessagesRequest, AllowedCalls, bool, Prompts]:
    request = decoded(body, MessagesRequest, ignored)
    call = request.call()
    note_not_followed(call.not_followed, ignored)
    return request, call.calls, request.marks_cache(), Prompts.single(call.inputs)


def _read_count(body: Buffer, ignored: list[str] | None) -> tuple[CountRequest, Prompts]:
    request = decoded(body, CountRequest, ignored)
    return request, Prompts.single(request.count())
