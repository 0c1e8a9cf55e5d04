"""How do requests reach a Python model in its process, and its responses come back?

The server's side of one instance. Its thread sends a list of requests, and sees to everything that
the process sends: responses, also of requests whose execute() has long returned, calls of other
models, measurements. It waits for all of it in one place, so a model that calls another one while
it executes is served meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from mmap import mmap
from time import perf_counter_ns
from typing import Any

from wherry.backends.triton_python.calls import Calls, Host
from wherry.backends.triton_python.environment import Interpreter
from wherry.backends.triton_python.open_requests import OpenRequests
from wherry.backends.triton_python.request_codec import RequestCodec
from wherry.backends.triton_python.running_batch import RunningBatch
from wherry.backends.triton_python.stub import wire
from wherry.backends.triton_python.stub.pb_utils import TritonError
from wherry.backends.triton_python.stub.wire import Arena, Channel, Incoming, Outgoing, SlabViews
from wherry.instances.executable import RESCHEDULED, Execution, Failure, Outcome
from wherry.instances.instance import LateAnswers
from wherry.instances.restart import shortage
from wherry.instances.sequence_inputs import WARM_UP
from wherry.instances.serving import Respond
from wherry.instances.worker_instance import WorkerInstance
from wherry.instances.worker_process import StubProcess, seconds_until
from wherry.models.config import ModelConfig
from wherry.models.model import Device
from wherry.observability.custom_metrics import CustomMetrics, Kind
from wherry.values.errors import LoadFailed, ModelNotReady, WherryError, WorkerDied
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import Batch, Columns, InferRequest, InferResponse, rows_of
from wherry.workers.frames import Garbage

_SEQUENCE_START, _SEQUENCE_END = 1, 2
_STUB = os.path.join(os.path.dirname(os.path.abspath(wire.__file__)), "__main__.py")

#: Outputs from this size on are handed out where they lie in the slab, so many at once; others
#: are copied: a view takes as long to make as a copy of so many bytes.
_LEAST_VIEW = 64 << 10
_MOST_VIEWS = 32

log = logging.getLogger("wherry")


class PythonWorker(StubProcess[Channel]):
    """The process of a Python model, with the slab that both map."""

    def __init__(self, runs: Interpreter, model: str, instance: str) -> None:
        super().__init__([runs.python, _STUB], runs.environment, model, instance, Channel)
        self.memory = mmap(-1, 1)  # until it is opened
        self.arena = Arena(0, wire.SLAB_BYTES // 2)
        self.views: SlabViews | None = None

    def open(self, start: dict[str, Any]) -> str | None:
        """Have it import the model's file; the completed configuration, if `start` asks for it.
        Raises LoadFailed."""
        file = wire.memory_file("wherry-slab", wire.SLAB_BYTES)
        try:
            self.memory = mmap(file, wire.SLAB_BYTES)
            self.views = self.connection.views = SlabViews(
                self.memory, least=_LEAST_VIEW, most=_MOST_VIEWS
            )
            self.connection.send_file(["start", 0, start], file)
            message, _ = self.connection.receive()
            if message[0] == "failed":
                raise load_failed(message)
            if message[0] != "opened":
                raise Garbage(f"{message[0]!r} instead of an opened model")
        except (EOFError, OSError, wire.BadFrame, Garbage) as error:
            if shortage(error):  # of the server: nothing is wrong with the process
                raise
            how, _ = self.end(error if isinstance(error, Garbage) else EOFError())
            text = f"its process {how} while it imported the model; what it wrote is in the log"
            raise LoadFailed(text) from None
        finally:
            os.close(file)
        completed: str | None = message[2]
        return completed

    def close(self) -> None:
        super().close()
        if self.views is not None:
            self.views.close()
        memory, self.memory = self.memory, mmap(-1, 1)
        with contextlib.suppress(BufferError):  # then it goes with the outputs that callers hold
            memory.close()


class PythonInstance(WorkerInstance):
    """A Python model in a process of its own. `host` is the Runtime, for the calls it makes."""

    outlives_batch = True

    def __init__(
        self,
        name: str,
        device: Device,
        model: Any,
        config: ModelConfig,
        host: Host | None,
    ) -> None:
        super().__init__(name, device)
        self._model = model
        self._config = config
        self._codec = RequestCodec(model, config)
        self.calls = Calls(host, config.name, self._post_answer)
        self._metrics: CustomMetrics = model.custom_metrics
        self._worker: PythonWorker | None = None
        #: What other threads leave here for this instance's thread to do.
        self._outbox: deque[Callable[[], None]] = deque()
        self._open = OpenRequests()
        self._batch = RunningBatch()
        self._begun_ns = 0
        #: While it warms up: what is told of its requests, instead of `answers`.
        self._warming: LateAnswers | None = None
        #: The answer to what has one.
        self._answer: list[Any] | None = None
        #: What the model's is_ready() says; None: it has not said it, or has none.
        self._is_ready: bool | None = None
        self._has_is_ready = False
        self._dead = False

    # Any thread

    @property
    def open_requests(self) -> Collection[InferRequest]:
        return self._open.executing()

    def cancel(self, request: InferRequest) -> None:
        number = self._open.number_of(request)
        if number is not None:
            self._post(lambda: self._send(["cancel", number]))

    def not_ready_reason(self) -> str:
        """Why the model's own is_ready() says no: by its last answer, as this must not wait for a
        model. It is called again."""
        if not self._has_is_ready:
            return ""
        self._post(self._ask_ready)
        return "" if self._is_ready else "its is_ready() says that it is not"

    def _begin(self, requests: Sequence[InferRequest]) -> bool:
        worker = self._worker
        if worker is None or self._dead or self._config.sequence is not None:
            return False  # steps of sequences get more inputs yet
        self._begun_ns = perf_counter_ns()
        sent, tensors = self._pack(requests)
        begun = False
        try:
            # What is sent to a dead worker is lost without an error.
            if len(sent) == len(requests) and not worker.exited():
                assert worker.views is not None
                released = worker.views.take_released()
                begun = worker.connection.send_now(["execute", released, sent], tensors)
        except (ValueError, OSError):
            pass
        finally:
            tensors.close()
        if not begun:
            tensors.give_up()
            for _, number in self._batch.members:
                self._open.forget(number)
        if worker.connection.unsent:
            self._ring()
        return begun

    def _connected(self) -> Channel:
        assert self._worker is not None
        return self._worker.connection

    def _has_arrived(self) -> bool:
        try:
            received = self._connected().receive_executed()
            if received is None:
                return False
            self._take(*received)
        except (EOFError, OSError):
            return False
        except wire.BadFrame as error:
            raise self._died(error) from None
        return True

    def _post(self, act: Callable[[], None]) -> None:
        self._outbox.append(act)
        self._ring()

    def _post_answer(
        self, key: int, final: bool, body: Callable[[Outgoing], list[Any]] | None
    ) -> None:
        self._post(lambda: self._send_answer(key, final, body))

    # The serving thread

    def load(self) -> None:
        with self._lock:
            self._worker, start = self._model.take_worker(self.name)
            self._watch(self._worker)
        if start is not None:
            self._worker.open(start)
        try:
            arguments = self._model.arguments(self.name, self.device)
            message = self._told(["initialize", arguments, self._codec.output_names])
        except WorkerDied as died:
            name = self._model.instance_name(self.name)
            raise LoadFailed(
                f"Stub process '{name}' is not healthy. {died} while it was initialized"
            ) from None
        if message[0] == "failed":
            raise load_failed(message)
        self._has_is_ready = bool(message[2])
        if self._has_is_ready:
            self._send(["is_ready"])
            while self._is_ready is None:
                self._turn()
        for columns, rows in self._model.warmup_batches():
            self._warm_up(columns, rows)

    def wait(self) -> Batch | None:
        while not self._is_given():
            self._turn()
        return self._inbox.popleft()

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run a batch. Some of its requests may be answered later, or have been already."""
        if self.begun_at is not None:
            started, self.begun_at = self._begun_ns, None
            self._flush()
        else:
            started = perf_counter_ns()
            if not self._send_batch(requests):
                return Execution(self._batch.outcomes)
        _, _, started_at, infer_ns, _, _ = self._answered()
        # The clock is the same in both processes. Handing over counts as input and as output.
        output_ns = perf_counter_ns() - started_at - infer_ns
        batch, self._batch = self._batch, RunningBatch()  # no request is to live on here
        return batch.execution(started_at - started, infer_ns, output_ns)

    def stream(self, requests: Sequence[InferRequest], respond: Respond) -> list[Outcome | None]:
        raise NotImplementedError  # `execute` is for decoupled models, too

    def unload(self) -> None:
        with self._sending:  # a batch that is given now does not find it any more
            worker = self._worker
        if not self._dead:  # else its requests failed when its death was noticed
            self._give_up_open_requests()
        if worker is not None:
            if worker.process.poll() is None and not self._aborted:
                self._finish(worker)
            self.calls.drop_all()
            worker.close()
        self._worker = None
        self._forget_worker()

    def _give_up_open_requests(self) -> None:
        """They have outlived the time to drain; a model that asks is_cancelled() hears of it."""
        unloading = ModelNotReady(f"model {self._config.name!r} is unloading")
        for number, request in self._open.all():
            self._open.forget(number)
            self._tell().fail(request, unloading)
            with contextlib.suppress(WorkerDied):
                self._send(["cancel", number])

    def _finish(self, worker: PythonWorker) -> None:
        """Have it finalize, and serve it until it ends."""
        seconds = self._config.unload_timeout
        ends_at = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(WorkerDied, EOFError, OSError, wire.BadFrame):
            worker.connection.send(["stop", 0])
            while (left := seconds_until(ends_at)) is None or left > 0:
                if worker.connection.complete() or worker.park(left):
                    self._take(*worker.connection.receive())
                while self._outbox:
                    self._outbox.popleft()()

    def _warm_up(self, columns: Columns, rows: int) -> None:
        """Run one warm-up batch: as in Triton, each row is a request of its own,
        but those of one sequence. LoadFailed if it fails."""
        if self._config.sequence is None:
            each = [(rows_of(columns, row, row + 1), 1) for row in range(rows)]
        else:
            each = [(columns, rows)]
        requests = [self._warmup_request(columns, rows) for columns, rows in each]
        self._warming = _Unnoticed()
        try:
            outcomes = self.execute(requests).outcomes
            for request, outcome in zip(requests, outcomes, strict=True):
                if isinstance(outcome, Failure) and outcome.error != RESCHEDULED:
                    request.reply.settle(outcome.as_exception())
            self._open.forget_put_back()
            while any(self._open.number_of(request) for request in requests):
                self._turn()
        finally:
            self._warming = None
        for request in requests:
            if request.reply.settled and isinstance(request.reply.outcome, WherryError):
                failed = request.reply.outcome
                raise LoadFailed(f"warm-up: {failed}") from failed

    def _warmup_request(self, columns: Columns, rows: int) -> InferRequest:
        reply: Reply[InferResponse]
        if self._codec.decoupled:
            reply = StreamReply(lambda stream, _: stream.consumed(), lambda _: None)
        else:
            reply = Reply(lambda _: None)
        step = None if self._config.sequence is None else WARM_UP
        return InferRequest(columns, rows, reply, id="warmup", sequence=step)

    # Sending

    def _send_batch(self, requests: Sequence[InferRequest]) -> bool:
        """False: none of them can be sent, and each has its outcome."""
        sent, tensors = self._pack(requests)
        if not sent:
            tensors.close()
            return False
        try:
            self._send(["execute", sent], tensors)
        except ValueError as error:
            failure = Failure("RequestTooLarge", f"model {self._config.name!r}: {error}")
            for index, number in self._batch.members:
                self._settle(index, number, failure)
            return False
        return True

    def _pack(self, requests: Sequence[InferRequest]) -> tuple[list[list[Any]], Outgoing]:
        """The requests as they are sent. What is wrong with one of them becomes its outcome."""
        assert self._worker is not None
        batch = self._batch = RunningBatch(requests)
        out = Outgoing(self._worker.memory, self._worker.arena)
        sent: list[list[Any]] = []
        for index, request in enumerate(requests):
            try:
                tensors = self._codec.tensors(out, request)
            except (TypeError, ValueError, AttributeError) as error:
                text = f"model {self._config.name!r}: {error}"
                batch.outcomes[index] = Failure("InvalidRequest", text)
                continue
            number = self._open.open(request)
            batch.sent(index, number)
            sent.append(self._codec.described(number, request, tensors))
        return sent, out

    def _send(self, message: list[Any], tensors: Outgoing | None = None) -> None:
        """Send a message; the offsets of what was released in the slab become its second element.
        ValueError: it is too large. Raises WorkerDied."""
        assert self._worker is not None
        reached = message[0] != "execute"  # of all others, the batch is there already
        with self._sending:
            try:
                if self._worker.exited():  # what is sent to a dead worker is lost without an error
                    raise self._died(EOFError(), reached=reached)
                assert self._worker.views is not None
                released = self._worker.views.take_released()
                self._worker.connection.send([message[0], released, *message[1:]], tensors)
            except ValueError:
                if tensors is not None:
                    tensors.give_up()
                raise
            except (EOFError, OSError) as error:
                raise self._died(error, reached=reached) from None
            finally:
                if tensors is not None:
                    tensors.close()

    def _flush(self) -> None:
        """Send the rest of a batch for which the socket had no room."""
        assert self._worker is not None
        if self._worker.connection.unsent:
            try:
                with self._sending:
                    self._worker.connection.flush()
            except (EOFError, OSError) as error:
                raise self._died(error) from None

    def _send_answer(
        self, key: int, final: bool, body: Callable[[Outgoing], list[Any]] | None
    ) -> None:
        assert self._worker is not None
        try:
            with self._sending:
                out = Outgoing(self._worker.memory, self._worker.arena)
                self._send(["answer", key, final, None if body is None else body(out)], out)
        except ValueError as error:
            failed = [[TritonError.INTERNAL, f"the answer cannot be sent: {error}"], "{}", []]
            self._send(["answer", key, True, failed])

    def _ask_ready(self) -> None:
        if not self.batches:
            self._send(["is_ready"])

    # Receiving

    def _told(self, message: list[Any]) -> list[Any]:
        """Send what has an answer, and serve the process until that comes."""
        self._send(message)
        return self._answered()

    def _answered(self) -> list[Any]:
        while self._answer is None:
            self._turn()
        answer, self._answer = self._answer, None
        return answer

    def _turn(self) -> None:
        """Sleep until something happens, and see to it. Raises WorkerDied."""
        assert self._worker is not None
        connection = self._worker.connection
        try:
            if (self._reader is None and connection.complete()) or self._park(self._worker):
                self._take(*connection.receive())
        except (EOFError, OSError, wire.BadFrame) as error:
            raise self._died(error) from None
        if self._outbox:
            with self._sending:  # an event loop must not wait until something can be sent
                self._hand_back()
        while self._outbox:
            self._outbox.popleft()()

    def _take(self, message: list[Any], incoming: Incoming) -> None:
        """See to one message of the process. BadFrame if it is none."""
        assert self._worker is not None
        try:
            kind, (released, measured), *rest = message
            for offset in released:
                self._worker.arena.release(offset)
            for one in measured:
                self._measure(*one)
            if kind == "executed":
                self._executed(rest[2], rest[3], incoming)
                self._answer = message
            elif kind == "response":
                self._responded(rest[0], rest[1], rest[2], incoming)
            elif kind == "call":
                self.calls.begin(rest[0], rest[1], rest[2], incoming)
            elif kind == "drop":
                self.calls.drop(rest[0])
            elif kind == "cancel":
                self.calls.cancel(rest[0])
            elif kind == "control":
                self.calls.control(rest[0], rest[1], rest[2], rest[3], rest[4], incoming)
            elif kind == "value":
                key, metric = rest
                self.calls.tell(key, repr(self._metrics.value(metric[0], _labels(metric[3]))))
            elif kind == "is_ready":
                self._is_ready = bool(rest[0])
            elif kind in ("ready", "failed"):
                self._answer = message
            elif kind != "measured":
                raise wire.BadFrame(f"no message is called {kind!r}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"a message {message[0]!r}: {type(error).__name__}: {error}"
            raise wire.BadFrame(text) from error

    def _executed(
        self, failure: list[str] | None, answers: Sequence[Any], incoming: Incoming
    ) -> None:
        """A batch has been run: note what came of each request."""
        for (index, number), answer in zip(self._batch.members, answers, strict=True):
            request = self._open.get(number)
            if request is None or answer is None:
                continue
            if answer == "again":
                text = (
                    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: that needs"
                    f" model {self._config.name!r} to have sequence_batching"
                    " { iterative_sequence: true }"
                )
                self._batch.settle(index, Failure(RESCHEDULED, text))
                self._open.put_back(number)
            elif failure is not None:
                text, traceback = failure
                self._settle(index, number, Failure("ModelFailed", text, traceback))
            else:
                outcome = self._codec.outcome(request, answer, incoming)
                if isinstance(outcome, Failure):
                    self._settle(index, number, outcome)
                    continue
                if outcome.parameters:
                    self._batch.parameters[request] = outcome.parameters
                self._settle(index, number, outcome.outputs)

    def _settle(self, index: int, number: int, outcome: Outcome) -> None:
        """This is what became of a request of the batch, and all of it."""
        self._batch.settle(index, outcome)
        self._open.forget(number)

    def _responded(
        self, number: int, final: bool, body: Sequence[Any] | None, incoming: Incoming
    ) -> None:
        """A response sender has sent something."""
        request = self._open.get(number)
        if request is None:
            return  # its client is gone, or had an error
        answers = self._tell()
        self.busy_since = self.busy_since and answers.now()  # progress
        wanted = True
        if body is not None:
            outcome = self._codec.outcome(request, body, incoming)
            if isinstance(outcome, Failure):
                answers.failed(request, outcome, self.name)
                wanted = False
            elif self._codec.decoupled:
                outcome.final = final
                wanted = answers.respond(request, outcome)
            else:
                self._open.forget(number)
                answers.answer(request, outcome)
                return
        if final:
            self._open.forget(number)
            if wanted:
                answers.answer(request, InferResponse({}, 0))
        elif not wanted:
            self._open.forget(number)
            self._post(lambda: self._send(["cancel", number]))

    def _measure(
        self,
        name: str,
        description: str,
        kind: int,
        labels: list[list[str]],
        buckets: list[float] | None,
        action: str,
        value: str,
    ) -> None:
        self._metrics.measure(
            name, description, Kind(kind), _labels(labels), buckets, action, float(value)
        )

    def _tell(self) -> LateAnswers:
        told = self._warming or self.answers
        assert told is not None
        return told

    def _died(self, error: Exception, *, reached: bool = True) -> WorkerDied:
        assert self._worker is not None
        self._dead = True
        if isinstance(error, wire.BadFrame):
            error = Garbage(str(error))
        return self._death_of(self._worker, error, reached=reached)


class _Unnoticed:
    """Answers of warm-up requests, which are not counted."""

    def now(self) -> float:
        return 0.0

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        request.reply.settle(response)

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        return True

    def fail(self, request: InferRequest, error: WherryError) -> None:
        request.reply.settle(error)

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        request.reply.settle(failure.as_exception())


def load_failed(message: Sequence[Any]) -> LoadFailed:
    """What the model's file, auto_complete_config() or initialize() raised."""
    _, _, kind, text, traceback = message
    failed = LoadFailed(f"{kind}: {text}")
    failed.add_note(traceback)
    return failed


def _labels(labels: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in labels)
