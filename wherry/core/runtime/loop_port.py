"""How does one event loop reach the runtime, with one wake-up for many requests?"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.values.errors import WherryError
from wherry.core.values.request import InferRequest
from wherry.core.workers.loop import LoopCalls, WorkerLoop

log = logging.getLogger("wherry")


class LoopPort(LoopCalls):
    """Connects one event loop with the runtime.

    Requests of one turn of the loop are submitted together at its end, so that an idle
    instance gets all of them as one batch and not the first one alone; or before a worker's answer
    is read, so that they can be in the batch that follows. Outcomes from other threads share one
    wake-up of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._requests: dict[LoadedModel, list[InferRequest]] = {}

    def submit(self, model: LoadedModel, request: InferRequest) -> None:
        """Submit a request with the others of this turn. In the loop's thread."""
        requests = self._requests
        if model in requests:
            requests[model].append(request)
            return
        if not requests:
            self.loop.call_soon(self._flush)
        requests[model] = [request]

    def submit_all(self, model: LoadedModel, requests: list[InferRequest]) -> None:
        """`submit` all of them. The list is the port's from now on."""
        if model in self._requests:
            self._requests[model] += requests
            return
        if not self._requests:
            self.loop.call_soon(self._flush)
        self._requests[model] = requests

    def add_reader(self, file: int, read: Callable[[], object]) -> None:
        """Call `read`, which may end a batch, whenever `file` can be read."""
        self.loop.add_reader(file, self._turn_after_requests, read)

    def _turn_after_requests(self, read: Callable[[], object]) -> None:
        if self._requests:
            self._flush()
        self._turn(read)

    def without_flush(self) -> LoopReads:
        """The same loop for files that bring requests: what is read from several of them in one
        turn is submitted together."""
        return LoopReads(self)

    def _flush(self) -> None:
        requests, self._requests = self._requests, {}
        for model, waiting in requests.items():
            try:
                model.submit(waiting)
            except Exception:  # our own bug: no caller must wait for ever
                log.exception("internal error", extra={"model": model.name})
                for request in waiting:
                    request.reply.settle(WherryError("internal error; see the server's log"))


class LoopReads:
    """The loop of a port, whose readers do not submit the requests of their turn before they
    read."""

    def __init__(self, port: LoopPort) -> None:
        self._port = port
        self.call = port.call
        self.remove_reader = port.remove_reader
        self.add_writer = port.add_writer
        self.remove_writer = port.remove_writer

    def add_reader(self, file: int, read: Callable[[], object]) -> None:
        LoopCalls.add_reader(self._port, file, read)


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
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "ainfer and astream need a running asyncio event loop: call infer or stream"
                " instead; under trio in a thread (trio.to_thread.run_sync)"
            ) from None
        port = self._ports.get(loop)
        if port is None:
            port = LoopPort(loop)
            with self._lock:  # another loop's thread may be here as well
                left = {other: p for other, p in self._ports.items() if not other.is_closed()}
                self._ports = {**left, loop: port}
        return port

    def close(self) -> None:
        self.workers.close()
