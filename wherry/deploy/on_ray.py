"""How are owners kept as actors of Ray?

Ray chooses the machine, by the resources that an owner needs, and tells of its end. Rows do not go
through Ray: fronts connect to the owners themselves. Ray is imported where it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from wherry.deploy.owner_process import ENDING, SERVE, OwnerProcess, Settings
from wherry.deploy.pooled_server import PooledServer, new_token
from wherry.deploy.replicas import OwnerAddress, OwnerNotStarted
from wherry.deploy.scaling import ReplicaBounds, Scaling
from wherry.server.options import Life
from wherry.values.errors import ConfigError

#: The options of an actor that say what it needs.
RESOURCES: Final = frozenset({
    "num_cpus", "num_gpus", "memory", "accelerator_type", "resources", "label_selector",
    "scheduling_strategy", "runtime_env",
})  # fmt: skip
#: Seconds for an actor to answer that is told to end its owner at once.
AT_ONCE: Final = 5.0
#: Calls of one actor at a time: one waits for the owner's end, one stops it.
CALLS: Final = 4


class RayEngine:
    """An OwnerEngine whose owners are actors of Ray: `wherry serve TARGETS` with a settings file of
    these `settings`. Targets are found from an actor's working folder.

    `address` is that of `ray.init`; without one RAY_ADDRESS says it, else Ray is started on this
    machine. A Ray that the program has connected to already is used as it is. `resources` are
    options of a Ray actor: num_cpus (1 if not given), num_gpus, accelerator_type, resources,
    memory, runtime_env, label_selector, scheduling_strategy ("SPREAD"). ConfigError without Ray.
    """

    def __init__(
        self,
        targets: Sequence[str],
        settings: Settings,
        *,
        address: str | None = None,
        resources: Mapping[str, Any] | None = None,
        drain_timeout: float = 30.0,
        command: Sequence[str] = SERVE,
    ) -> None:
        self._address = address
        self._resources = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(resources or {})}
        self._drain_timeout = drain_timeout
        self._owner = (tuple(targets), settings, drain_timeout, tuple(command))
        self._ray = _ray()
        # One thread for as long as the engine: what Ray starts ends with the thread that did it.
        self._thread = ThreadPoolExecutor(1, "wherry-ray")
        self._connected = False
        #: Ray runs on this machine for this engine alone.
        self._is_local = False
        self._actors: dict[int, Any] = {}

    async def start(self, number: int, placed: Callable[[], None]) -> OwnerAddress:
        if not self._connected:
            await self._call(self._connect)
            _take_back_signals()
        actor = (
            self._ray.remote(OwnerActor)
            .options(max_restarts=0, max_task_retries=0, max_concurrency=CALLS, **self._resources)
            .remote(*self._owner, "127.0.0.1" if self._is_local else None)
        )
        self._actors[number] = actor
        try:
            await _answer(actor.is_placed.remote())
            placed()
            address: OwnerAddress = await _answer(actor.start.remote())
        except self._ray.exceptions.RayActorError as error:
            raise OwnerNotStarted(_first_line(error)) from None
        return address

    async def ended(self, number: int) -> str:
        try:
            how: str = await _answer(self._actors[number].wait.remote())
        except self._ray.exceptions.RayError as error:
            return _first_line(error)
        return how

    async def stop(self, number: int, *, at_once: bool) -> None:
        actor = self._actors.pop(number, None)
        if actor is None:
            return
        limit = AT_ONCE if at_once else self._drain_timeout + ENDING + AT_ONCE
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(limit):
                await _answer(actor.stop.remote(at_once))
        await self._call(self._ray.kill, actor)

    async def close(self) -> None:
        """Leave Ray; end it if it was started here."""
        if self._connected:
            await self._call(self._ray.shutdown)
        self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _connect(self) -> None:
        if self._connected or self._ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS")
        self._is_local = address is None
        if self._is_local:
            self._ray.init(address="local", include_dashboard=False)
        else:
            self._ray.init(address=address)
        self._connected = True


class Ray(PooledServer):
    """A front in this process whose owners are actors of Ray. Use it as a `wherry.Server`.

        with wherry.deploy.Ray("app.py", replicas="1..8", num_gpus=1) as server:
            print(server.url)

    `targets` are those of `wherry serve`, found from an actor's working folder. `replicas` is a
    number or a range, in which a row should not have to wait for more than `target_wait` seconds.
    `address` is that of `ray.init`; without one RAY_ADDRESS says it, else Ray is started on this
    machine. `models` are settings by model name. Other keywords are what one owner needs (those in
    RESOURCES), or options of `wherry.Server`, for the front.
    """

    def __init__(
        self,
        *targets: str,
        replicas: str | int = 1,
        target_wait: float = 0.05,
        address: str | None = None,
        models: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        token = options.pop("cluster_token", None) or new_token()
        resources = {name: options.pop(name) for name in RESOURCES & set(options)}
        server = {"cluster_token": token, "api_key": list(options.get("api_keys", ()))}
        engine = RayEngine(
            targets,
            {"server": server, "models": models or {}},
            address=address,
            resources=resources,
            drain_timeout=options.get("drain_timeout", Life().drain_timeout),
        )
        scaling = Scaling(ReplicaBounds.parse(str(replicas)), target=target_wait)
        super().__init__(engine, scaling, cluster_token=token, **options)


class OwnerActor:
    """Runs one owner as a child process, on the machine that Ray has chosen. It ends with this
    actor, and this actor is not started again: the plan replaces it."""

    def __init__(
        self,
        targets: Sequence[str],
        settings: Settings,
        drain_timeout: float,
        command: Sequence[str],
        host: str | None,
    ) -> None:
        """`host` is the address to listen on; None: that of the node."""
        import ray

        with contextlib.suppress(PermissionError):  # only root may, where the node was started so
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._process = OwnerProcess(
            targets,
            settings,
            host=host or ray.util.get_node_ip_address(),
            drain_timeout=drain_timeout,
            command=command,
        )

    def is_placed(self) -> bool:
        """Answer, which shows that it has a machine."""
        return True

    def start(self) -> OwnerAddress:
        return self._process.start()

    def wait(self) -> str:
        return self._process.wait()

    def stop(self, at_once: bool) -> None:
        self._process.stop(at_once=at_once)


def _ray() -> Any:
    """The module, as far as possible without what it changes for the whole process."""
    # Ray runs workers at nice 15: beside anything else on the machine they would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # lines of several owners are alike
    make_record = logging.getLogRecordFactory()
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed: pip install 'wherry[ray]'") from None
    logging.setLogRecordFactory(make_record)  # Ray's adds a field to every line
    return ray


async def _answer(reference: Any) -> Any:
    """What the call of an actor returns, in any event loop. A cancelled call goes on: Ray ends
    the process if it finds the future of a call settled by another."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(done: Future[Any]) -> None:
        if answer.done():
            return
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)

    def tell(done: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
            loop.call_soon_threadsafe(settle, done)

    reference.future().add_done_callback(tell)
    return await answer


def _take_back_signals() -> None:
    """Set the handlers again that the program had: Ray prints stacks first. Main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
