"""How does a page of your own stand before the models? As one more path of the same application.

uvicorn examples.rag.page:app
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import wherry
from examples.rag.app import chat, rag, search

PAGE = Path(__file__).with_name("page.html").read_bytes()
HTML = [(b"content-type", b"text/html; charset=utf-8")]
models = wherry.asgi(rag, search, chat)


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    if scope["type"] == "http" and scope["path"] == "/":
        await send({"type": "http.response.start", "status": 200, "headers": HTML})
        await send({"type": "http.response.body", "body": PAGE})
    else:
        await models(scope, receive, send)
