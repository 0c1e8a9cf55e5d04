"""How does an instance run in a process of its own, and how is its end noticed?

The parent's side. A worker is spawned (never forked) and connected by a unix socketpair, a slab
of shared memory and a pipe for what it prints. One poll watches all of it together with the
inbox, so that a batch, a line of the log and a death are each seen at once, and an idle worker
costs nothing.

The socket's end is the sign of a death; the worker's pidfd is another, since a process that the
model has forked may hold the socket open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec

from wherry.config import ModelConfig
from wherry.datatypes import Form
from wherry.errors import ConfigError, LoadFailed, WorkerDied
from wherry.instances import messages
from wherry.instances.executable import Execution, Failure, Outcome, Part
from wherry.instances.instance import Instance, Respond
from wherry.instances.messages import Failed
from wherry.instances.source import refuse_while_importing, source_of
from wherry.instances.transport import (
    SLAB_BYTES,
    UNSENDABLE,
    Connection,
    Garbage,
    Slab,
    gathered,
    memory_file,
    why_not_sent,
)
from wherry.instances.worker_log import LogPump
from wherry.model import Device, Model
from wherry.request import Batch, Columns, InferRequest

log = logging.getLogger("wherry")

#: Seconds that a worker may take to unload its model and end.
UNLOAD_SECONDS = 5.0
#: Seconds between a worker's closing its socket and its end, after which it is killed.
_LAST_SECONDS = 0.5


class ProcessInstance(Instance):
    """A model in a worker process."""

    def __init__(self, name: str, device: Device, model: Model, config: ModelConfig) -> None:
        super().__init__(name, device)
        self._model = model
        self._config = config
        self._restore = _restorers(model, config)
        self._inbox: deque[Batch | None] = deque()
        self._bell: _Bell | None = _Bell()
        #: For the bell and the process, which other threads use while this one closes them.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._worker: _Worker | None = None
        self._aborted = ""

    # Any thread

    def give(self, batch: Batch | None) -> None:
        self._inbox.append(batch)
        with self._lock:
            if self._bell is not None:
                self._bell.ring()

    def abort(self, reason: str) -> bool:
        with self._lock:
            self._aborted = self._aborted or reason
            if self._process is not None:
                self._process.kill()
        return True

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def rss_bytes(self) -> int:
        """The worker's resident memory; 0 if it does not run, or the system does not say."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    # The serving thread

    def load(self) -> None:
        if sys.platform == "win32":
            raise ConfigError(
                f"model {self._config.name!r}: worker processes need a Unix system;"
                " use isolation='thread'"
            )
        refuse_while_importing(self._config.name)
        start = _start_message(self._model, self._config, self.device)
        with self._lock:
            assert self._bell is not None
            self._worker = _Worker(self.name, self._config.name, self._bell)
            self._process = self._worker.process
            if self._aborted:
                self._process.kill()
        try:
            answer = self._worker.start(start)
        except (EOFError, OSError, Garbage) as error:
            raise self._died(error) from None
        except UNSENDABLE as error:
            raise ConfigError(
                f"model {self._config.name!r}: its configuration cannot be sent to a worker"
                f" process: {error}"
            ) from None
        if isinstance(answer, messages.NotLoaded):
            failed = LoadFailed(f"{answer.error}: {answer.message}")
            failed.add_note(answer.traceback)
            raise failed
        if not isinstance(answer, messages.Ready):
            raise self._died(Garbage(f"{answer!r} instead of Ready"))

    def wait(self) -> Batch | None:
        assert self._worker is not None
        while not self._inbox:
            try:
                self._worker.park()
            except (EOFError, OSError, Garbage) as error:
                raise self._died(error, reached=False) from None
        return self._inbox.popleft()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        started = perf_counter_ns()
        counts = [request.rows for request in requests]
        try:
            self._send(messages.Execute(_gather(requests), counts))
        except UNSENDABLE as error:
            return self._execute_without_unsendable(requests, error)
        with self._exchange() as connection:
            result = connection.receive()
            outcomes = self._outcomes(result, counts)
        # The clock is the same in both processes. Handing over counts as input and as output.
        output_ns = perf_counter_ns() - result.started_at - result.infer_ns
        return Execution(
            outcomes,
            max(0, result.started_at - started),
            result.infer_ns,
            max(0, output_ns),
            result.executed_rows,
            result.out_of_memory_rows,
        )

    def stream(self, requests: Sequence[InferRequest], respond: Respond) -> list[Outcome | None]:
        counts = [request.rows for request in requests]
        try:
            self._send(messages.Generate(_gather(requests), counts))
        except UNSENDABLE as error:
            return self._stream_without_unsendable(requests, respond, error)
        gone: set[int] = set()
        with self._exchange() as connection:
            while isinstance(message := connection.receive(), messages.Respond):
                if message.index in gone:
                    continue
                if not respond(message.index, self._restored(message.columns)):
                    gone.add(message.index)
                    connection.send(messages.Cancel(message.index))
            if not isinstance(message, messages.GenerateEnd) or len(message.failures) != len(
                counts
            ):
                raise Garbage("a stream with another end")
        return [None if failed is None else failed.failure() for failed in message.failures]

    def unload(self) -> None:
        worker = self._worker
        if worker is not None:
            if worker.process.poll() is None and not self._aborted:
                worker.stop()
            worker.close()
        with self._lock:
            self._worker = self._process = None
            if self._bell is not None:
                self._bell.close()
                self._bell = None

    # Parts

    def _send(self, message: msgspec.Struct) -> None:
        assert self._worker is not None
        if self._worker.exited():  # what is sent to a dead worker is lost without an error
            raise self._died(EOFError("it had ended"), reached=False)
        try:
            self._worker.connection.send(message)
        except (EOFError, OSError) as error:
            raise self._died(error, reached=False) from None

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[Connection]:
        """Between a batch and its answer: what goes wrong here is the worker's end."""
        assert self._worker is not None
        try:
            yield self._worker.connection
        except (EOFError, OSError, Garbage) as error:
            raise self._died(error) from None
        except BaseException:  # our own bug, with the answer half read
            self._worker.process.kill()
            raise

    def _outcomes(self, result: Any, counts: list[int]) -> list[Outcome]:
        """Give each caller its rows of what the worker sent."""
        if not isinstance(result, messages.Result):
            raise Garbage(f"{type(result).__name__} instead of a Result")
        if [count for answer in result.answers for count in answer.counts] != counts:
            raise Garbage("a Result for another batch")
        outcomes: list[Outcome] = []
        for answer in result.answers:
            if isinstance(answer.outcome, Failed):
                outcomes += [answer.outcome.failure()] * len(answer.counts)
            else:
                outcomes += Part(self._restored(answer.outcome), answer.counts).scatter()
        return outcomes

    def _restored(self, columns: Columns) -> Columns:
        """Rows of a declared JSON type become that again, as in a thread."""
        for name, restore in self._restore:
            if name in columns:
                columns[name] = [restore(row) for row in columns[name]]
        return columns

    def _execute_without_unsendable(
        self, requests: Sequence[InferRequest], error: Exception
    ) -> Execution:
        failures, good = self._unsendable(requests, error)
        execution = self.execute([requests[i] for i in good]) if good else Execution()
        outcomes = dict(zip(good, execution.outcomes, strict=True))
        execution.outcomes = [failures.get(i) or outcomes[i] for i in range(len(requests))]
        return execution

    def _stream_without_unsendable(
        self, requests: Sequence[InferRequest], respond: Respond, error: Exception
    ) -> list[Outcome | None]:
        failures, good = self._unsendable(requests, error)
        outcomes: dict[int, Outcome | None] = {}
        if good:
            ends = self.stream(
                [requests[i] for i in good], lambda index, rows: respond(good[index], rows)
            )
            outcomes = dict(zip(good, ends, strict=True))
        return [failures[i] if i in failures else outcomes[i] for i in range(len(requests))]

    def _unsendable(
        self, requests: Sequence[InferRequest], error: Exception
    ) -> tuple[dict[int, Outcome], list[int]]:
        """Who sent what cannot be sent on, and who did not."""
        reasons = {i: why_not_sent(request.inputs) for i, request in enumerate(requests)}
        if not any(reasons.values()):  # each of them could be sent, but not all together
            reasons = dict.fromkeys(reasons, str(error))
        failures: dict[int, Outcome] = {
            i: Failure("InvalidRequest", f"model {self._config.name!r}: {reason}")
            for i, reason in reasons.items()
            if reason
        }
        return failures, [i for i in reasons if i not in failures]

    def _died(self, error: Exception, *, reached: bool = True) -> WorkerDied:
        """See to it that the worker is gone, and say how it went."""
        assert self._worker is not None
        how = self._worker.end(error)
        if self._aborted:
            how = f"was stopped: {self._aborted}"
        died = WorkerDied(f"worker {self.name} (pid {self._worker.process.pid}) {how}")
        died.reached = reached
        return died


class _Worker:
    """A worker process and everything that connects it with this one."""

    def __init__(self, name: str, model: str, bell: _Bell) -> None:
        self._bell = bell
        ours, theirs = socket.socketpair()
        log_file, their_log = os.pipe()
        with theirs:
            try:
                self.process = _spawn(name, theirs, their_log)
            except BaseException:
                ours.close()
                os.close(log_file)
                raise
            finally:
                os.close(their_log)
        ours.setblocking(False)
        self.connection = Connection(ours, messages.FromWorker, wait=self._wait, copies=True)
        self._log = LogPump(log_file, model, name)
        self._slab: Slab | None = None
        self._exit = _pidfd(self.process.pid)
        #: What to watch while it works, while it does not, and before it gets work.
        self._busy, self._idle, self._end = select.poll(), select.poll(), select.poll()
        for poll in (self._busy, self._idle):
            poll.register(ours, select.POLLIN)
            poll.register(log_file, select.POLLIN)
        if self._exit is not None:
            for poll in (self._busy, self._idle, self._end):
                poll.register(self._exit, select.POLLIN)
        self._idle.register(bell, select.POLLIN)

    def start(self, message: messages.Start) -> Any:
        """Have it load its model; its answer."""
        file = memory_file("wherry-slab", SLAB_BYTES)
        try:
            self.connection.send(message, file)
            self._slab = Slab(file)
        finally:
            os.close(file)
        self.connection.use(self._slab, self._slab.inputs)
        return self.connection.receive()

    def park(self) -> None:
        """Sleep until the bell rings, or something else happens. Raises if it is a death."""
        ready = dict(self._idle.poll())
        if self._log.file in ready:
            self._pump()
        if self._bell.fileno() in ready:
            self._bell.silence()
        elif self.connection.fileno() in ready or self._exit in ready:
            self.connection.receive()
            raise Garbage("a message that nobody waits for")

    def stop(self) -> None:
        """Ask it to end, and wait for that; what it prints meanwhile is logged."""
        with contextlib.suppress(OSError, EOFError, Garbage):
            self.connection.send(messages.Stop())
            ends_at = time.monotonic() + UNLOAD_SECONDS
            # The socket ends with the process, or shortly before it.
            while (left := ends_at - time.monotonic()) > 0:
                ready = dict(self._busy.poll(left * 1000))
                if self._log.file in ready:
                    self._pump()
                if self._exit in ready or (
                    self._exit is None and self.connection.fileno() in ready
                ):
                    break
                if self.connection.fileno() in ready:
                    self._busy.unregister(self.connection)

    def exited(self) -> bool:
        """Has the process ended? A glance at its pidfd; without one the socket will tell."""
        return bool(self._end.poll(0))

    def end(self, error: Exception) -> str:
        """How it ended; it is killed if it did not."""
        if isinstance(error, Garbage):
            self.process.kill()
            self.process.wait()
            return f"wrote garbage to its connection, and was killed ({error})"
        try:
            return _how(self.process.wait(_LAST_SECONDS))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"closed its connection, and was killed ({type(error).__name__})"

    def close(self) -> None:
        try:
            # The pidfd may tell of the end a moment before the process can be waited for.
            self.process.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("worker killed: it did not end", extra={"pid": self.process.pid})
            self.process.kill()
            self.process.wait()
        self.connection.close()
        self._log.close()
        if self._exit is not None:
            os.close(self._exit)
        if self._slab is not None:
            self._slab.close()

    def _wait(self, events: int) -> None:
        """Sleep until the socket is ready. What it prints meanwhile is logged, so that neither
        waits for the other for ever."""
        connection = self.connection.fileno()
        if events != select.POLLIN:
            self._busy.modify(connection, events)
        try:
            while True:
                ready = dict(self._busy.poll())
                if self._log.file in ready:
                    self._pump()
                if connection in ready:
                    return
                if self._exit in ready:
                    raise EOFError
        finally:
            if events != select.POLLIN:
                self._busy.modify(connection, select.POLLIN)

    def _pump(self) -> None:
        if not self._log.pump():  # it closed its output, and goes on
            for poll in (self._busy, self._idle):
                poll.unregister(self._log.file)


class _Bell:
    """Wakes a thread that sleeps in poll(): an eventfd, or a pipe where there is none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._in = self._out = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._in, self._out = os.pipe()
            os.set_blocking(self._in, False)
            os.set_blocking(self._out, False)

    def fileno(self) -> int:
        return self._in

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._out, b"\1\0\0\0\0\0\0\0")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._in, 4096)

    def close(self) -> None:
        for file in {self._in, self._out}:
            os.close(file)


def _spawn(name: str, end: socket.socket, log_file: int) -> subprocess.Popen[bytes]:
    """Start the worker; it finds this very package, wherever that was imported from."""
    command = [sys.executable, "-P", "-m", "wherry.instances.worker"]
    return subprocess.Popen(
        [*command, name, str(end.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log_file,
        stderr=log_file,
        pass_fds=[end.fileno()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_path())},
    )


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


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old or a sandboxed one
        return None


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _gather(requests: Sequence[InferRequest]) -> dict[str, Any]:
    first = requests[0].inputs
    if len(requests) == 1:
        return first
    return {name: gathered([request.inputs[name] for request in requests]) for name in first}


def _restorers(model: Model, config: ModelConfig) -> list[tuple[str, Callable[[Any], Any]]]:
    """For outputs whose rows are objects: from what msgpack has made of them to what they were."""

    def restorer(kind: Any) -> Callable[[Any], Any]:
        def restore(row: Any) -> Any:
            try:
                return msgspec.convert(row, kind)
            except msgspec.ValidationError:
                return row  # not what was declared, but what the model gave

        return restore

    return [
        (spec.name, restorer(spec.json_type))
        for spec in model.signature(config.name).outputs
        if spec.form is Form.JSON and hasattr(spec.json_type, "__annotations__")
    ]
