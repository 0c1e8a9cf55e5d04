"""How does a server begin, become ready, and end without losing a request?

start     the address is taken first: a port in use is known before any model is loaded
load      in a thread, so that `live` answers at once and `ready` reports what is loading
ready     every model is loaded and warm; now --ready-fd gets the URL
drain     not ready, accept no more, answer what was accepted
stop      what is left after `drain_timeout` fails with 503; models are unloaded
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar, Unpack

from wherry.core.api import (
    Isolation,
    Model,
    ModelSettings,
    Runtime,
    in_thread,
    new_event_loop,
)
from wherry.server.connections.limits import MemoryPlan
from wherry.server.fronts.owner import RowsOwner
from wherry.server.keywords import ServerOptions
from wherry.server.listeners import Listeners
from wherry.server.options import Options, from_keywords
from wherry.server.parts import (
    Applications,
    applications,
    plan_for,
    runtime_of,
)
from wherry.server.pipes import ReadyPipe, StopPipe
from wherry.triton.api import ModelControl, log_ready

log = logging.getLogger("wherry")

T = TypeVar("T")

#: What `Server.run` returns and the command line exits with.
DRAINED = 0
NOT_DRAINED = 1
INTERRUPTED = 128 + signal.SIGINT

#: Seconds for the models to unload, however long the last requests took.
UNLOADING: Final = 10.0
#: Seconds for which a thread is waited for at the start and the end, where the system has none.
THREAD_START_TIMEOUT: Final = 2.0


class StartLog:
    """Logs what a start waits for. Its methods run in the server's event loop."""

    #: Seconds from one call of `loading` to the next.
    interval = 10.0

    def loading(self, waiting: Mapping[str, str], seconds: float) -> None:
        """`waiting`: why each model that is not ready is not."""
        for name, reason in waiting.items():
            log.info(f"still {reason}", extra={"model": name, "seconds": round(seconds)})

    def loaded(self) -> None:
        """The load has ended: every model is ready, or one failed, or the server is to stop."""

    def ready(self, server: Server) -> None:
        """It serves from now on."""


class Server:
    """Serve models over HTTP and, with `grpc_port`, gRPC.

    Inside a program, in a thread (`port=0` takes a free port):

        with wherry.Server(sentiment, port=0) as server:
            print(server.url)

    As the whole program: `sys.exit(wherry.Server(sentiment).run())`, until SIGTERM or Ctrl-C.

    Pass models, or one Runtime: if its models are loaded already, closing it is up to you. The
    default address is 127.0.0.1:8000. `options` are the server's settings, or whole groups of
    server/options.py. Raises TypeError for an unknown name, ConfigError for an invalid value.
    """

    def __init__(
        self,
        *models: Model | type[Model] | Runtime,
        host: str | None = None,
        port: int | None = None,
        grpc_port: int | None = None,
        isolation: Isolation = "thread",
        overrides: Mapping[str, ModelSettings] | None = None,
        control: ModelControl | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        address = {"host": host, "port": port, "grpc_port": grpc_port}
        settings = from_keywords({**options, **{k: v for k, v in address.items() if v is not None}})
        self.runtime = runtime_of(models, isolation, overrides)
        #: Loads and unloads models; its runtime must be this one.
        self.control = control or ModelControl(self.runtime)
        self.drain_timeout = settings.life.drain_timeout
        self.start_log = StartLog()
        self._owns_runtime = not self.runtime.models()
        #: What one client may cost.
        self.limits = (plan := plan_for(settings.capacity)).limits
        #: The way in of fronts, if it has some.
        self._rows: RowsOwner | None = None
        self._applications, self._listeners = self._make_listeners(settings, plan)
        self._ready_pipe = ReadyPipe(settings.life.ready_fd)
        self._stop_pipe = StopPipe(settings.life.stop_fd)
        self._ready: Future[None] = Future()
        self._is_the_program = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set once `_loop` is known, or will never be.
        self._begun = threading.Event()
        self._stopping = asyncio.Event()
        self._drained = True

    def _make_listeners(self, options: Options, plan: MemoryPlan) -> tuple[Applications, Listeners]:
        made = applications(self.control, options, plan)
        if options.listen.fronts:
            self._rows = RowsOwner(self.runtime, made.common, made.http, made.grpc)
        return made, Listeners(made, options, plan, rows=self._rows)

    def __repr__(self) -> str:
        return f"<Server {self.url or 'not started'}: {len(self.runtime.models())} models>"

    @property
    def url(self) -> str:
        """URL for clients; empty without HTTP, and before the server listens."""
        return self._listeners.urls.get("http", "")

    @property
    def grpc_url(self) -> str:
        """host:port for gRPC clients; empty without gRPC, and before it listens."""
        return self._listeners.grpc_address

    @property
    def management_url(self) -> str:
        """URL of `management_port`; empty without one."""
        return self._listeners.urls.get("management", "")

    @property
    def metrics_url(self) -> str:
        """URL of `metrics_port`; empty without one."""
        return self._listeners.urls.get("metrics", "")

    @property
    def agent_address(self) -> str:
        """host:port for HAProxy's agent checks; empty without `agent_port`."""
        return self._listeners.urls.get("agent", "")

    # In a program of your own

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> Server:
        """Serve in a thread. Blocks until every model is ready. Raises LoadFailed, or OSError if
        the address is taken."""
        self._thread = threading.Thread(target=self._run_in_thread, name="wherry-server")
        try:
            self._thread.start()
            self._ready.result()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> bool:
        """Drain and stop. Blocks; safe from any thread. Returns False if requests were cut off."""
        thread = self._thread
        if thread is not None and thread.ident is not None:
            self._begun.wait()
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
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
                raise  # start() has returned: threading prints it
            self._ready.set_exception(error)
        else:
            if not self._ready.done():
                self._ready.set_exception(RuntimeError("the server was stopped as it started"))
        finally:
            self._begun.set()

    # As the program

    def run(self) -> int:
        """Serve until SIGTERM or SIGHUP (returns 0, or 1 if requests were cut off) or Ctrl-C (130).

        Main thread only. A second signal ends the process at once. Raises LoadFailed or
        ConfigError if a model cannot be loaded, OSError if the address is taken.
        """
        _refuse_elsewhere()
        if hasattr(os, "register_at_fork"):
            _keep_signals_at_forks()
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
            self._log("stopping", signal=signal.Signals(number).name)
            self._stopping.set()

        for number in _unblocked(self._signals()):
            try:
                loop.add_signal_handler(number, on_signal, number)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda n, _: loop.call_soon_threadsafe(on_signal, n))
        drained = await self._live()
        if not drained:
            return NOT_DRAINED
        return INTERRUPTED if received == [signal.SIGINT] else DRAINED

    def _signals(self) -> list[int]:
        return ending_signals()

    def _log(self, event: str, **fields: object) -> None:
        log.info(event, extra=fields)

    def _end_now(self, number: int) -> None:
        """End the process at a second signal, without answering open requests."""
        log.warning("stopped before everything was answered")
        self._listeners.kill()
        for loaded in self.runtime.models():
            for instance in loaded.runner.instances:
                instance.abort("the server was stopped")
        for handler in logging.getLogger().handlers:
            handler.flush()
        # Not sys.exit(): that waits for threads, which may never end.
        os._exit(128 + number)

    # A server's life

    async def _live(self) -> bool:
        """Run the whole life of the server. False if something was not finished in time."""
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        self._ready_pipe.keep()
        self._stop_pipe.watch(self._loop, self._stopping.set)
        if self._owns_runtime:
            self.runtime.ports.workers.use(self.runtime.port())
        if self.control.repositories:
            self.runtime.expect("*")
        listeners, common = self._listeners, self._applications.common
        common.loop_stall.start(self._loop, self._is_idle)
        self._applications.http.start()
        if self._rows is not None:
            self._rows.start()
        try:
            await listeners.start()
            self._applications.watched.start()
            try:
                # Sending a model's files is running code: without a key from this machine only.
                common.allow_model_upload |= listeners.local
                if await self._load():
                    await listeners.serve()
                    self._report_ready()
                    await self._stopping.wait()
            finally:
                drained = await self._end()
            self._log("stopped")
            return drained
        finally:
            common.loop_stall.stop()
            self._applications.http.stop()
            self._applications.watched.close()
            self._stop_pipe.close()
            self._ready_pipe.close()

    def _is_idle(self) -> bool:
        listeners, rows = self._listeners, self._rows
        return not (listeners.callers or listeners.calls or (rows and rows.requests))

    async def _load(self) -> bool:
        """Load the models; False if the server is to stop before that is done."""
        if not self._owns_runtime and not self.control.repositories:
            return True
        loading = in_thread(self._start_models, "wherry-load", start_timeout=THREAD_START_TIMEOUT)
        stopped = asyncio.ensure_future(self._stopping.wait())
        waiting: set[asyncio.Future[Any]] = {loading, stopped}
        started = time.monotonic()
        try:
            while not loading.done() and not stopped.done():
                await asyncio.wait(
                    waiting,
                    timeout=self.start_log.interval,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not loading.done() and not stopped.done():
                    self.start_log.loading(self.control.not_ready(), time.monotonic() - started)
        finally:
            self.start_log.loaded()
            stopped.cancel()
        if loading.done():
            loading.result()
            return True
        loading.add_done_callback(_read)
        return False

    def _start_models(self) -> None:
        if self._owns_runtime:
            self.runtime.start(log_ready)
        self.control.start(log_ready)

    def _report_ready(self) -> None:
        if self._is_the_program:
            _spare_the_collector()
        self._log("ready", url=(url := self._listeners.url), models=len(self.runtime.models()))
        self.start_log.ready(self)
        self._ready_pipe.report(url, to_systemd=self._is_the_program)
        self._ready.set_result(None)

    async def _end(self) -> bool:
        """Drain and stop. False if something was not finished in time."""
        self._applications.http.drain()
        if self._rows is not None:
            self._rows.drain()
            if self._rows.requests:
                self._log("draining", requests=self._rows.requests)
        ends_at = time.monotonic() + self.drain_timeout
        listeners = self._listeners
        if listeners.connections or listeners.calls:
            self._log("draining", connections=listeners.connections, calls=listeners.calls)
        self.control.freeze()
        drained = await listeners.drain(self.drain_timeout)
        if self._owns_runtime:
            drained = await _close(self.runtime, drained, ends_at)
        # Every request has its answer by now, which may be an error.
        await listeners.end()
        await _at_the_end(self.control.close, None)
        await _at_the_end(self._applications.common.traces.close, None)
        if not drained:
            log.error("not everything was answered", extra={"drain_timeout": self.drain_timeout})
        return drained


def _refuse_elsewhere() -> None:
    """RuntimeError where no signals come to, or an event loop runs already, as in a notebook."""
    if threading.current_thread() is not threading.main_thread():
        where = "in a thread that is not the main one"
    elif asyncio._get_running_loop() is not None:
        where = "where an event loop runs already, as in a notebook"
    else:
        return
    raise RuntimeError(
        f"Server.run() cannot wait for signals {where}: use `with Server(...) as server:`, or"
        " start() and stop(), which serve in a thread"
    )


def _keep_signals_at_forks() -> None:
    """The signals of a child that a model forks end it. Else they would come to the server's loop,
    whose descriptor it has, and stop the server."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}

    def in_child() -> None:
        if signal.set_wakeup_fd(-1) != -1:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, numbers),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers),
        after_in_child=in_child,
    )


def ending_signals() -> list[int]:
    """Signals that end a program, as far as they are not ignored."""
    numbers: list[int] = [signal.SIGTERM, signal.SIGINT]
    # The terminal was closed; nohup ignores that.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def _unblocked(numbers: list[int]) -> list[int]:
    """The same, which the thread that has started us may have blocked: that is handed down."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return numbers


async def _close(runtime: Runtime, drained: bool, ends_at: float) -> bool:
    """Finish what runs, and unload. False if something was not finished by `ends_at`, or not
    `drained` before."""
    left = max(0.0, ends_at - time.monotonic())
    # Read before the drain: after it all are "unloading".
    loads = "loading" in runtime.not_ready().values()
    drained &= await _at_the_end(lambda: runtime.drain(left), False)
    # Wait for unloading only if nothing runs or loads any more; for UNLOADING seconds at least.
    left = max(UNLOADING, ends_at - time.monotonic())
    timeout = left if drained and not loads else 0.0
    await _at_the_end(lambda: runtime.close(timeout), None)
    return drained


async def _at_the_end(call: Callable[[], T], otherwise: T) -> T:
    """Run it in a thread; leave it if the system has none, and end anyway."""
    try:
        return await in_thread(call, "wherry-close", start_timeout=THREAD_START_TIMEOUT)
    except RuntimeError as error:
        log.error("a part of the end is left out", extra={"why": str(error)})
        return otherwise


def _read(loading: asyncio.Future[Any]) -> None:
    """Read the error of a load that is of no interest any more, or asyncio warns of it."""
    if not loading.cancelled():
        loading.exception()


def _spare_the_collector() -> None:
    """Have the garbage collector leave out all objects that exist by now, which stay, and run less
    often: requests leave no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
