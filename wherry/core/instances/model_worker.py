"""How does a worker process load the model of one instance?"""

from __future__ import annotations

import logging
import os
import socket
import sys
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from wherry.core.instances import worker_protocol
from wherry.core.instances.instance import Loadable
from wherry.core.instances.instance_slots import shortage
from wherry.core.instances.linked_worker import LinkedWorker
from wherry.core.instances.source import refuse_while_importing, sent, source_of
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.values.errors import ConfigError, LoadFailed, WorkerDied
from wherry.core.workers.encoding import UNSENDABLE, Garbage
from wherry.core.workers.loop import LoopCalls
from wherry.core.workers.message_socket import MessageSocket
from wherry.core.workers.process import WorkerProcess, start_worker
from wherry.core.workers.python_path import for_children
from wherry.core.workers.shared_memory import SLAB_BYTES, Slab, memory_file
from wherry.core.workers.shared_process import ProcessShare, SharedWorker


class ModelWorker(LinkedWorker):
    """A worker process with a model, for one instance; `shared` starts it for instances that share
    one."""

    def __init__(
        self,
        name: str,
        device: Device,
        model: Model,
        config: ModelConfig,
        loop: Callable[[], LoopCalls],
        *,
        receive: Callable[[list[Any]], None],
        refused: Callable[[Any, Exception], None],
        shared: SharedWorker | None = None,
    ) -> None:
        super().__init__(
            name,
            loop,
            receive=receive,
            refused=refused,
            stop_message=worker_protocol.Stop(),
            unload_timeout=config.unload_timeout,
        )
        self._instance = name
        self._device = device
        self._model = model
        self._config = config
        self._shared = shared
        #: A caller waits for its answer.
        self._asleep = False
        #: The error of moving its weights, or "", once that is done.
        self._moves: Future[str] = Future()

    # Any thread

    def call(self, message: msgspec.Struct, interrupted: Callable[[], None]) -> Any:
        """Send a message in this very thread and wait for its answer, if the loop has lent the
        sockets. None: it has not, or the worker has ended; then the loop knows that.

        Raises UNSENDABLE. `interrupted()` is called if Ctrl-C ends the wait: the answer comes to
        `receive`.
        """
        sockets = self.link.acquire()
        if sockets is None:
            return None
        assert isinstance(sockets, MessageSocket)
        error: Exception | None = None
        unanswered = False
        try:
            sockets.add(message, slab=True)
            unanswered = True
            sockets.flush()
            answer = sockets.receive()
            unanswered = False
        except Exception as failed:
            if unanswered:
                error = failed
            elif isinstance(failed, UNSENDABLE):
                raise
            return None  # the loop finds, and reports, what this process is short of
        except BaseException:
            if unanswered:
                if not self._asleep:  # it may have been sent, or read, by half
                    self.kill()
                interrupted()
            raise
        finally:
            self._asleep = False
            self.link.release(error, unanswered=unanswered)
        return answer

    def to_host(self) -> bool:
        """As that of an instance; TimeoutError after `unload_timeout` seconds."""
        self._move(worker_protocol.Move(to_host=True), self._unload_timeout)
        return True

    def to_device(self) -> None:
        self._move(worker_protocol.Move(to_host=False), None)

    def _move(self, message: worker_protocol.Move, timeout: float | None) -> None:
        self._moves = Future()
        self.do(self._send_move, message)
        if error := self._moves.result(timeout):
            raise LoadFailed(f"its weights cannot be moved: {error}")

    def _send_move(self, message: worker_protocol.Move) -> None:
        if self.is_linked:
            self.link.send(message)
        else:
            self._moves.set_result("its worker has ended")

    def moved(self, message: worker_protocol.Moved) -> None:
        """The worker has carried out a `Move`. In the loop."""
        self._moves.set_result(message.error)

    def _ended(self, error: Exception, read: bool) -> None:
        super()._ended(error, read)
        if not self._moves.done():
            self._moves.set_result("its worker has ended")

    def _wait_in_caller(self, file: int, events: int) -> None:
        process = self._process
        if process is None:
            raise EOFError
        self._asleep = True
        process.wait_in_caller(file, events)
        self._asleep = False

    # The instance's thread

    def load(self) -> bool:
        """Start the process and have it load the model. Does it use its device? Raises LoadFailed,
        WorkerDied, and OSError for what this process is short of."""
        name = self._config.name
        if sys.platform == "win32":
            raise ConfigError(
                f"model {name!r}: worker processes need a Unix system; use isolation='thread'"
            )
        refuse_while_importing(name)
        start = _start_message(self._model, self._config, self._device)
        while True:
            try:
                return self._load(start)
            except WorkerDied as died:
                if self._aborted or (died.alone and not died.innocent):
                    raise
                self.unload()  # another instance may have ended the process that they share

    def _load(self, start: worker_protocol.Start) -> bool:
        name = self._config.name
        sockets = self._spawn(start)
        try:
            sockets.send(start)
            answer = sockets.receive()
        except (EOFError, OSError, Garbage) as error:
            if shortage(error):  # of this process: nothing is wrong with the worker
                raise
            raise self.died(error) from None
        except UNSENDABLE as error:
            raise ConfigError(
                f"model {name!r}: its configuration cannot be sent to a worker process: {error}"
            ) from None
        if isinstance(answer, worker_protocol.NotLoaded):
            failed = LoadFailed(f"{answer.error}: {answer.message}")
            failed.add_note(answer.traceback)
            raise failed
        if not isinstance(answer, worker_protocol.Ready):
            raise self.died(Garbage(f"{answer!r} instead of Ready"))
        outputs = self._model.signature(name).outputs
        sockets.takes_files = worker_protocol.may_hold_arrays(outputs)
        sockets.wait = self._wait_in_caller
        self.link_up()
        return answer.uses_device

    def _spawn(self, start: worker_protocol.Start) -> MessageSocket:
        name, instance, environment = self._config.name, self._instance, for_children()
        file = memory_file("wherry-slab", SLAB_BYTES)
        try:
            slab = Slab(file)
            try:
                # It finds this very package, wherever that was imported from.
                command = [sys.executable, "-P", "-m", "wherry.core.instances.worker", instance]
                started: tuple[WorkerProcess | ProcessShare, socket.socket, socket.socket]
                if self._shared is None:
                    started = start_worker(command, environment, name, instance, file)
                else:
                    module = sys.modules.get(start.source.module.name)
                    started = self._shared.start_worker(
                        command, environment, name, instance, file, module
                    )
            except BaseException:
                slab.close()
                raise
        finally:
            os.close(file)
        process, source, target = started
        sockets = MessageSocket(
            source,
            target,
            worker_protocol.FromWorker,
            copies=True,
            wait=process.wait_for,
            salvage=partial(worker_protocol.salvaged, self._config.name),
        )
        sockets.use(slab, slab.inputs)
        self.connect(process, sockets, slab)
        return sockets


class WorkerInstance(Loadable):
    """An instance whose model is in a worker process, in that of `shared` if there is one. `loop()`
    returns the event loop for its sockets, once it is loaded; `_receive` and `_refused` are called
    there, as by a `WorkerLink`."""

    worker: ModelWorker

    def __init__(
        self,
        name: str,
        device: Device,
        model: Model,
        config: ModelConfig,
        loop: Callable[[], LoopCalls],
        shared: SharedWorker | None = None,
    ) -> None:
        super().__init__(name, device)
        self._config = config
        self.worker = ModelWorker(
            name,
            device,
            model,
            config,
            loop,
            receive=self._receive,
            refused=self._refused,
            shared=shared,
        )

    @abstractmethod
    def _receive(self, arrived: list[Any]) -> None: ...

    @abstractmethod
    def _refused(self, message: Any, error: Exception) -> None: ...

    def load(self) -> None:
        self.uses_device = self.worker.load()

    def to_host(self) -> bool:
        return self.worker.to_host()

    def to_device(self) -> None:
        self.worker.to_device()

    def serve(self) -> None:
        self.worker.serve()

    def stop(self) -> None:
        self.worker.stop()

    def unload(self) -> None:
        self.worker.unload()


def _start_message(model: Model, config: ModelConfig, device: Device) -> worker_protocol.Start:
    levels = {
        name: logger.level
        for name, logger in logging.root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger) and logger.level
    }
    python_path = os.environ.get("PYTHONPATH")
    return worker_protocol.Start(
        source_of(model, config.name),
        config,
        device,
        {"": logging.root.level, **levels},
        [sent(os.path.abspath(entry)) for entry in sys.path],
        [sent(argument) for argument in sys.argv],
        None if python_path is None else sent(python_path),
    )
