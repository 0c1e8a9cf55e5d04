"""Which models may fronts call, and when does each front know of a change?"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from wherry.core.api import ANY, FrameSocket, LoadedModel, Runtime, Status
from wherry.server.fronts.connection import FrontConnection
from wherry.server.fronts.encoding import card_of
from wherry.server.fronts.link_protocol import FrontSettings, LinkMessage, ModelCard, OwnedModels
from wherry.server.fronts.reply import AnsweredLater, ForwardedCall, ServedModel
from wherry.server.grpc.rpc import Application as GrpcApplication
from wherry.server.http.exchange import Application, Exchange
from wherry.server.v2.common import Common

log = logging.getLogger("wherry")

#: Seconds that a front has to take note of a change.
KNOW: Final = 2.0

Others = list[tuple[str, str, str, str]]

#: gRPC methods whose effect every front must know before they are answered.
CHANGES: Final = (
    "/RepositoryModelLoad",
    "/RepositoryModelUnload",
    "/SystemSharedMemoryRegister",
    "/SystemSharedMemoryUnregister",
    "/LogSettings",
)


class RowsOwner:
    """The fronts of one owner. Everything happens in its event loop.

    `http` and `grpc` answer what fronts pass on; `grpc` is None if they speak no gRPC. What else
    may change something, as the port for operators does, calls `answer`, too.
    """

    def __init__(
        self, runtime: Runtime, common: Common, http: Application, grpc: GrpcApplication | None
    ) -> None:
        self.common = common
        self.clock = runtime.clock
        self.load_report = runtime.registry.load_report
        self.connections: list[FrontConnection] = []
        self._runtime = runtime
        self._http = http
        self._grpc = grpc
        #: Called for a front that serves the models it was sent, and for one that has gone.
        self.on_models_served: Callable[[FrontConnection], None] = lambda _: None
        self.on_left: Callable[[FrontConnection, Exception], None] = lambda *_: None
        self._numbers = itertools.count()
        #: All that a front may still name, by number.
        self._served: dict[int, ServedModel] = {}
        self._ready: list[LoadedModel] = []
        self._others: Others = []
        #: Of the models that fronts were sent last.
        self.revision = 0
        self._settings = self._settings_now(0)
        #: Called once every front serves a revision.
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._looks = False

    def start(self) -> None:
        """Follow the runtime's models. In the loop."""
        self._port = self._runtime.port()
        self._runtime.registry.listeners += (self._look_soon,)
        self._look()

    def accept(
        self, messages: FrameSocket, aside: Callable[[Callable[[], None]], None]
    ) -> FrontConnection:
        connection = FrontConnection(self, self._port, messages, aside)
        self.connections.append(connection)
        connection.start()
        return connection

    @property
    def requests(self) -> int:
        return sum(connection.requests for connection in self.connections)

    # For connections

    def model(self, number: int) -> ServedModel | None:
        return self._served.get(number)

    def greet(self, connection: FrontConnection) -> None:
        self._look()
        # The front is up to date once it has its models: this one counts for nothing.
        settings = msgspec.structs.replace(self._settings, revision=-1)
        connection.send(settings)
        connection.send(self._models())

    def seen(self, connection: FrontConnection, revision: int) -> None:
        connection.revision = revision
        self.on_models_served(connection)
        self._notify_waiting()

    def answer(self, exchange: Exchange) -> None:
        """Have the application answer. A change, as of models, is answered when every front knows
        it."""
        if exchange.request.method == "POST":
            exchange = AnsweredLater(exchange, self._when_all_know)
        self._http(exchange)

    def answer_call(self, call: ForwardedCall) -> None:
        """Have the gRPC application answer, as `answer` does."""
        if self._grpc is None or call.path not in self._grpc.methods:
            call.fail("UNIMPLEMENTED", f"unknown method {call.path}")
            return
        if call.path.endswith(CHANGES):
            call.answers_after = self._when_all_know
        self._grpc(call)

    def drain(self) -> None:
        """Notify clients that watch the health over gRPC that the server stops."""
        if self._grpc is not None:
            self._grpc.drain()

    def left(self, connection: FrontConnection, error: Exception) -> None:
        self.connections = [one for one in self.connections if one is not connection]
        self._notify_waiting()
        self.on_left(connection, error)

    # Models

    def _look_soon(self) -> None:
        """Look whether the models have changed. Any thread."""
        if not self._looks:
            self._looks = True
            self._port.call(lambda _: self._look(), None)

    def _look(self) -> None:
        self._looks = False
        registry = self._runtime.registry
        with registry.quietly() as life:
            ready = life.all_ready()
            others = [
                (name, version, str(status), why)
                for name, version, status, why in life.versions()
                if status is not Status.READY
            ]
            others += [
                (name, "", str(Status.LOADING), "")
                for name in life.announced.names()
                if name != ANY
            ]
        if ready == self._ready and others == self._others:
            self._look_at_settings()
            return
        for loaded in ready:
            if loaded not in self._ready:
                number = next(self._numbers)
                self._served[number] = ServedModel(number, loaded)
        self._ready, self._others = ready, others
        self.revision += 1
        self._send_all(self._models())
        self._look_at_settings()

    def _look_at_settings(self) -> None:
        settings = self._settings_now(self._settings.revision)
        if settings != self._settings:
            self.revision += 1
            self._settings = self._settings_now(self.revision)
            self._send_all(self._settings)

    def _settings_now(self, revision: int) -> FrontSettings:
        common = self.common
        regions = [msgspec.structs.astuple(region) for region in common.shared_memory.status()]
        return FrontSettings(revision, common.log_settings.values(), regions, common.tenant_key)

    def _send_all(self, message: LinkMessage) -> None:
        for connection in self.connections:
            if connection.name:
                connection.send(message)
        self._notify_waiting()

    def _models(self) -> OwnedModels:
        return OwnedModels(self.revision, list(self._cards()), self._others)

    def _cards(self) -> Iterator[ModelCard]:
        for number, served in self._served.items():
            loaded = served.loaded
            if loaded in self._ready:
                yield card_of(number, loaded.model, loaded.config, loaded.signature)

    def _when_all_know(self, call: Callable[[], None]) -> None:
        """Call this once every front serves the models as they are now, or after KNOW seconds."""
        self._look()
        waiting = self.revision, call
        self._waiting.append(waiting)
        self._notify_waiting()
        if waiting in self._waiting:
            self._port.loop.call_later(KNOW, self._wait_no_longer, waiting)

    def _wait_no_longer(self, waiting: tuple[int, Callable[[], None]]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            waiting[1]()

    def _notify_waiting(self) -> None:
        known = min((one.revision for one in self.connections if one.name), default=self.revision)
        if known == self.revision:  # no front names what is not served any more
            self._served = {n: one for n, one in self._served.items() if one.loaded in self._ready}
        waiting, self._waiting = self._waiting, []
        for revision, call in waiting:
            if revision <= known:
                call()
            else:
                self._waiting.append((revision, call))
