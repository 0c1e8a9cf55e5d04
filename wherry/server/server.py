"""How does a server begin, become ready, and end without losing a request?

    start     the address is taken first: a port in use is known before any model is loaded
    load      in a thread, so that `live` answers at once and `ready` says what is loading
    ready     every model is loaded and warm; now --ready-fd gets the URL
    drain     not ready, accept no more, answer what was accepted
    stop      what is left after `drain_timeout` fails with 503; models are unloaded

A frontend is started and drained here and nowhere else; what it does with a request is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from wherry.frontends.access.api_keys import ApiKeys
from wherry.frontends.access.origins import Binding, Origins
from wherry.frontends.access.restricted import GROUPS, Restrictions
from wherry.frontends.admission import Admission
from wherry.frontends.connections.full_memory import MemoryPlan, memory_plan
from wherry.frontends.connections.limits import Limits
from wherry.frontends.connections.open_connections import holdings_of
from wherry.frontends.connections.passed import passed_socket
from wherry.frontends.http.asgi import AsgiApp, Receive, Scope, Send, asgi_app
from wherry.frontends.http.cors import Cors
from wherry.frontends.http.exchange import LEFT, Application, Exchange, PassedOn
from wherry.frontends.http.listener import Listener, tls_context
from wherry.frontends.http_app import MANAGEMENT, VITAL, HttpApp, PartOfApp
from wherry.frontends.offload import Offload
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.parameters import HeaderForwarding
from wherry.models.model import Model
from wherry.observability.machine import Machine
from wherry.runtime.control import ModelControl, log_ready
from wherry.runtime.runtime import Runtime
from wherry.values.errors import ConfigError

if TYPE_CHECKING:
    from wherry.frontends.grpc.listener import GrpcListener

log = logging.getLogger("wherry")

T = TypeVar("T")

#: What `Server.run` returns and the command line exits with.
DRAINED = 0
NOT_DRAINED = 1
INTERRUPTED = 128 + signal.SIGINT

#: How often a line says that models are still loading.
PROGRESS_INTERVAL = 10.0
#: Seconds in which a client that has a connection may still send the request it is about to send.
LAST_CALL = 0.3
#: Seconds for the models to unload, however long the last requests took.
UNLOADING = 10.0

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,64})?")


class Server:
    """Models behind HTTP and, with `grpc_port`, gRPC.

    In a program of your own (it runs in a thread; `port=0` takes a free port):

        with wherry.Server(sentiment, port=0) as server:
            print(server.url)

    As the program: `sys.exit(wherry.Server(sentiment).run())`, until SIGTERM or Ctrl-C.

    Give it models, or one Runtime: a Runtime that has its models loaded already stays yours, any
    other is started and closed here. Here `isolation` is "thread" unless you say "process".
    """

    def __init__(
        self,
        *models: Model | type[Model] | Runtime,
        host: str = "127.0.0.1",
        port: int = 8000,
        grpc_port: int | None = None,
        uds: str | os.PathLike[str] | None = None,
        fd: int | None = None,
        grpc_fd: int | None = None,
        reuse_port: bool = False,
        allowed_hosts: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
        api_keys: Sequence[str] = (),
        ssl_certfile: str | os.PathLike[str] | None = None,
        ssl_keyfile: str | os.PathLike[str] | None = None,
        ssl_client_ca: str | os.PathLike[str] | None = None,
        grpc_ssl_certfile: str | os.PathLike[str] | None = None,
        grpc_ssl_keyfile: str | os.PathLike[str] | None = None,
        grpc_ssl_client_ca: str | os.PathLike[str] | None = None,
        isolation: str = "thread",
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits | None = None,
        max_in_flight: int | None = None,
        max_queue_bytes: int | None = None,
        control: ModelControl | None = None,
        allow_shared_memory: bool = False,
        allow_model_upload: bool = False,
        trace_config: Sequence[str] = (),
        restricted_apis: Sequence[str] = (),
        restricted_protocols: Sequence[str] = (),
        disabled_apis: Sequence[str] = (),
        header_forward_pattern: str | None = None,
        management_port: int | None = None,
        metrics_port: int | None = None,
        allow_sagemaker: bool = False,
        sagemaker_model: str | None = None,
        grpc_compression: str = "none",
        drain_timeout: float = 30.0,
        access_log: bool = False,
        ready_fd: int | None = None,
    ) -> None:
        self.runtime = _runtime_of(models, isolation, overrides)
        #: The model repositories, if it has some; its runtime must be this one.
        self.control = control or ModelControl(self.runtime)
        self.drain_timeout = drain_timeout
        self._owns_runtime = not self.runtime.models()
        self._address: tuple[str, int, str | os.PathLike[str] | None] = (host, port, uds)
        self._reuse_port = reuse_port
        #: Also while models are loading. Not beside a predecessor that could answer.
        self._serves_at_once = not reuse_port and fd is None and grpc_fd is None
        #: Sockets that were open before us; ours as soon as we listen.
        self._fd, self._grpc_fd = fd, grpc_fd
        self._tls = (ssl_certfile, ssl_keyfile, ssl_client_ca)
        #: gRPC's own, or the same.
        self._grpc_tls = (grpc_ssl_certfile, grpc_ssl_keyfile, grpc_ssl_client_ca)
        if grpc_ssl_certfile is None:
            self._grpc_tls = self._tls
        self._origins = Origins(allowed_hosts, cors_origins)
        self._api_keys = tuple(api_keys)
        ApiKeys(api_keys)  # what is wrong with them is said before anything is started
        plan = _memory_plan(limits, max_queue_bytes)
        self._limits = plan.limits
        self._holdings = holdings_of(self._limits)
        #: For every frontend.
        self._admission = Admission(max_in_flight, plan.max_queue_bytes)
        self._allow_model_upload = allow_model_upload or bool(self._api_keys)
        self._common = Common(
            allow_shared_memory=allow_shared_memory,
            allow_model_upload=self._allow_model_upload,
            trace_config=trace_config,
            offload=Offload(plan.max_offloaded_bytes, plan.offload_threads),
        )
        self._restrictions = Restrictions(restricted_apis, disabled_apis)
        # What has a port of its own over HTTP is not left open here.
        elsewhere = () if management_port is None else MANAGEMENT
        self._grpc_restrictions = Restrictions(
            restricted_protocols, (*disabled_apis, *elsewhere), others=self._restrictions
        )
        self._management_port = management_port
        self._metrics_port = metrics_port
        #: What listens for operators, by what it is called.
        self._operators: dict[str, Listener] = {}
        self._operator_urls: dict[str, str] = {}
        self._sagemaker, self._sagemaker_model = allow_sagemaker, sagemaker_model
        self._forwarding = (
            None if header_forward_pattern is None else HeaderForwarding(header_forward_pattern)
        )
        self._access_log = access_log
        self._grpc_port = grpc_port
        self._grpc = (
            None if grpc_port is None and grpc_fd is None else self._make_grpc(grpc_compression)
        )
        self._ready_fd = ready_fd
        self._url = ""
        self._ready: Future[None] = Future()
        self._is_the_program = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: `_loop` is known, or there will be none.
        self._begun = threading.Event()
        self._stopping = asyncio.Event()
        self._drained = True

    def __repr__(self) -> str:
        return f"<Server {self._url or 'not started'}: {len(self.runtime.models())} models>"

    @property
    def url(self) -> str:
        """What clients are given; empty before the server listens."""
        return self._url

    @property
    def grpc_url(self) -> str:
        """host:port, as gRPC clients take it; empty if gRPC is off, or not listening yet."""
        return "" if self._grpc is None else self._grpc.address

    @property
    def management_url(self) -> str:
        """Where operators ask, with `management_port`; empty without one."""
        return self._operator_urls.get("management", "")

    @property
    def metrics_url(self) -> str:
        """Where the metrics are as well, with `metrics_port`; empty without one."""
        return self._operator_urls.get("metrics", "")

    # In a program of one's own

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> Server:
        """Serve in a thread. Returns when every model is ready; raises if one cannot be loaded
        (LoadFailed) or the address is taken (OSError)."""
        self._thread = threading.Thread(target=self._run_in_thread, name="wherry-server")
        try:
            self._thread.start()
            self._ready.result()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> bool:
        """Drain and stop. Blocks; any thread. False if something was not finished in time."""
        thread = self._thread
        if thread is not None and thread.ident is not None:
            self._begun.wait()
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # it is closed: it has ended by itself
                    self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()
        self._thread = None
        return self._drained

    def _run_in_thread(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                self._drained = runner.run(self._live())
        except BaseException as error:
            if self._ready.done():
                raise  # nobody waits for it: threading prints it
            self._ready.set_exception(error)
        else:
            if not self._ready.done():
                self._ready.set_exception(RuntimeError("the server was stopped as it started"))
        finally:
            self._begun.set()

    # As the program

    def run(self) -> int:
        """Serve until SIGTERM or SIGHUP (returns 0 when all was answered, else 1) or Ctrl-C (130).

        A second signal ends the process at once. Main thread only. Raises LoadFailed or
        ConfigError if a model cannot be loaded, OSError if the address is taken.
        """
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(self._run_until_signal())

    async def _run_until_signal(self) -> int:
        loop = asyncio.get_running_loop()
        received: list[int] = []
        self._is_the_program = True

        def on_signal(number: int) -> None:
            if received:
                self._end_now(number)
            received.append(number)
            log.info("stopping", extra={"signal": signal.Signals(number).name})
            self._stopping.set()

        numbers = [signal.SIGTERM, signal.SIGINT]
        # The end of its terminal; with nohup that is not to end it.
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            try:
                loop.add_signal_handler(number, on_signal, number)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda n, _: loop.call_soon_threadsafe(on_signal, n))
        drained = await self._live()
        if not drained:
            return NOT_DRAINED
        return INTERRUPTED if received == [signal.SIGINT] else DRAINED

    def _end_now(self, number: int) -> None:
        """The operator asks a second time: nobody is answered any more."""
        log.warning("stopped before everything was answered")
        for loaded in self.runtime.models():
            for instance in loaded.runner.instances:
                instance.abort("the server was stopped")
        for handler in logging.getLogger().handlers:
            handler.flush()
        # Not sys.exit(): that waits for threads which may never end.
        os._exit(128 + number)

    # A server's life

    async def _live(self) -> bool:
        """From the first to the last moment. False if something was not finished in time."""
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        if self._ready_fd is not None:
            try:
                os.set_inheritable(self._ready_fd, False)  # a worker must not hold the pipe open
            except OSError as error:
                fd, self._ready_fd = self._ready_fd, None
                raise ConfigError(f"ready_fd {fd}: {error.strerror}") from None
        app = HttpApp(
            self.runtime,
            api_keys=self._api_keys,
            admission=self._admission,
            max_body_bytes=self._limits.max_body_bytes,
            control=self.control,
            common=self._common,
            restrictions=self._restrictions,
            forwarding=self._forwarding,
            sagemaker=self._sagemaker,
            sagemaker_model=self._sagemaker_model,
            name=self._name,
        )
        public: HttpApp | PartOfApp = app
        if self._management_port is not None:
            self._operators["management"] = self._listener(app)
            public = PartOfApp(app, set(GROUPS) - MANAGEMENT)
        if self._metrics_port is not None:
            self._operators["metrics"] = self._listener(PartOfApp(app, {"metrics"}))
        listener = self._listener(public)
        if self.control.repositories:
            self.runtime.expect("*")
        grpc = self._grpc
        self._common.loop_stall.start(
            self._loop, lambda: not (listener.connections or (grpc is not None and grpc.calls))
        )
        try:
            await self._listen(listener)
            try:
                await self._listen_for_operators()
                await self._listen_grpc()
                self._decide_on_uploads(listener)
                if await self._load():
                    await self._serve(listener)
                    self._tell_ready()
                    await self._stopping.wait()
            finally:
                app.draining = True
                drained = await self._end(listener)
            log.info("stopped")
            return drained
        finally:
            self._common.loop_stall.stop()
            self._close_ready_fd()

    @property
    def _name(self) -> str:
        # The clients of a Triton repository ask for its server by name.
        return "triton" if self.control.repositories else "wherry"

    def _listener(self, application: Application) -> Listener:
        application = AccessLog(application) if self._access_log else application
        if self._origins:
            application = Cors(application, self._origins)
        return Listener(application, self._limits, self._origins, self._holdings, vital=VITAL)

    async def _listen(self, listener: Listener) -> None:
        host, port, uds = self._address
        await listener.start(
            host,
            port,
            uds=uds,
            sock=None if self._fd is None else passed_socket(self._fd, "fd"),
            ssl=_tls_context(self._tls),
            reuse_port=self._reuse_port,
            serve=self._serves_at_once,
        )
        self._url = listener.url
        log.info("listening", extra={"url": self._url})

    async def _listen_for_operators(self) -> None:
        ports = {"management": self._management_port, "metrics": self._metrics_port}
        for name, listener in self._operators.items():
            port = ports[name] or 0
            try:
                await listener.start(
                    self._address[0],
                    port,
                    ssl=_tls_context(self._tls),
                    reuse_port=self._reuse_port,
                    serve=self._serves_at_once,
                )
            except OSError as error:
                raise ConfigError(f"{name}_port {port}: {error.strerror or error}") from None
            self._operator_urls[name] = listener.url
            log.info("listening", extra={name: listener.url})

    def _make_grpc(self, compression: str) -> GrpcListener:
        # Here, for who has no use for it should not pay for reading the messages' description.
        from wherry.frontends.grpc.listener import GrpcListener
        from wherry.frontends.grpc_app import GrpcApp

        app = GrpcApp(
            self.runtime,
            admission=self._admission,
            api_keys=self._api_keys,
            control=self.control,
            common=self._common,
            restrictions=self._grpc_restrictions,
            forwarding=self._forwarding,
            name=self._name,
        )
        return GrpcListener(
            app,
            self._limits,
            compression=compression,
            access_log=logging.getLogger("wherry.access") if self._access_log else None,
            holdings=self._holdings,
            offload=self._common.offload,
        )

    async def _listen_grpc(self) -> None:
        if self._grpc is None:
            return
        await self._grpc.start(
            self._address[0],
            self._grpc_port or 0,
            sock=None if self._grpc_fd is None else passed_socket(self._grpc_fd, "grpc_fd"),
            ssl=_tls_context(self._grpc_tls, "h2"),
            reuse_port=self._reuse_port,
            serve=self._serves_at_once,
        )
        log.info("listening", extra={"grpc": self.grpc_url})

    async def _serve(self, listener: Listener) -> None:
        """Accept, where that had to wait for the models: see `_serves_at_once`."""
        if not self._serves_at_once:
            for frontend in self._frontends(listener):
                await frontend.serve()

    def _frontends(self, listener: Listener) -> list[Listener | GrpcListener]:
        grpc = () if self._grpc is None else (self._grpc,)
        return [listener, *self._operators.values(), *grpc]

    def _decide_on_uploads(self, listener: Listener) -> None:
        """Sending a model's files is running code: for clients with a key, or on this machine."""
        bindings = {listener.binding, *(one.binding for one in self._operators.values())}
        if self._grpc is not None:
            bindings.add(self._grpc.binding)
        local = Binding.NETWORK not in bindings
        self._common.allow_model_upload = self._allow_model_upload or local

    async def _load(self) -> bool:
        """Load the models; False if the server is to stop before that is done."""
        if not self._owns_runtime and not self.control.repositories:
            return True
        loading = _in_thread(self._start_models, "wherry-load")
        stopped = asyncio.ensure_future(self._stopping.wait())
        waiting: set[asyncio.Future[Any]] = {loading, stopped}
        started = time.monotonic()
        try:
            while not loading.done() and not stopped.done():
                await asyncio.wait(
                    waiting, timeout=PROGRESS_INTERVAL, return_when=asyncio.FIRST_COMPLETED
                )
                if not loading.done() and not stopped.done():
                    for name, reason in self.runtime.not_ready().items():
                        seconds = round(time.monotonic() - started)
                        log.info(f"still {reason}", extra={"model": name, "seconds": seconds})
        finally:
            stopped.cancel()
        if loading.done():
            loading.result()
            return True
        loading.add_done_callback(asyncio.Future.exception)  # that it ends so is no news to asyncio
        return False

    def _start_models(self) -> None:
        if self._owns_runtime:
            self.runtime.start(log_ready)
        self.control.start(log_ready)

    def _tell_ready(self) -> None:
        if self._is_the_program:
            _spare_the_collector()
        log.info("ready", extra={"url": self._url, "models": len(self.runtime.models())})
        if self._ready_fd is not None:
            # Whoever started us may be gone already; that is no reason not to serve.
            with contextlib.suppress(OSError):
                os.write(self._ready_fd, f"{self._url}\n".encode())
            self._close_ready_fd()
        self._ready.set_result(None)

    def _close_ready_fd(self) -> None:
        if self._ready_fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._ready_fd)
            self._ready_fd = None

    async def _end(self, listener: Listener) -> bool:
        ends_at = time.monotonic() + self.drain_timeout
        calls = 0 if self._grpc is None else self._grpc.calls
        if listener.connections or calls:
            log.info("draining", extra={"connections": listener.connections, "calls": calls})
        self.control.freeze()
        frontends = self._frontends(listener)
        last_call = min(LAST_CALL, self.drain_timeout)
        closing = {asyncio.create_task(frontend.drain(None, last_call)) for frontend in frontends}
        drained = not (await asyncio.wait(closing, timeout=self.drain_timeout))[1]
        if self._owns_runtime:
            left = max(0.0, ends_at - time.monotonic())
            loads = "loading" in self.runtime.not_ready().values()  # drained, all are "unloading"
            drained &= await _in_thread(lambda: self.runtime.drain(left), "wherry-drain")
            # Nothing runs any more, or it is not to be waited for: nor is a model that still loads.
            # Unloading has the rest of the time, and a little if there is none.
            left = max(UNLOADING, ends_at - time.monotonic())
            timeout = left if drained and not loads else 0.0
            await _in_thread(lambda: self.runtime.close(timeout), "wherry-close")
        # Every request of the runtime has its answer now, an error if need be.
        await asyncio.gather(*(frontend.end() for frontend in frontends))
        await asyncio.gather(*closing)
        await _in_thread(self.control.close, "wherry-close")
        await _in_thread(self._common.traces.close, "wherry-close")
        if not drained:
            log.error("not everything was answered", extra={"drain_timeout": self.drain_timeout})
        return drained


class AccessLog:
    """An application that says in one line what became of each request of another one.

    Health and metrics are left out: probes would drown the rest.
    """

    QUIET = ("/v2/health", "/metrics", "/health", "/livez", "/readyz", "/healthz", "/ping")

    def __init__(self, application: Callable[[Exchange], None]) -> None:
        self._application = application
        self._log = logging.getLogger("wherry.access")

    def __call__(self, exchange: Exchange) -> None:
        if exchange.request.path.startswith(self.QUIET):
            self._application(exchange)
        else:
            self._application(_LoggedExchange(exchange, self._log))


class _LoggedExchange(PassedOn):
    """Logs the end of the transport's exchange."""

    __slots__ = ("_log", "_started", "_status")

    def __init__(self, inner: Exchange, log: logging.Logger) -> None:
        super().__init__(inner)
        self._log = log
        self._started = time.monotonic()
        self._status = 0

    def respond(self, status: int, *args: Any, **kwargs: Any) -> None:
        self._inner.respond(status, *args, **kwargs)
        self._end(status)

    def start(self, status: int, **kwargs: Any) -> None:
        self._status = status
        self._inner.start(status, **kwargs)

    def finish(self) -> None:
        self._inner.finish()
        self._end(self._status)

    def _left(self) -> None:
        super()._left()
        self._end(499)

    def _end(self, status: int) -> None:
        if self._phase is LEFT:
            return  # the model's answer comes too late
        self._phase = LEFT
        request = self.request
        self._log.info(
            f"{request.method} {request.path}",
            extra={
                "status": status,
                "seconds": round(time.monotonic() - self._started, 6),
                "peer": request.peer,
                **({"key": request.caller} if request.caller else {}),
                **_trace_context(request.headers),
            },
        )


def _trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """The W3C trace that a request belongs to, if its client says so."""
    given = headers.get("traceparent", "")
    return {"traceparent": given} if _TRACEPARENT.fullmatch(given) else {}


class Asgi:
    """Models as an ASGI application: run it under any server, or mount it in another application.

        app = wherry.asgi(sentiment)                      # uvicorn module:app
        host = FastAPI(lifespan=app.lifespan); host.mount("/models", app)

    The models are loaded when the server starts the application's lifespan. A mounted application
    gets none, hence `lifespan` for the host to pass on.
    """

    def __init__(self, make_runtime: Callable[[], Runtime], **options: Any) -> None:
        self._make_runtime = make_runtime
        self._options = options
        self._limits: Limits = options.pop("limits", None) or Limits()
        self._drain_timeout: float = options.pop("drain_timeout", 30.0)
        self._max_queue_bytes: int | None = options.pop("max_queue_bytes", None)
        self._renew()

    def _renew(self) -> None:
        """A closed Runtime stays closed, but a host may start its lifespan again (tests do)."""
        self.runtime = self._make_runtime()
        self._application = HttpApp(
            self.runtime, max_body_bytes=self._limits.max_body_bytes, **self._options
        )
        self._app: AsgiApp = asgi_app(
            self._application, self._limits, startup=self.startup, shutdown=self.shutdown
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def startup(self) -> None:
        """Load the models; returns when they are ready, or raises."""
        await _in_thread(self._start, "wherry-load")

    def _start(self) -> None:
        self._application.admission.limit_bytes(self._queue_bytes())
        self.runtime.start(log_ready)

    def _queue_bytes(self) -> int:
        return _memory_plan(None, self._max_queue_bytes).max_queue_bytes

    async def shutdown(self) -> None:
        """Finish what was accepted, and unload."""
        runtime = self.runtime
        self._application.draining = True
        await _in_thread(lambda: runtime.drain(self._drain_timeout), "wherry-drain")
        await _in_thread(runtime.close, "wherry-close")
        self._renew()

    @contextlib.asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:
        """For a host application: `FastAPI(lifespan=app.lifespan)`."""
        await self.startup()
        try:
            yield
        finally:
            await self.shutdown()


def asgi(
    *models: Model | type[Model],
    isolation: str = "thread",
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    api_keys: Sequence[str] = (),
    max_in_flight: int | None = None,
    max_queue_bytes: int | None = None,
    limits: Limits | None = None,
    drain_timeout: float = 30.0,
) -> Asgi:
    """The models as an ASGI application, for uvicorn, hypercorn, or a mount in FastAPI."""
    return Asgi(
        lambda: _runtime_of(models, isolation, overrides),
        api_keys=tuple(api_keys),
        max_in_flight=max_in_flight,
        max_queue_bytes=max_queue_bytes,
        limits=limits,
        drain_timeout=drain_timeout,
    )


def _memory_plan(limits: Limits | None, queue_bytes: int | None) -> MemoryPlan:
    """The limits given, the others as the memory allows. Reads files: not for a loop."""
    memory = Machine().memory_limit_bytes()
    if limits is None:
        plan = memory_plan(memory, queue_bytes=queue_bytes)
    else:
        plan = memory_plan(
            memory,
            connections=limits.max_connections,
            body_bytes=limits.max_body_bytes,
            queue_bytes=queue_bytes,
            received_bytes=limits.max_received_bytes,
            unsent_bytes=limits.max_unsent_bytes,
            limits=limits,
        )
    if memory is not None and plan.full_bytes > memory:
        log.warning(
            "a full server would need more memory than there is",
            extra={
                "needed_bytes": plan.full_bytes,
                "memory_bytes": memory,
                "lower": "max_queue_bytes, max_body_size, max_connections",
            },
        )
    return plan


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _tls_context(
    files: Sequence[str | os.PathLike[str] | None], alpn: str = "http/1.1"
) -> ssl.SSLContext | None:
    certfile, keyfile, client_ca = files
    if certfile is None:
        return None
    try:
        return tls_context(certfile, keyfile, client_ca, alpn=alpn)
    except OSError as error:  # not there, or not what it should be; the error names no file
        named = ", ".join(str(file) for file in files if file is not None)
        raise ConfigError(f"TLS from {named}: {error.strerror or error}") from None


def _runtime_of(
    models: Sequence[Model | type[Model] | Runtime],
    isolation: str,
    overrides: Mapping[str, Mapping[str, Any]] | None,
) -> Runtime:
    if not models:
        raise ConfigError("a server needs at least one model, or a Runtime")
    if any(isinstance(model, Runtime) for model in models):
        (runtime,) = models if len(models) == 1 else (None,)
        if not isinstance(runtime, Runtime):
            raise ConfigError("give a server its models, or one Runtime that has them")
        return runtime
    made = [model() if isinstance(model, type) else model for model in models]
    return Runtime(*made, isolation=isolation, overrides=overrides)  # type: ignore[arg-type]


def _spare_the_collector() -> None:
    """What is loaded by now stays: the garbage collector need not look at it again and again.

    Requests leave no cycles behind, so that looking for some less often costs no memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run a blocking call in a thread of its own. A daemon: a model that never finishes loading
    must not keep a program alive that was told to stop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - carried over to the loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
