"""Who may have the page to chat with a server's models, and what does it consist of?

The page talks to the routes of OpenAI's API, as any client does, and keeps conversations in the
browser: the server keeps none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wherry.llm.openai.errors import UnknownRoute
from wherry.llm.openai.models import NEEDS, AbleModels
from wherry.server.api import ANY_TEXT, Exchange, Operation, Route, respond, whole_page

CHAT: Final = "/chat"


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


#: Read when the server is imported: its event loop must not read files.
PAGE, HEADERS = whole_page(
    _file("page.html"), _file("page.css"), _file("markdown.js") + _file("page.js")
)


class ChatPage:
    """The page of one server. It tells nothing of the server before it has asked for it, so that
    it needs no key, which a browser cannot send before it has the page."""

    def __init__(self, models: AbleModels) -> None:
        self._models = models

    def routes(self) -> dict[str, Route]:
        shown = Operation(
            summary="A page to chat with the models", gives={"text/html": ANY_TEXT}, errors=(404,)
        )
        return {CHAT: Route({"GET": self._show}, "metadata", True, {"GET": shown}, ("chat",))}

    def _show(self, exchange: Exchange) -> None:
        # Whether a model chats is not for clients without a key.
        if not self._models.entry.common.keys and not self._models.serves("chat"):
            raise UnknownRoute(
                f"{CHAT} is not served here: no model chats (of each: {NEEDS['chat']})"
            )
        respond(exchange, PAGE.encode(), content_type="text/html; charset=utf-8", headers=HEADERS)
