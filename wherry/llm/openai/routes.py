"""Which model answers an OpenAI request, and how does the answer go out?

Any model can: one with a text output and an input `messages` chats, one with `prompt` completes.
An LLM of wherry's engine supports all of OpenAI's fields; a plain model those that it has inputs
for: a request with others is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from wherry.llm.openai.chat_answer import ChatAnswer, ChatChunk, ChatCompletion
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.completions import CompletionRequest, TextAnswer, TextCompletion
from wherry.llm.openai.errors import UnknownRoute, fail
from wherry.llm.openai.generation import generation_route
from wherry.llm.openai.models import ABLE, NEEDS, AbleModels, OpenAIModel
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
    ANY_TEXT,
    Exchange,
    HttpEntry,
    Operation,
    Route,
    generation,
    inference,
    respond,
    returns,
    whole_page,
)

MODELS: Final = "/v1/models"
CHAT: Final = "/chat"


def _file(name: str) -> str:
    return (Path(__file__).parents[1] / "chat_page" / name).read_text(encoding="utf-8")


#: The page to chat with a server's models, which calls these routes as any client does, and keeps
#: conversations in the browser. Read when the server is imported: its event loop must not read
#: files.
PAGE, HEADERS = whole_page(
    _file("page.html"), _file("page.css"), _file("markdown.js") + _file("page.js")
)


class OpenAIModels(msgspec.Struct, kw_only=True):
    """The models that can answer OpenAI's requests."""

    object: Literal["list"]
    data: list[OpenAIModel]
    #: The last three are for Anthropic's clients: there is only one page.
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

    def routes(self) -> dict[str, Route]:
        version = {"GET": returns("The server's version", VersionText)}
        one = {"GET": returns("One of these models", OpenAIModel, 404, 503)}
        shown = Operation(
            summary="A page to chat with the models", gives={"text/html": ANY_TEXT}, errors=(404,)
        )
        return {
            CHAT: Route({"GET": self._chat_page}, "metadata", True, {"GET": shown}, ("chat",)),
            "/version": Route({"GET": self._version}, "metadata", operations=version),
            **self._of_models(),
            **task_routes(self._models),
            f"{MODELS}/{{model*}}": Route(
                {"GET": self._show}, "metadata", operations=one, needs=(*ABLE,)
            ),
            "/v1/{rest*}": Route(dict.fromkeys(("GET", "POST", "DELETE"), _missing), "inference"),
        }

    def _of_models(self) -> dict[str, Route]:
        # Paths without /v1 are where vLLM serves them.
        models = self._models
        listed = {"GET": returns("The models that can answer OpenAI's requests", OpenAIModels)}
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

    # Models. A variant's files may come and go: another thread looks for them.

    def _list(self, exchange: Exchange) -> None:
        def answer(found: list[OpenAIModel]) -> None:
            first, last = (found[0].id, found[-1].id) if found else (None, None)
            body = OpenAIModels(
                object="list", data=found, has_more=False, first_id=first, last_id=last
            )
            respond(exchange, msgspec.json.encode(body))

        self._entry.off_loop(exchange, self._models.listed, answer, fail, reads=False)

    def _show(self, name: str, exchange: Exchange) -> None:
        def answer(one: OpenAIModel) -> None:
            respond(exchange, msgspec.json.encode(one))

        look = partial(self._models.one_listed, name)
        self._entry.off_loop(exchange, look, answer, fail, reads=False)

    # The server

    def _chat_page(self, exchange: Exchange) -> None:
        """The page. It needs no key, as a browser cannot send one before it has the page: the page
        shows nothing of the server before it has a key."""
        # Whether a model chats is not for clients without a key.
        if not self._entry.common.keys and not self._models.serves("chat"):
            raise UnknownRoute(
                f"{CHAT} is not served here: no model chats (of each: {NEEDS['chat']})"
            )
        respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)

    def _version(self, exchange: Exchange) -> None:
        respond(exchange, msgspec.json.encode(VersionText(self._entry.common.version)))


def _missing(_rest: str, exchange: Exchange) -> None:
    path = exchange.request.path
    fail(exchange, UnknownRoute(f"{path} is not among the routes of this server"))
