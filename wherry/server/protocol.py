"""Which paths have the protocols beside V2, and how does a package write one?

As coroutines that get a request and give the answer's body (`HttpProtocol`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from wherry.core.api import Buffer, ConfigError, Plugins
from wherry.server.fronts.pass_on import PassOn
from wherry.server.http.answers import describe, respond
from wherry.server.http.exchange import Exchange, error_body
from wherry.server.http.route import Patterns, Route
from wherry.server.v2.http.entry import HttpEntry

log = logging.getLogger("wherry")


@runtime_checkable
class HasRoutes(Protocol):
    """A protocol of one server, made of its HttpEntry."""

    def routes(self) -> Mapping[str, Route]:
        """By path; one with parameters, as `/predictions/{model}`, is looked at after all others,
        in this order."""


#: All are served, and packages' as soon as they are installed.
PROTOCOLS: Final = Plugins(
    "protocol",
    HasRoutes,
    # Anthropic's before OpenAI's, which have all else below /v1.
    {
        "anthropic": "wherry.llm.anthropic.routes:Anthropic",
        "openai": "wherry.llm.openai.routes:OpenAI",
    },
)


class ProtocolRoutes:
    """Those of one server. A model that has such a path as its own route comes before them."""

    def __init__(self, entry: HttpEntry, pass_on: PassOn | None) -> None:
        self._pass_on = pass_on
        own: dict[str, Route] = {}
        for name in PROTOCOLS.own:
            own |= PROTOCOLS.make(name, entry).routes()
        # A pattern of wherry's may have all below a path: what packages have there is before it.
        routes = {**_of_packages(entry, own), **own}
        self._own = {path: route for path, route in routes.items() if "{" not in path}
        self._patterns = Patterns({path: one for path, one in routes.items() if "{" in path})
        self._routes = {path: self._passed(path, one) for path, one in self._own.items()}

    def route(self, path: str) -> Route | None:
        """The route at this path, as a front has it if this is one."""
        if (route := self._routes.get(path)) is not None:
            return route
        own = self._patterns.route(path)
        return None if own is None else self._passed(path, own)

    def described(self) -> dict[str, Route]:
        """All that a document may describe, by the paths as OpenAPI writes them."""
        return {**self._own, **self._patterns.routes}

    def _passed(self, path: str, route: Route) -> Route:
        return route if self._pass_on is None else self._pass_on.route(path, route)


def _of_packages(entry: HttpEntry, own: Mapping[str, Route]) -> dict[str, Route]:
    """The routes of packages. A protocol that is wrong is passed over, whole."""
    found: dict[str, Route] = {}
    for name in PROTOCOLS.installed():
        try:
            routes = {} if name in PROTOCOLS.own else PROTOCOLS.make(name, entry).routes()
            for path in routes:
                if path in own or path in found:
                    raise ConfigError(f"its path {path} is another's")
                first = path.partition("/")[2].partition("/")[0]
                if not first or "{" in first or first == "v2":
                    raise ConfigError(f"its path {path} would be before those of others")
            found |= routes
        except Exception as error:  # noqa: BLE001 - a package's code: others are served
            why = str(error) if isinstance(error, ConfigError) else repr(error)
            log.error("protocol is passed over", extra={"protocol": name, "why": why})
    return found


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
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            self._fail(exchange, error)

    async def _answer(self, exchange: Exchange, answer: Callable[[], Awaitable[bytes]]) -> None:
        admission = self._entry.admission
        admission.enter_body()
        try:
            respond(exchange, await answer())
        except Exception as error:  # noqa: BLE001 - of the protocol: the client gets an answer
            self._fail(exchange, error)
        finally:
            admission.leave()

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        status, message, headers = describe(exchange, error)
        exchange.respond(status, self.error(status, message), headers=headers)
