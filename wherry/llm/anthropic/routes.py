"""Which model answers a request of Anthropic's clients?

Any that chats: a message is a chat in another form, and the chat's own parts read and answer it.
"""

from __future__ import annotations

from typing import Final

from wherry.llm.anthropic.answer import MessageAnswer, MessageEvent, MessageObject, error_body
from wherry.llm.anthropic.request import CountRequest, MessagesRequest
from wherry.llm.openai.client_request import ClientForm
from wherry.llm.openai.errors import UnknownRoute, fail
from wherry.llm.openai.generation import generation_route
from wherry.llm.openai.models import AbleModels
from wherry.llm.openai.tokens import CountedTokens, answered_by
from wherry.server.api import Exchange, HttpEntry, Route, generation, inference

MESSAGES: Final = "/v1/messages"
#: Anthropic's clients look for the request's id in the second header.
FORM: Final = ClientForm(error_body, ("X-Request-Id", "request-id"))


class Anthropic:
    """The routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._models = AbleModels(entry)

    def routes(self) -> dict[str, Route]:
        return {
            MESSAGES: generation_route(
                self._models,
                MessagesRequest,
                "chat",
                MessageAnswer.of_request,
                generation(
                    "Continue a conversation, in Anthropic's form",
                    MessagesRequest,
                    MessageObject,
                    MessageEvent,
                ),
                FORM,
            ),
            f"{MESSAGES}/count_tokens": generation_route(
                self._models,
                CountRequest,
                "tokens",
                answered_by(lambda piece: CountedTokens(len(piece.token_ids))),
                inference(
                    "Count the tokens of a conversation in Anthropic's form",
                    CountRequest,
                    CountedTokens,
                ),
                FORM,
            ),
            f"{MESSAGES}/{{rest*}}": Route(
                dict.fromkeys(("GET", "POST", "DELETE"), _missing), "inference"
            ),
        }


def _missing(_rest: str, exchange: Exchange) -> None:
    problem = f"{exchange.request.path} is not among the routes of this server"
    fail(exchange, UnknownRoute(problem), form=error_body)
