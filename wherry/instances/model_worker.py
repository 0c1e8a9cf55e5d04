"""How does a worker process load the model of one instance, serve it, and end?

The instance's own thread starts the process, waits while it loads, and then watches it: it logs
what the worker prints, sees it end, and does what would take the event loop too long. Messages go
through the link, in the event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wherry.instances import messages
from wherry.instances.restart import shortage
from wherry.instances.source import refuse_while_importing, source_of
from wherry.models.config import ModelConfig
from wherry.models.model import Device, Model
from wherry.values.datatypes import Form
from wherry.values.errors import ConfigError, LoadFailed, WorkerDied
from wherry.values.request import Columns
from wherry.workers.encoding import UNSENDABLE
from wherry.workers.frames import Garbage
from wherry.workers.link import WorkerLink
from wherry.workers.loop import LoopCalls
from wherry.workers.message_socket import MessageSocket
from wherry.workers.process import WorkerProcess
from wherry.workers.shared_memory import SLAB_BYTES, Slab, memory_file

T = TypeVar("T")

#: Seconds between two looks whether the loop still runs, which is to close the sockets.
_LOOK = 0.1


class ModelWorker:
    """A worker process with a model, for one instance.

    `receive` and `refused` are those of its link (`WorkerLink`), whose event loop `loop()` says
    once the model is loaded. `restore(message)`, if it is given, changes what was decoded, maybe in
    another thread.
    """

    #: The way to the worker, once the model is loaded. For the loop's thread.
    link: WorkerLink

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
        restore: Callable[[Any], None] | None,
    ) -> None:
        self._name = name
        self._device = device
        self._model = model
        self._config = config
        self._choose_loop = loop
        self._receive = receive
        self._refused = refused
        self._restore = restore
        #: For what `abort` meets in another thread.
        self._lock = threading.Lock()
        self._aborted = ""
        self._process: WorkerProcess | None = None
        self._slab: Slab | None = None
        self._messages: MessageSocket | None = None
        #: The event loop that owns the sockets, once the model is loaded.
        self._loop: LoopCalls | None = None
        #: What this instance's thread is to do, and whether it is to stop then.
        self._jobs: deque[Callable[[], None]] = deque()
        self._stopped = False
        #: Why the link has ended, and whether the worker had read all that was sent.
        self._end: tuple[Exception, bool] | None = None

    # Any thread

    def do(self, callback: Callable[[T], None], argument: T) -> None:
        """Have `callback(argument)` called in the loop; at once, if this is its thread."""
        loop = self._loop
        if loop is not None:
            if loop.thread == threading.get_ident():
                callback(argument)
            else:
                loop.call(callback, argument)

    def post(self, callback: Callable[[T], None], argument: T) -> None:
        """Have `callback(argument)` called in the loop, never at once."""
        if self._loop is not None:
            self._loop.call(callback, argument)

    def post_later(self, seconds: float, callback: Callable[[T], None], argument: T) -> None:
        """The same, in so many seconds. In the loop's thread."""
        if self._loop is not None:
            self._loop.loop.call_later(seconds, callback, argument)

    def stop(self) -> None:
        """Have `serve` return."""
        self._stopped = True
        self._ring()

    def abort(self, reason: str) -> None:
        """Kill the process, also one that is started later."""
        with self._lock:
            self._aborted = self._aborted or reason
            if self._process is not None:
                self._process.kill()

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else None

    @property
    def rss_bytes(self) -> int:
        """The worker's resident memory; 0 if it does not run, or the system does not say."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    # The loop

    @property
    def _is_linked(self) -> bool:
        return self._loop is not None and self._end is None

    def _ended(self, error: Exception, read: bool) -> None:
        self._end = error, read
        self._ring()

    def _aside(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._ring()

    def _ring(self) -> None:
        process = self._process
        if process is not None:
            process.ring()

    # The instance's thread

    def load(self) -> None:
        """Start the process and have it load the model. Raises LoadFailed, WorkerDied, and OSError
        for what this process is short of."""
        name = self._config.name
        if sys.platform == "win32":
            raise ConfigError(
                f"model {name!r}: worker processes need a Unix system; use isolation='thread'"
            )
        refuse_while_importing(name)
        start = _start_message(self._model, self._config, self._device)
        self._spawn()
        assert self._messages is not None
        try:
            self._messages.send(start)
            answer = self._messages.receive()
        except (EOFError, OSError, Garbage) as error:
            if shortage(error):  # of this process: nothing is wrong with the worker
                raise
            raise self._died(error) from None
        except UNSENDABLE as error:
            raise ConfigError(
                f"model {name!r}: its configuration cannot be sent to a worker process: {error}"
            ) from None
        if isinstance(answer, messages.NotLoaded):
            failed = LoadFailed(f"{answer.error}: {answer.message}")
            failed.add_note(answer.traceback)
            raise failed
        if not isinstance(answer, messages.Ready):
            raise self._died(Garbage(f"{answer!r} instead of Ready"))
        self._link_up(self._messages)

    def serve(self) -> None:
        """Watch the worker and do what the loop cannot, until `stop`. Raises WorkerDied."""
        assert self._process is not None
        assert self._loop is not None
        while True:
            exited = self._process.watch()
            self._do_jobs()
            if self._stopped:
                return
            if self._end is not None:
                error, read = self._end
                raise self._died(error, reached=read)
            if exited:
                self._loop.call(self.link.exited, EOFError("it has ended"))
                if self._loop.is_closed:
                    raise self._died(EOFError("it has ended"))

    def unload(self) -> None:
        """Have the worker unload its model and end; kill it if it does not. Gives everything
        back. Without effect if there is no worker."""
        process = self._process
        if process is None:
            return
        if self._loop is None:
            assert self._messages is not None
            self._messages.close()  # a worker that was not loaded ends by that
            process.wait()
        else:
            self._ask_to_end(process)
            process.wait()
            self._close_link(process)
        with self._lock:
            self._process = None
        process.close()
        assert self._slab is not None
        self._slab.close()

    def _spawn(self) -> None:
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            ours = []
            ends = []
            for _ in range(2):
                our_end, their_end = socket.socketpair()
                undo.callback(our_end.close)
                theirs.callback(their_end.close)
                our_end.setblocking(False)
                ours.append(our_end)
                ends.append(their_end.fileno())
            file = memory_file("wherry-slab", SLAB_BYTES)
            theirs.callback(os.close, file)
            slab = Slab(file)
            undo.callback(slab.close)
            process = WorkerProcess(
                # It finds this very package, wherever that was imported from.
                [sys.executable, "-P", "-m", "wherry.instances.worker", self._name],
                {**os.environ, "PYTHONPATH": os.pathsep.join(_path())},
                self._config.name,
                self._name,
                [*ends, file],
            )
            undo.pop_all()
        self._slab = slab
        self._messages = MessageSocket(
            ours[1],
            ours[0],
            messages.FromWorker,
            copies=True,
            wait=process.wait_for,
            restore=self._restore,
        )
        self._messages.use(slab, slab.inputs)
        with self._lock:
            self._process = process
            if self._aborted:
                process.kill()

    def _link_up(self, sockets: MessageSocket) -> None:
        """From now on the event loop owns the sockets."""
        outputs = self._model.signature(self._config.name).outputs
        sockets.takes_files = messages.may_hold_arrays(outputs)
        loop = self._choose_loop()
        self.link = WorkerLink(
            loop,
            sockets,
            receive=self._receive,
            refused=self._refused,
            ended=self._ended,
            aside=self._aside,
        )
        self._loop = loop
        loop.call(WorkerLink.start, self.link)

    def _ask_to_end(self, process: WorkerProcess) -> None:
        assert self._loop is not None
        if not self._is_linked or self._aborted or process.has_ended():
            return
        if self._loop.is_closed:
            process.kill()
            return
        self._loop.call(self.link.send, messages.Stop())
        seconds = self._config.unload_timeout
        ends_at = None if seconds is None else time.monotonic() + seconds
        while self._is_linked:
            left = None if ends_at is None else ends_at - time.monotonic()
            if (left is not None and left <= 0) or process.watch(left):
                return
            self._do_jobs()

    def _close_link(self, process: WorkerProcess) -> None:
        """Have the loop close the sockets of a worker that has ended."""
        assert self._loop is not None
        self._loop.call(WorkerLink.close, self.link)
        while self._is_linked:
            if self._loop.is_closed:
                self.link.abandon()
                return
            process.watch(_LOOK)
            self._do_jobs()

    def _do_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def _died(self, error: Exception, *, reached: bool = True) -> WorkerDied:
        """See to it that the worker is gone, and say how it went."""
        assert self._process is not None
        how, cause = self._process.end(error)
        if self._aborted:
            how, cause = f"was stopped: {self._aborted}", "hang"
        died = WorkerDied(f"worker {self._name} (pid {self._process.pid}) {how}")
        died.reached, died.cause = reached, cause
        return died


def restorer(model: Model, config: ModelConfig) -> Callable[[Columns], None] | None:
    """A function that gives the rows of outputs of a declared JSON type that type again, as in a
    thread: msgpack has made them dicts and lists. None if there are no such outputs."""
    kinds = [
        (spec.name, spec.json_type)
        for spec in model.signature(config.name).outputs
        if spec.form is Form.JSON and hasattr(spec.json_type, "__annotations__")
    ]

    def restore(columns: Columns) -> None:
        for name, kind in kinds:
            if name in columns:
                columns[name] = [_converted(row, kind) for row in columns[name]]

    return restore if kinds else None


def _converted(row: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError:
        return row  # not what was declared, but what the model gave


def _start_message(model: Model, config: ModelConfig, device: Device) -> messages.Start:
    levels = {
        name: logger.level
        for name, logger in logging.root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger) and logger.level
    }
    return messages.Start(
        source_of(model, config.name),
        config,
        device,
        {"": logging.root.level, **levels},
        _path(),
        list(sys.argv),
        os.environ.get("PYTHONPATH"),
    )


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]
