"""A gRPC call in memory: what a test sends an application, and what it got back.

with served(model) as client:
    answer = client.ask("ModelInfer", {"model_name": "echo", ...})
    assert answer.code == "OK"
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import wherry
from tests.fakes import TIMEOUT
from tests.http_exchange import LoopClient, app_loop, at_the_end_of_the_turn
from wherry.core.models.model import Model
from wherry.core.models.settings import ModelSettings
from wherry.core.values.datatypes import Buffer
from wherry.server.access.api_keys import Restrictions
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Metadata, Rpc
from wherry.server.grpc_app import SERVICE, GrpcApp
from wherry.server.v2.common import Common
from wherry.server.v2.element_bytes import pack_bytes


class MemoryRpc(Rpc):
    """Collects the answers; `leave()` is the client that goes.

    With `takes` false the client takes nothing until `take()`.
    """

    __slots__ = (
        "_method", "answers", "changed", "code", "details", "done", "paused", "takes", "told",
        "trailers", "unread", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        method: Method,
        message: bytes,
        metadata: Mapping[str, str],
        timeout: float | None,
        *,
        takes: bool = True,
    ) -> None:
        super().__init__(method.path, metadata, timeout=timeout, message=message)
        self._method = method
        self.answers: list[dict[str, Any]] = []
        self.code = ""
        self.details = ""
        self.trailers: Metadata = ()
        self.done: Future[None] = Future()
        self.changed = threading.Condition()
        self.told = 0
        self.takes = takes
        self.waiting: list[Callable[[], None] | None] = []
        self.paused = False
        self.unread: deque[bytes | None] = deque()  # None: no more comes

    def respond(self, *message: Buffer) -> None:
        assert not self._method.gives_stream
        if not self.ended:
            self._collect(b"".join(message))
            self._end("OK")

    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        assert self._method.gives_stream
        if self.ended:
            return
        self._collect(b"".join(message))
        self.waiting.append(sent)
        if self.takes:
            self.take()

    def take(self, count: int = 1) -> None:
        """The client's window has room for so many answers more."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        for sent in taken:
            self.call_back(sent)

    def finish(self) -> None:
        assert self._method.gives_stream
        if not self.ended:
            self._end("OK")

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        if not self.ended:
            self.details = text
            self.trailers = metadata
            self._end(code)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        asyncio.get_running_loop().call_soon(self.read)

    def read(self) -> None:
        """What the client has said, as far as it is read."""
        while self.unread and not self.paused:
            message = self.unread.popleft()
            if message is None:
                self.call_back(self.on_half_close)
            elif self.on_message is not None:
                self.on_message(message)

    def _collect(self, message: Buffer) -> None:
        self.answers.append(self._method.response.decode(message))
        at_the_end_of_the_turn(self._tell, len(self.answers))

    def _tell(self, answers: int) -> None:
        with self.changed:
            self.told = answers
            self.changed.notify_all()

    def _end(self, code: str) -> None:
        self.ended = True
        self.code = code
        if (more := self.metadata.trailers) is not None:
            self.trailers = (*self.trailers, *more())
        at_the_end_of_the_turn(self.done.set_result, None)

    # For the test

    @property
    def answer(self) -> dict[str, Any]:
        assert self.code == "OK", f"{self.code}: {self.details}"
        (only,) = self.answers
        return only

    @property
    def error(self) -> tuple[str, str]:
        assert not self.answers
        return self.code, self.details

    def wait(self) -> MemoryRpc:
        """Until the call's end."""
        self.done.result(TIMEOUT)
        return self

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Until there are so many answers."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.told >= count, TIMEOUT), self.answers
        return self.answers


def words(*texts: str, model: str = "shout", **more: Any) -> dict[str, Any]:
    """A request with texts for the input `text`."""
    given = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
    raw = [pack_bytes([t.encode() for t in texts])]
    return {"model_name": model, "inputs": [given], "raw_input_contents": raw, **more}


class Client(LoopClient[GrpcApp]):
    """Sends calls to the application."""

    def begin(
        self,
        method: str,
        request: Mapping[str, Any] | bytes = b"",
        *,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        service: str = SERVICE,
        takes: bool = True,
    ) -> MemoryRpc:
        """Begin a call; the answers come when they come."""
        described = self.app.methods[f"/{service}/{method}"]
        if not isinstance(request, bytes):
            request = described.request.encode(request)
        rpc = MemoryRpc(described, request, metadata or {}, timeout, takes=takes)
        self.call(lambda: self.app(rpc))
        return rpc

    def ask(self, method: str, request: Mapping[str, Any] | bytes = b"", **how: Any) -> MemoryRpc:
        return self.begin(method, request, **how).wait()

    def say(self, rpc: MemoryRpc, *requests: Mapping[str, Any] | bytes) -> None:
        """Send messages on the stream of a call, in one turn of the loop."""
        described = self.app.methods[rpc.path]
        messages = [r if isinstance(r, bytes) else described.request.encode(r) for r in requests]

        def send() -> None:
            for message in messages:
                assert rpc.on_message is not None
                rpc.unread.append(message)
            rpc.read()

        self.call(send)

    def half_close(self, rpc: MemoryRpc) -> None:
        def close() -> None:
            rpc.unread.append(None)
            rpc.read()

        self.call(close)


@contextmanager
def served(
    *models: Model,
    overrides: Mapping[str, ModelSettings] | None = None,
    restrictions: Restrictions | None = None,
    common: Common | None = None,
    **fields: Any,
) -> Iterator[Client]:
    """The models behind an application, in an event loop of their own. `fields` are those of
    `common`, where that is not given."""
    with wherry.Runtime(*models, overrides=overrides) as runtime, app_loop() as loop:
        app = GrpcApp(runtime, common=common or Common(**fields), restrictions=restrictions)
        yield Client(app, runtime, loop)
