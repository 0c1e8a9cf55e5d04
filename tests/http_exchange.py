"""An HTTP exchange in memory: what a test sends an application, and what it got back.

with served(model) as client:
    answer = client.post("/v2/models/echo/infer", {"inputs": [...]})
    assert answer.status == 200
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

import wherry
from tests.fakes import TIMEOUT
from wherry.core.models.model import Model
from wherry.core.values.datatypes import Buffer
from wherry.server.access.api_keys import Restrictions
from wherry.server.http.exchange import (
    ANSWERED,
    STREAMING,
    WAITING,
    Exchange,
    HttpRequest,
    RequestHead,
)
from wherry.server.http_app import HttpApp
from wherry.server.v2.common import Common


def at_the_end_of_the_turn(tell: Callable[..., object], *arguments: object) -> None:
    """Tell the test of an answer when the loop has done all that belongs to it, as sockets do."""
    try:
        asyncio.get_running_loop().call_soon(tell, *arguments)
    except RuntimeError:  # a test without a loop
        tell(*arguments)


class MemoryExchange(Exchange):
    """Collects the answer; `leave()` is the client that goes, `congested` the one that is slow."""

    __slots__ = (
        "_congested",
        "answered",
        "chunks",
        "content_type",
        "headers",
        "on_chunk",
        "status",
    )

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        self.status = 0
        self.content_type = ""
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.answered: Future[None] = Future()
        self.on_chunk: Callable[[bytes], None] | None = None
        self._congested = False

    def respond(
        self,
        status: int,
        body: bytes | Sequence[Buffer] = b"",
        *,
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        if not self._may_go_on(WAITING):
            return
        self._head(status, content_type, headers)
        self.chunks = [body] if isinstance(body, bytes) else [bytes(part) for part in body]
        self.finish_answer()

    def start(
        self,
        status: int,
        *,
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        if not self._may_go_on(WAITING):
            return
        self._head(status, content_type, headers)
        self._phase = STREAMING

    def send(self, chunk: bytes) -> None:
        if not self._may_go_on(STREAMING):
            return
        self.chunks.append(chunk)
        if self.on_chunk is not None:
            self.on_chunk(chunk)

    def finish(self) -> None:
        if self._may_go_on(STREAMING):
            self.finish_answer()

    def finish_answer(self) -> None:
        self._phase = ANSWERED
        at_the_end_of_the_turn(self.answered.set_result, None)

    @property
    def congested(self) -> bool:
        return self._congested

    @congested.setter
    def congested(self, value: bool) -> None:
        self._congested = value

    def _head(self, status: int, content_type: str, headers: Sequence[tuple[str, str]]) -> None:
        self.status = status
        self.content_type = content_type
        for name, value in headers:
            assert "\n" not in value
            assert "\r" not in value
            self.headers[name.lower()] = value

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error answer, which is JSON with nothing but that."""
        assert self.content_type == "application/json", self.content_type
        text = self.json["error"]
        assert isinstance(text, str)
        return text

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events."""
        parts = self.body.decode().split("\n\n")
        assert parts.pop() == ""
        return [json.loads(part.removeprefix("data: ")) for part in parts]


def plain(encoded: object) -> Any:
    """What is encoded in an answer, as a client reads it."""
    return json.loads(msgspec.json.encode(encoded))


AppT = TypeVar("AppT")


class LoopClient(Generic[AppT]):
    """A client of an application that lives in a loop on another thread."""

    def __init__(self, app: AppT, runtime: wherry.Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.runtime = runtime
        self._loop = loop

    def call(self, function: Callable[[], object]) -> Any:
        """Run something in the loop's thread, and wait for it."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the test shall see it
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(TIMEOUT)


class Client(LoopClient[HttpApp]):
    """Sends requests to the application."""

    def begin(
        self,
        method: str,
        path: str,
        body: Buffer | Mapping[str, Any] | Sequence[Any] = b"",
        headers: Mapping[str, str] | None = None,
        prepare: Callable[[MemoryExchange], None] | None = None,
    ) -> MemoryExchange:
        """Send a request; the answer comes when it comes."""
        if not isinstance(body, Buffer):
            body = msgspec.json.encode(body)
        path, _, query = path.partition("?")
        head = RequestHead(method, path, query, dict(headers or {}))
        exchange = MemoryExchange(HttpRequest(head, body))
        if prepare is not None:
            prepare(exchange)
        self.call(lambda: self.app(exchange))
        return exchange

    def ask(
        self,
        method: str,
        path: str,
        body: Buffer | Mapping[str, Any] | Sequence[Any] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> MemoryExchange:
        exchange = self.begin(method, path, body, headers)
        exchange.answered.result(TIMEOUT)
        return exchange

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> MemoryExchange:
        return self.ask("GET", path, b"", headers)

    def post(
        self,
        path: str,
        body: Buffer | Mapping[str, Any] | Sequence[Any] = b"",
        headers: Mapping[str, str] | None = None,
    ) -> MemoryExchange:
        return self.ask("POST", path, body, headers)


@contextmanager
def served(
    *models: Model,
    restrictions: Restrictions | None = None,
    common: Common | None = None,
    recent_requests: bool = False,
    **fields: Any,
) -> Iterator[Client]:
    """The models behind an application, in an event loop of their own. `fields` are those of
    `common`, where that is not given."""
    with wherry.Runtime(*models) as runtime, app_loop() as loop:
        app = HttpApp(
            runtime,
            common=common or Common(**fields),
            restrictions=restrictions,
            recent_requests=recent_requests,
        )
        client = Client(app, runtime, loop)
        client.call(app.start)
        yield client
        client.call(app.stop)


@contextmanager
def app_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, as a server has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="test-loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
