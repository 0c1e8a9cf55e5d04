"""How do requests join and leave a model that works in steps, in a thread or a worker process?

`join` and `leave` come from any thread and are told to the model between two steps. `progress`
is called by the serving thread, again and again: it returns when a step has been done.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from wherry.instances import messages
from wherry.instances.executable import Failure
from wherry.instances.life import Loadable
from wherry.instances.process import ProcessInstance
from wherry.instances.step_loop import Progress, Share, StepLoop
from wherry.instances.thread import ThreadInstance
from wherry.instances.transport import UNSENDABLE, Garbage, why_not_sent
from wherry.models.config import ModelConfig
from wherry.models.model import Device
from wherry.models.step_model import StepModel
from wherry.values.request import Columns


class StepInstance(Loadable, Protocol):
    """One loaded copy of a model that works in steps."""

    def join(self, key: int, columns: Columns) -> None: ...
    def leave(self, key: int) -> None: ...
    def close(self) -> None: ...
    def progress(self) -> Progress | None: ...


class StepThread(ThreadInstance):
    """A step model called by its serving thread."""

    def __init__(self, name: str, device: Device, model: StepModel, config: ModelConfig) -> None:
        super().__init__(name, device, model, config)
        self._loop = StepLoop(model, config)
        self._mail: deque[messages.Join | messages.Leave] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def load(self) -> None:
        self._loop.load(self.device)

    def join(self, key: int, columns: Columns) -> None:
        self._post(messages.Join(key, columns))

    def leave(self, key: int) -> None:
        self._post(messages.Leave(key))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def progress(self) -> Progress | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._mail or self._loop.active_requests)
            if self._closed:
                return None
            mail, self._mail = self._mail, deque()
        return self._loop.progress(mail)

    def _post(self, message: messages.Join | messages.Leave) -> None:
        with self._changed:
            self._mail.append(message)
            self._changed.notify()


class StepProcess(ProcessInstance):
    """A step model in a worker process."""

    def __init__(self, name: str, device: Device, model: StepModel, config: ModelConfig) -> None:
        super().__init__(name, device, model, config)
        self._mail: deque[messages.Join | messages.Leave] = deque()
        self._closed = False

    def join(self, key: int, columns: Columns) -> None:
        self._post(messages.Join(key, columns))

    def leave(self, key: int) -> None:
        self._post(messages.Leave(key))

    def close(self) -> None:
        self._closed = True
        self._ring()

    def progress(self) -> Progress | None:
        assert self._worker is not None
        connection = self._worker.connection
        try:
            while not self._closed:
                refused = self._deliver_mail()
                if refused:
                    return Progress(refused)
                if connection.readable() or self._worker.park():
                    return self._received(connection.receive())
        except (EOFError, OSError, Garbage) as error:
            raise self._died(error) from None
        return None

    def _post(self, message: messages.Join | messages.Leave) -> None:
        self._mail.append(message)
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._bell is not None:
                self._bell.ring()

    def _deliver_mail(self) -> list[Share]:
        """Send what was posted; the ends of those that cannot be sent."""
        assert self._worker is not None
        refused: list[Share] = []
        while self._mail:
            message = self._mail.popleft()
            try:
                self._worker.connection.send(message)
            except UNSENDABLE as error:
                assert isinstance(message, messages.Join)
                reason = why_not_sent(message.columns) or str(error)
                text = f"model {self._config.name!r}: {reason}"
                refused.append(Share(message.key, failure=Failure("InvalidRequest", text)))
        return refused

    def _received(self, message: object) -> Progress:
        if not isinstance(message, messages.Stepped):
            raise Garbage(f"{type(message).__name__} instead of a Stepped")
        shares = [
            Share(
                share.key,
                [self._restored(columns) for columns in share.responses],
                share.done,
                share.failed.failure() if share.failed else None,
            )
            for share in message.shares
        ]
        return Progress(shares, message.active_requests, message.step_ns, message.gauges)
