"""Which model answers an OpenAI request, and how does the answer go out?

Any model may: one that gives text and has an input `messages` chats, one with `prompt` completes.
An LLM of wherry's engine does all that OpenAI's fields ask for; of a plain model a request may ask
what it has inputs for, and is refused otherwise.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from wherry.llm.chat_page.routes import ChatPage
from wherry.llm.openai.chat_answer import ChatAnswer, ChatChunk, ChatCompletion
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest, TextAnswer, TextCompletion
from wherry.llm.openai.errors import UnknownRoute, fail
from wherry.llm.openai.generation import generation_route
from wherry.llm.openai.models import ABLE, AbleModels, ModelName
from wherry.llm.openai.response_routes import ResponseRoutes
from wherry.llm.openai.task_routes import task_routes
from wherry.llm.openai.tokens import (
    DetokenizeRequest,
    TokenizeRequest,
    TokenList,
    TokensText,
    answered_by,
    token_list,
)
from wherry.server.api import (
    Exchange,
    HttpEntry,
    Route,
    generation,
    inference,
    respond,
    tells,
)

MODELS: Final = "/v1/models"


class OpenAIModel(msgspec.Struct, kw_only=True):
    """A model or a variant, in OpenAI's words and in Anthropic's."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["wherry"]
    type: Literal["model"]
    display_name: str
    created_at: datetime
    root: str | msgspec.UnsetType = msgspec.UNSET
    parent: str | msgspec.UnsetType = msgspec.UNSET
    #: The most tokens of a prompt and its answer, where the model says it.
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET
    #: Which of these routes it is for: chat, completions, embeddings and so on.
    abilities: tuple[str, ...] = ()


class OpenAIModels(msgspec.Struct, kw_only=True):
    """The models that can answer OpenAI's requests."""

    object: Literal["list"]
    data: list[OpenAIModel]
    #: The last three are for Anthropic's clients: there is but one page.
    has_more: bool
    first_id: str | None
    last_id: str | None


class VersionText(msgspec.Struct):
    """The server's version."""

    version: str


class OpenAI:
    """The routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._models = AbleModels(entry)
        self._responses = ResponseRoutes(self._models)
        self._created = int(time.time())

    def routes(self) -> dict[str, Route]:
        version = {"GET": tells("The server's version", VersionText)}
        one = {"GET": tells("One of these models", OpenAIModel, 404, 503)}
        return {
            **ChatPage(self._models).routes(),
            "/version": Route({"GET": self._version}, "metadata", operations=version),
            **self._of_models(),
            **task_routes(self._models),
            f"{MODELS}/{{model*}}": Route(
                {"GET": self._show}, "metadata", operations=one, needs=(*ABLE,)
            ),
            "/v1/{rest*}": Route(dict.fromkeys(("GET", "POST", "DELETE"), _missing), "inference"),
        }

    def _of_models(self) -> dict[str, Route]:
        # Those that do not begin with /v1 stand where vLLM has them.
        models = self._models
        listed = {"GET": tells("The models that can answer OpenAI's requests", OpenAIModels)}
        return {
            MODELS: Route({"GET": self._list}, "metadata", operations=listed, needs=(*ABLE,)),
            "/v1/chat/completions": generation_route(
                models,
                ChatRequest,
                "chat",
                ChatAnswer.of_request,
                generation("Continue a conversation", ChatRequest, ChatCompletion, ChatChunk),
            ),
            "/v1/completions": generation_route(
                models,
                CompletionRequest,
                "completions",
                TextAnswer.of_request,
                generation("Complete prompts", CompletionRequest, TextCompletion, TextCompletion),
            ),
            **self._responses.routes(),
            "/tokenize": generation_route(
                models,
                TokenizeRequest,
                "tokens",
                answered_by(token_list),
                inference("The tokens of a text or a conversation", TokenizeRequest, TokenList),
            ),
            "/detokenize": generation_route(
                models,
                DetokenizeRequest,
                "tokens",
                answered_by(lambda piece: TokensText(piece.text)),
                inference("The text of tokens", DetokenizeRequest, TokensText),
            ),
        }

    # Models. A variant's files may come and go: looking for them is for another thread.

    def _list(self, exchange: Exchange) -> None:
        def tell(found: list[ModelName]) -> None:
            data = [self._described(each) for each in found]
            first, last = (data[0].id, data[-1].id) if data else (None, None)
            body = OpenAIModels(
                object="list", data=data, has_more=False, first_id=first, last_id=last
            )
            respond(exchange, msgspec.json.encode(body))

        self._entry.off_loop(exchange, self._models.listed, tell, fail, reads=False)

    def _show(self, name: str, exchange: Exchange) -> None:
        def tell(found: list[ModelName]) -> None:
            one = next((each for each in found if each.name == name), None)
            if one is None:
                own = self._models.named(name, variants=False).name
                known = next((each for each in found if each.root == own), ModelName(own))
                one = ModelName(own, None, None, known.context_tokens, known.abilities)
            respond(exchange, msgspec.json.encode(self._described(one)))

        self._entry.off_loop(exchange, self._models.listed, tell, fail, reads=False)

    def _described(self, one: ModelName) -> OpenAIModel:
        return OpenAIModel(
            id=one.name,
            object="model",
            owned_by="wherry",
            type="model",
            created=self._created,
            display_name=one.name,
            created_at=datetime.fromtimestamp(self._created, UTC),
            root=msgspec.UNSET if one.root is None else one.root,
            parent=msgspec.UNSET if one.parent is None else one.parent,
            max_model_len=msgspec.UNSET if one.context_tokens is None else one.context_tokens,
            abilities=one.abilities,
        )

    # The server

    def _version(self, exchange: Exchange) -> None:
        respond(exchange, msgspec.json.encode(VersionText(self._entry.common.version)))


def _missing(_rest: str, exchange: Exchange) -> None:
    path = exchange.request.path
    fail(exchange, UnknownRoute(f"{path} is not among the routes of this server"))
