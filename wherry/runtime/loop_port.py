"""How does one event loop reach the runtime, with one wake-up for many requests?"""

from __future__ import annotations

import asyncio
import contextlib
import select
import threading
from collections.abc import Callable

from wherry.runtime.loaded_model import LoadedModel
from wherry.values.request import InferRequest
from wherry.workers.loop import LoopCalls, WorkerLoop


class LoopPort(LoopCalls):
    """Connects one event loop with the runtime.

    Requests of one turn of the loop are submitted together at its end, so that an idle
    instance gets all of them as one batch and not the first one alone. Outcomes from other threads
    share one wake-up of the loop. The loop can also read the answers of Python models itself (see
    Reader).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._requests: dict[LoadedModel, list[InferRequest]] = {}
        #: Has the sockets that the loop reads for instances: to the loop it is one file, and any
        #: thread may register in it. Where there is no epoll, the loop reads none.
        self._epoll: select.epoll | None = None
        self._turns: dict[int, Callable[[], None]] = {}

    def submit(self, model: LoadedModel, request: InferRequest) -> None:
        """Submit a request with the others of this turn. In the loop's thread."""
        request.reader = self
        requests = self._requests
        if model in requests:
            requests[model].append(request)
            return
        if not requests:
            self.loop.call_soon(self._flush)
        requests[model] = [request]

    def watch(self, file: int, turn: Callable[[], None]) -> bool:
        epoll = self._epoll
        if epoll is None:
            if hasattr(select, "epoll"):
                self.call(LoopPort._open, self)
            return False
        self._turns[file] = turn
        try:
            epoll.register(file, select.EPOLLIN)
        except ValueError:  # it has just been closed
            del self._turns[file]
            return False
        return True

    def forget(self, file: int) -> None:
        epoll = self._epoll
        if self._turns.pop(file, None) is not None and epoll is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                epoll.unregister(file)

    def close(self) -> None:
        """Read nothing any more. Any thread."""
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            try:
                self.loop.call_soon_threadsafe(self._end, epoll)
            except RuntimeError:  # the loop is closed
                epoll.close()

    def _open(self) -> None:
        if self._epoll is None:
            self._epoll = select.epoll()
            self.loop.add_reader(self._epoll.fileno(), self._read, self._epoll)

    def _end(self, epoll: select.epoll) -> None:
        self.loop.remove_reader(epoll.fileno())
        epoll.close()

    def _read(self, epoll: select.epoll) -> None:
        self._awake = True  # what is answered in here needs no wake-up
        try:
            for file, _ in epoll.poll(0):
                turn = self._turns.get(file)
                if turn is not None:
                    turn()
        finally:
            self._drain()

    def _flush(self) -> None:
        requests, self._requests = self._requests, {}
        for model, waiting in requests.items():
            model.submit(waiting)


class LoopPorts:
    """The ports of the event loops that use one runtime. Any thread."""

    def __init__(self) -> None:
        #: The loop that owns the sockets of worker processes: one of these, or another.
        self.workers = WorkerLoop()
        self._lock = threading.Lock()
        #: Replaced, not changed: it is read without the lock.
        self._ports: dict[asyncio.AbstractEventLoop, LoopPort] = {}

    def here(self) -> LoopPort:
        """The running event loop's, which is made the first time."""
        loop = asyncio.get_running_loop()
        port = self._ports.get(loop)
        if port is None:
            port = LoopPort(loop)
            with self._lock:  # another loop's thread may be here as well
                ended = [other for other in self._ports if other.is_closed()]
                for other in ended:
                    self._ports[other].close()
                left = {other: p for other, p in self._ports.items() if other not in ended}
                self._ports = {**left, loop: port}
        return port

    def close(self) -> None:
        for port in self._ports.values():
            port.close()
        self.workers.close()
