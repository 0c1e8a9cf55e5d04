"""How does an instance run in a process of its own?

The parent's side: a batch goes out over the connection and the slab, and its outcomes come back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import msgspec

from wherry.instances import messages
from wherry.instances.executable import Execution, Failure, Outcome, Part
from wherry.instances.messages import Failed
from wherry.instances.restart import shortage
from wherry.instances.serving import Respond
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
from wherry.instances.worker_instance import WorkerInstance
from wherry.instances.worker_process import WorkerProcess
from wherry.models.config import ModelConfig
from wherry.models.model import Device, Model
from wherry.values.datatypes import Form
from wherry.values.errors import ConfigError, LoadFailed, WorkerDied
from wherry.values.request import Batch, Columns, InferRequest


class ProcessInstance(WorkerInstance):
    """A model in a worker process."""

    def __init__(self, name: str, device: Device, model: Model, config: ModelConfig) -> None:
        super().__init__(name, device)
        self._model = model
        self._config = config
        self._restore = _restorers(model, config)
        self._worker: _Worker | None = None
        self._begun_ns = 0
        #: There is something to receive: the answer to the batch that was begun.
        self._told = False

    # Any thread

    def _begin(self, requests: Sequence[InferRequest]) -> bool:
        worker = self._worker
        # Steps of sequences get more inputs yet, and a stream is another message.
        if worker is None or self._config.sequence is not None or requests[-1].streams:
            return False
        self._begun_ns = perf_counter_ns()
        message = messages.Execute(_gather(requests), [request.rows for request in requests])
        try:
            # What is sent to a dead worker is lost without an error.
            if worker.exited() or not worker.connection.send_now(message):
                return False
        except (*UNSENDABLE, OSError):
            return False
        if worker.connection.unsent:
            self._ring()
        return True

    def _has_arrived(self) -> bool:
        with contextlib.suppress(EOFError, OSError, Garbage):
            return self._connected().arrived()
        return False

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
            self._worker = _Worker(self.name, self._config.name)
            self._watch(self._worker)
        try:
            answer = self._worker.start(start)
        except (EOFError, OSError, Garbage) as error:
            if shortage(error):  # of this process: nothing is wrong with the worker
                raise
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
        self._told = False
        while not self._is_given():
            try:
                self._told = self._park(self._worker)
                if self._told and not self._inbox:
                    self._worker.connection.receive()
                    raise Garbage("a message that answers no batch")
            except (EOFError, OSError, Garbage) as error:
                raise self._died(error, reached=False) from None
        return self._inbox.popleft()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        counts = [request.rows for request in requests]
        if self.begun_at is not None:
            started, self.begun_at = self._begun_ns, None
        else:
            started, self._told = perf_counter_ns(), False
            try:
                self._send(messages.Execute(_gather(requests), counts))
            except UNSENDABLE as error:
                return self._execute_without_unsendable(requests, error)
        with _Exchange(self) as connection:
            if connection.unsent:
                connection.flush()
            result = connection.receive(told=self._told)
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
        with _Exchange(self) as connection:
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
        with self._sending:  # whoever gives a batch now does not find it any more
            worker, self._worker = self._worker, None
        if worker is not None:
            if worker.process.poll() is None and not self._aborted:
                worker.stop(
                    lambda: worker.connection.send(messages.Stop()), self._config.unload_timeout
                )
            worker.close()
        self._forget_worker()

    # Parts

    def _send(self, message: msgspec.Struct) -> None:
        assert self._worker is not None
        if self._worker.exited():  # what is sent to a dead worker is lost without an error
            raise self._died(EOFError("it had ended"), reached=False)
        try:
            self._worker.connection.send(message)
        except (EOFError, OSError) as error:
            raise self._died(error, reached=False) from None

    def _connected(self) -> Connection:
        assert self._worker is not None
        return self._worker.connection

    def broken(self, error: BaseException) -> None:
        """Between a batch and its answer. Raises WorkerDied, unless it is a bug of ours."""
        assert self._worker is not None
        if isinstance(error, EOFError | OSError | Garbage):
            raise self._died(error) from None
        self._worker.process.kill()  # with the answer half read

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
        assert self._worker is not None
        return self._death_of(self._worker, error, reached=reached)


class _Exchange:
    """Between a batch and its answer: what goes wrong here is the worker's end."""

    def __init__(self, instance: ProcessInstance) -> None:
        self._instance = instance

    def __enter__(self) -> Connection:
        return self._instance._connected()

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is not None:
            self._instance.broken(error)


class _Worker(WorkerProcess[Connection]):
    """A worker that runs a wherry model, with the slab that both map."""

    def __init__(self, name: str, model: str) -> None:
        super().__init__(
            # It finds this very package, wherever that was imported from.
            [sys.executable, "-P", "-m", "wherry.instances.worker", name],
            {**os.environ, "PYTHONPATH": os.pathsep.join(_path())},
            model,
            name,
            lambda end, wait: Connection(end, messages.FromWorker, wait=wait, copies=True),
        )
        self._slab: Slab | None = None

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

    def close(self) -> None:
        super().close()
        if self._slab is not None:
            self._slab.close()


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
