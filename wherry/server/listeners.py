"""On which addresses does a server listen, with what between each listener and its application, and
which routes does it answer on each?
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from wherry.core.api import ConfigError, in_thread
from wherry.server.access.api_keys import GROUPS
from wherry.server.access.origins import Binding, Origins
from wherry.server.access_log import AccessLog
from wherry.server.connections.limits import Limits, MemoryPlan
from wherry.server.connections.open_connections import holdings_of
from wherry.server.connections.sockets import passed_socket
from wherry.server.fronts.owner import RowsOwner
from wherry.server.fronts.processes import Fronts
from wherry.server.http.answers import respond
from wherry.server.http.exchange import Application, Exchange, WithHeaders
from wherry.server.http.listener import Listener
from wherry.server.http_app import MANAGEMENT, VITAL, PartOfApp, refusal_form
from wherry.server.options import Options, TlsFiles
from wherry.server.parts import Applications
from wherry.server.watched_files import watched_context

if TYPE_CHECKING:
    from wherry.server.grpc.listener import GrpcListener
    from wherry.server.grpc.rpc import Application as GrpcApplication


class Cors:
    """Adds CORS headers to the answers of an application, refusals included.

    Answers a browser's preflight request itself, without a key: browsers send none with it.
    """

    def __init__(self, application: Application, origins: Origins) -> None:
        self._application = application
        self._origins = origins

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if "origin" not in request.headers:
            self._application(exchange)
            return
        answer = self._origins.preflight(request.method, request.headers)
        if answer is not None:
            respond(exchange, b"", status=204, headers=answer)
            return
        headers = self._origins.answer_headers(request.headers)
        self._application(WithHeaders(exchange, lambda: headers))


class Layers:
    """Makes the listeners of one server, which share what its connections may hold.

    From the listener inwards: origins, traces, the access log, the application. A layer that is off
    is not there.
    """

    def __init__(self, applications: Applications, options: Options, limits: Limits) -> None:
        self._applications = applications
        self._options = options
        self._limits = limits
        self._holdings = holdings_of(limits)
        self._origins = Origins(options.access.allowed_hosts, options.access.cors_origins)

    def over_http(self, application: Application) -> Listener:
        protocols, tracing = self._options.protocols, self._applications.common.tracing
        if protocols.access_log:
            application = AccessLog(application)
        if tracing is not None:
            from wherry.server.traced import TracedHttp

            scheme = "http" if self._options.tls.of_http[0] is None else "https"
            application = TracedHttp(application, tracing, scheme)
        if self._origins:
            application = Cors(application, self._origins)
        return Listener(
            application,
            self._limits,
            self._origins,
            self._holdings,
            vital=VITAL,
            refusal_form=refusal_form,
            keeps_sent_names=protocols.http_header_forward_pattern is not None,
        )

    def over_grpc(self) -> GrpcListener | None:
        if self._applications.grpc is None:
            return None
        from wherry.server.grpc.listener import GrpcListener

        protocols, common = self._options.protocols, self._applications.common
        calls: GrpcApplication = self._applications.grpc
        ended = None
        if common.tracing is not None:
            from wherry.server.traced import TracedCalls

            calls = traced = TracedCalls(calls, common.tracing)
            ended = traced.ended
        return GrpcListener(
            calls,
            self._limits,
            ended=ended,
            compression=protocols.grpc_compression,
            access_log=logging.getLogger("wherry.access") if protocols.access_log else None,
            holdings=self._holdings,
            offload=common.offload,
        )


log = logging.getLogger("wherry")

#: Seconds for which open connections are still read when a server begins to drain.
LAST_CALL = 0.3
#: Seconds to send the spans that wait, at the end.
FLUSH = 5.0


class Listeners:
    """The listeners of one server: HTTP, HTTP for its operators, and gRPC.

    Its coroutines run in the server's event loop. A front has no listeners for operators: its
    owner has them. With `rows` clients reach this server through fronts.
    """

    def __init__(
        self,
        applications: Applications,
        options: Options,
        plan: MemoryPlan,
        *,
        is_front: bool = False,
        rows: RowsOwner | None = None,
    ) -> None:
        self._listen = options.listen
        self._is_front = is_front
        self._notice = options.life.drain_notice
        fronts = None if rows is None else Fronts(options, rows)
        self._tls = options.tls
        self._watched = applications.watched
        #: Whether it accepts while models are loading; not if a predecessor can answer meanwhile.
        self._serves_at_once = not self._listen.reuse_port and (
            self._listen.fd is None and self._listen.grpc_fd is None
        )
        #: What is to be logged when it accepts, and where.
        self._listening_later: list[tuple[str, str]] = []
        self._tracing = applications.common.tracing
        _check_speaks(options)
        layers = Layers(applications, options, plan.limits)
        self._app = app = applications.http
        public: Application = app
        #: Listeners for operators, by the name of their option without _port.
        self._operators: dict[str, Listener] = {}
        if self._listen.management_port is not None:
            if not is_front:
                management = app if fronts is None else fronts.application
                self._operators["management"] = layers.over_http(management)
            public = PartOfApp(app, set(GROUPS) - MANAGEMENT)
        if self._listen.metrics_port is not None and not is_front:
            self._operators["metrics"] = layers.over_http(PartOfApp(app, {"metrics"}))
        self._agent = applications.agent
        self._fronts = fronts
        if fronts is not None:
            app.measure(fronts.figures)
        speaks_http = fronts is None and self._listen.http
        self._http = layers.over_http(public) if speaks_http else None
        self._grpc = layers.over_grpc() if fronts is None and self._listen.speaks_grpc else None
        #: By "http", "management" and "metrics", once they listen; that of "agent" is HOST:PORT.
        self.urls: dict[str, str] = {}
        self._draining: set[asyncio.Task[None]] = set()

    @property
    def grpc_address(self) -> str:
        """host:port, as gRPC clients take it; empty if gRPC is off, or not listening yet."""
        if self._fronts is not None:
            return self._fronts.grpc_address
        return "" if self._grpc is None else self._grpc.address

    @property
    def url(self) -> str:
        """That of HTTP, else grpc://HOST:PORT."""
        return self.urls.get("http") or f"grpc://{self.grpc_address}"

    @property
    def connections(self) -> int:
        """Open HTTP connections of this process, without those of operators."""
        return 0 if self._http is None else self._http.connections

    @property
    def callers(self) -> int:
        """Those of them that had a request lately, and do more than watch the numbers."""
        return 0 if self._http is None else max(0, self._http.used - self._app.watchers)

    @property
    def calls(self) -> int:
        """Open gRPC calls."""
        return 0 if self._grpc is None else self._grpc.calls

    @property
    def local(self) -> bool:
        """Whether no other machine can reach any of them. After `start`."""
        return all(one.binding is not Binding.NETWORK for one in (*self._all(), *self._of_fronts()))

    async def start(self) -> None:
        """Bind every address, or none. OSError if that of HTTP or gRPC is in use, ConfigError for
        one of an operator's listeners."""
        if self._tracing is not None:
            await in_thread(self._tracing.start, "wherry-otel-start")
        try:
            await self._start()
        except BaseException:
            await self.drain(0.0)
            await self.end()
            raise

    async def serve(self) -> None:
        """Accept connections from now on, if `start` did not; the models are ready."""
        if not self._serves_at_once:
            for listener in self._all():
                await listener.serve()
            await self._start_agent()
        for fronts in self._of_fronts():
            await fronts.serve()
        for what, where in self._listening_later:
            self._log_listening(what, where, accepts=True)
        self._listening_later.clear()

    async def drain(self, timeout: float) -> bool:
        """Accept no more, and wait until accepted requests are answered. False after `timeout`
        seconds."""
        if not self._serves_at_once:  # its successor answers on this port
            await self._agent.close()
        last_call = min(max(LAST_CALL, self._notice), timeout)
        ends_at = time.monotonic() + timeout
        drained = True
        for fronts in self._of_fronts():
            drained = False
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    drained = await fronts.drain(last_call)
            timeout = max(0.0, ends_at - time.monotonic())
        # The owner has the sockets of a front, too, and lets no more in just before that time.
        accept_until = last_call if self._is_front else min(self._notice, timeout)
        self._draining = {
            asyncio.create_task(one.drain(None, last_call, accept_until=accept_until))
            for one in self._all()
        }
        if self._draining:
            drained &= not (await asyncio.wait(self._draining, timeout=timeout))[1]
        return drained

    def kill(self) -> None:
        """End the processes of fronts at once."""
        for fronts in self._of_fronts():
            fronts.kill()

    async def end(self) -> None:
        """Send the answers that are there, and close every connection; then the spans of the
        requests. After `drain`."""
        await asyncio.gather(*(one.end() for one in (*self._all(), *self._of_fronts())))
        await asyncio.gather(*self._draining)
        await self._agent.close()
        if self._tracing is not None:
            await in_thread(partial(self._tracing.close, FLUSH), "wherry-otel-end")

    def _all(self) -> list[Listener | GrpcListener]:
        public = (one for one in (self._http, self._grpc) if one is not None)
        return [*self._operators.values(), *public]

    def _of_fronts(self) -> tuple[Fronts, ...]:
        return () if self._fronts is None else (self._fronts,)

    async def _start(self) -> None:
        if self._http is not None:
            await self._start_http(self._http)
        for fronts in self._of_fronts():
            # What is wrong with the files is reported here, and not by each front.
            await self._tls_context(self._tls.of_http)
            if self._listen.speaks_grpc:
                await self._tls_context(self._tls.of_grpc, "h2")
            await fronts.start()
            self._is_open("http", fronts, accepts=False)
            if fronts.grpc_address:
                self._log_listening("grpc", fronts.grpc_address, accepts=False)
        listen = self._listen
        places = {
            "management": (listen.host, listen.management_port),
            "metrics": (listen.metrics_host or listen.host, listen.metrics_port),
        }
        for name, listener in self._operators.items():
            host, port = places[name]
            await self._start_for_operators(name, listener, host, port or 0)
        if self._grpc is not None:
            await self._start_grpc(self._grpc)
        if self._serves_at_once:
            await self._start_agent()

    async def _start_http(self, listener: Listener) -> None:
        listen = self._listen
        await listener.start(
            listen.host,
            listen.port,
            uds=listen.uds,
            sock=None if listen.fd is None else passed_socket(listen.fd, "fd"),
            ssl=await self._tls_context(self._tls.of_http),
            reuse_port=listen.reuse_port,
            serve=self._serves_at_once,
        )
        self._is_open("http", listener)

    async def _start_for_operators(
        self, name: str, listener: Listener, host: str, port: int
    ) -> None:
        try:
            await listener.start(
                host,
                port,
                ssl=await self._tls_context(self._tls.of_http),
                reuse_port=self._listen.reuse_port,
                serve=self._serves_at_once,
            )
        except OSError as error:
            raise ConfigError(f"{name}_port {port}: {error.strerror or error}") from None
        self._is_open(name, listener)

    async def _start_grpc(self, listener: GrpcListener) -> None:
        listen = self._listen
        await listener.start(
            listen.host_of_grpc,
            listen.grpc_port or 0,
            sock=None if listen.grpc_fd is None else passed_socket(listen.grpc_fd, "grpc_fd"),
            ssl=await self._tls_context(self._tls.of_grpc, "h2"),
            reuse_port=listen.reuse_port,
            serve=self._serves_at_once,
        )
        self._log_listening("grpc", listener.address)

    async def _start_agent(self) -> None:
        listen, port = self._listen, self._listen.agent_port
        if port is None:
            return
        try:
            at = await self._agent.start(listen.host, port, reuse_port=not self._serves_at_once)
        except OSError as error:
            raise ConfigError(f"agent_port {port}: {error.strerror or error}") from None
        self.urls["agent"] = at
        self._log_listening("agent", at)

    def _is_open(
        self, name: str, listener: Listener | Fronts, *, accepts: bool | None = None
    ) -> None:
        self.urls[name] = listener.url
        self._log_listening("url" if name == "http" else name, listener.url, accepts=accepts)

    def _log_listening(self, what: str, where: str, *, accepts: bool | None = None) -> None:
        if not (self._serves_at_once if accepts is None else accepts):
            self._listening_later.append((what, where))
            return
        # For fronts the owner logs it, once.
        log.log(logging.DEBUG if self._is_front else logging.INFO, "listening", extra={what: where})

    async def _tls_context(self, files: TlsFiles, alpn: str = "http/1.1") -> ssl.SSLContext | None:
        if files[0] is None:
            return None
        watched = self._watched
        return await in_thread(lambda: watched_context(watched, files, alpn), "wherry-tls")


def _check_speaks(options: Options) -> None:
    """ConfigError if HTTP is off, and nothing is left or needs it."""
    listen = options.listen
    if listen.http:
        return
    if listen.fronts:
        raise ConfigError("fronts need HTTP: leave http on, or fronts at 0")
    if not listen.speaks_grpc:
        raise ConfigError("without HTTP there is nothing to speak: set grpc_port (8001 is usual)")
