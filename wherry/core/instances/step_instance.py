"""How do requests join and leave a model that works in steps, in a thread or a worker process?

`join` and `leave` come from any thread and reach the model between two steps.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from wherry.core.instances import worker_protocol
from wherry.core.instances.device_use import allocated_bytes, is_used
from wherry.core.instances.instance import Loadable
from wherry.core.instances.model_worker import WorkerInstance
from wherry.core.instances.process import are_large
from wherry.core.instances.step_loop import StepLoop
from wherry.core.instances.thread import lost_in_thread
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.models.step_model import StepModel
from wherry.core.values.execution import Failure
from wherry.core.values.request import Columns
from wherry.core.workers.encoding import UNSENDABLE, Garbage, why_not_sent


class StepInstance(Loadable):
    """An instance of a model that works in steps."""

    #: Called after each step, by one thread at a time. Set before a request joins: the loop of a
    #: worker's sockets does not wait for `serve`.
    hand_out: Callable[[StepInstance, worker_protocol.Stepped], None]

    @abstractmethod
    def join(self, key: int, columns: Columns) -> None: ...

    @abstractmethod
    def leave(self, key: int) -> None: ...


class StepThread(StepInstance):
    """A step model called by the thread that serves it."""

    def __init__(self, name: str, device: Device, model: StepModel, config: ModelConfig) -> None:
        super().__init__(name, device)
        self._loop = StepLoop(model, config)
        self._mail: deque[worker_protocol.Join | worker_protocol.Leave] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def load(self) -> None:
        before = allocated_bytes(self.device)
        self._loop.load(self.device)
        self.uses_device = is_used(self.device, before)

    def join(self, key: int, columns: Columns) -> None:
        self._post(worker_protocol.Join(key, columns))

    def leave(self, key: int) -> None:
        self._post(worker_protocol.Leave(key))

    def stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def to_host(self) -> bool:
        return self._loop.model.to_host()

    def to_device(self) -> None:
        self._loop.model.to_device(self.device)

    def serve(self) -> None:
        self.hand_out(self, self._loop.progress(()))  # its gauges, before the first request
        while (mail := self._next_mail()) is not None:
            self.hand_out(self, self._loop.progress(mail))

    def unload(self) -> None:
        try:
            self._loop.unload()
        finally:
            self._loop.model.give_back()

    def not_ready_reason(self) -> str:
        return lost_in_thread(self._loop.broken_device)

    def _next_mail(self) -> deque[worker_protocol.Join | worker_protocol.Leave] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._mail or self._loop.active_requests)
            if self._closed:
                return None
            mail, self._mail = self._mail, deque()
        return mail

    def _post(self, message: worker_protocol.Join | worker_protocol.Leave) -> None:
        with self._changed:
            self._mail.append(message)
            self._changed.notify()


class StepProcess(WorkerInstance, StepInstance):
    """A step model in a worker process. Each step is handed out in the loop of its sockets."""

    def join(self, key: int, columns: Columns) -> None:
        self.worker.post(self._send, worker_protocol.Join(key, columns))

    def leave(self, key: int) -> None:
        self.worker.post(self._send, worker_protocol.Leave(key))

    # The loop

    def _send(self, message: worker_protocol.Join | worker_protocol.Leave) -> None:
        large = isinstance(message, worker_protocol.Join) and are_large([message.columns])
        self.worker.link.add(message, large=large)
        self.worker.link.write()

    def _refused(self, join: Any, error: Exception) -> None:
        assert isinstance(join, worker_protocol.Join)
        reason = why_not_sent(join.columns) or str(error)
        kind = "InvalidRequest" if isinstance(error, UNSENDABLE) else "ModelFailed"
        failure = Failure(kind, f"model {self._config.name!r}: {reason}")
        share = worker_protocol.Share(join.key, failure=failure)
        self.hand_out(self, worker_protocol.Stepped([share]))

    def _receive(self, arrived: list[Any]) -> None:
        for message in arrived:
            if isinstance(message, worker_protocol.Stepped):
                self.hand_out(self, message)
            elif isinstance(message, worker_protocol.Moved):
                self.worker.moved(message)
            else:
                raise Garbage(f"{type(message).__name__} instead of a Stepped")
