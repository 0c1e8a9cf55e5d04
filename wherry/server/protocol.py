"""How does a package write a protocol? Coroutines that get a request and give the answer's body."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from wherry.core.api import Buffer
from wherry.server.http.answers import describe, respond
from wherry.server.http.exchange import Exchange, error_body
from wherry.server.http.route import Route
from wherry.server.v2.http.entry import HttpEntry

Answer = Callable[..., Awaitable[bytes]]


class HttpProtocol(ABC):
    """The routes of one server, whose models `runtime` calls. All in its event loop.

    class Echo(HttpProtocol):
        def routes(self):
            return {"/echo/{model}": self.route(POST=self.echo)}

        async def echo(self, model: str, request: HttpRequest) -> bytes:
            return json.dumps(await self.runtime.ainfer(model, json.loads(request.body))).encode()
    """

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self.runtime = entry.runtime

    @abstractmethod
    def routes(self) -> Mapping[str, Route]:
        """By their paths; those with parameters after all others."""

    def error(self, status: int, message: str) -> bytes:
        """The body of an error."""
        return error_body(message)

    def route(self, group: str = "inference", **methods: Answer) -> Route:
        """A route by its methods. Each is called with the parameters of the path and the request,
        whose body is unpacked, and gives the body of an answer in JSON; WherryErrors have their
        own status. A client that leaves cancels it."""
        handlers = {name: partial(self._begin, answer) for name, answer in methods.items()}
        return Route(handlers, group)

    def _begin(self, answer: Answer, *called: Any) -> None:
        *values, exchange = called
        entry = self._entry

        def start(body: Buffer) -> None:
            exchange.request.body = body
            answering = self._answer(exchange, partial(answer, *values, exchange.request))
            exchange.on_disconnect = asyncio.get_running_loop().create_task(answering).cancel

        try:
            entry.admission.check()
            body = entry.small_body(exchange)
            if body is not None:
                start(body)
            else:
                work = partial(entry.body, exchange)
                entry.off_loop(exchange, work, start, self._fail, reads=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            self._fail(exchange, error)

    async def _answer(self, exchange: Exchange, answer: Callable[[], Awaitable[bytes]]) -> None:
        admission = self._entry.admission
        admission.enter_body()
        try:
            respond(exchange, await answer())
        except Exception as error:  # noqa: BLE001 - of the protocol: whatever it is, the client is told
            self._fail(exchange, error)
        finally:
            admission.leave()

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        status, message, headers = describe(exchange, error)
        exchange.respond(status, self.error(status, message), headers=headers)
