"""How does a service keep the form of events its clients already know?

`POST /` with `{"messages": [...], "max_tokens": 64}` (or `prompt`) streams, as server-sent events,

    data: {"text": "Hello", "token_count": 2, "total_token_count": 9, "token_rate": 31.5}
    ...
    data: [DONE]

and what fails, in the stream, too: `data: {"error": "..."}`. Any ASGI server runs it:

    uvicorn --factory examples.llm.s2_events:service

The model runs in a process of its own. Each request has its own queue in the Runtime; it is gone
with the request, however that ends: the tests count.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from typing import Any

import wherry

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def events(
    deltas: AsyncIterator[dict[str, Any]], clock: Callable[[], float] = time.perf_counter
) -> AsyncIterator[dict[str, Any]]:
    """The pieces of an answer as events. `token_rate` is of the stream so far, tokens/s."""
    start, total = clock(), 0
    async for delta in deltas:
        count = len(delta["token_ids"])
        total += count
        yield {
            "text": delta["text"],
            "token_count": count,
            "total_token_count": total,
            "token_rate": round(total / max(clock() - start, 1e-9), 2),
        }


class Events:
    """An ASGI application: one route over one model of a Runtime."""

    def __init__(self, runtime: wherry.Runtime, model: str) -> None:
        self._runtime = runtime
        self._model = model

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.to_thread(self._runtime.__enter__)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self._runtime.__exit__, None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        else:
            return  # the client has left in the middle of its body
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        stream = asyncio.ensure_future(self._stream(body, send))
        gone = asyncio.ensure_future(_gone(receive))
        await asyncio.wait((stream, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (stream, gone):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await stream

    async def _stream(self, body: bytes, send: Send) -> None:
        try:
            deltas = self._runtime.astream(self._model, **inputs_of(body))
            async with aclosing(deltas):  # type: ignore[type-var]  # it is a generator
                async for event in events(deltas):
                    await send(_event(json.dumps(event, ensure_ascii=False)))
        except wherry.WherryError as error:
            await send(_event(json.dumps({"error": str(error)})))
        await send(_event("[DONE]"))
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: str) -> Message:
    body = f"data: {data}\n\n".encode(errors="replace")
    return {"type": "http.response.body", "body": body, "more_body": True}


def inputs_of(body: bytes) -> dict[str, Any]:
    """A request as inputs of the model: what is neither messages nor prompt says how to answer."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise wherry.InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise wherry.InvalidRequest("the body must be an object")
    texts = {name: fields.pop(name) for name in ("messages", "prompt") if name in fields}
    return {**texts, "parameters": fields}


def service() -> Events:
    """The application of uvicorn's command line."""
    from examples.llm.app import chat

    return Events(wherry.Runtime(chat, isolation="process"), "chat")
