"""How do batches reach a Python model in its process, and responses come back?

Messages go through the link, in the event loop that owns the process's sockets: everything below
`unload` happens there unless stated otherwise. The instance's thread loads the model, and then
watches the process (`LinkedWorker`). Requests may outlive their batch, and a model may call others
while it executes: its messages are received in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from wherry.core.api import (
    RESCHEDULED,
    WARM_UP,
    Batch,
    BatchRun,
    Columns,
    CustomMetrics,
    Device,
    Execution,
    Failure,
    Garbage,
    InferRequest,
    InferResponse,
    Instance,
    Kind,
    LinkedWorker,
    LoadFailed,
    ModelConfig,
    Outcome,
    Reply,
    StreamReply,
    StreamRun,
    WherryError,
    WorkerDied,
    broken_by,
    rows_of,
)
from wherry.triton.python.calls import CallAnswer, Called, Calls, Host
from wherry.triton.python.model_requests import ModelRequests, RunningBatch
from wherry.triton.python.process import Plain, StubMemory, StubMessage, load_failed
from wherry.triton.python.request_codec import RequestCodec
from wherry.triton.python.stub.wire import Incoming


class WarmUp:
    """Takes the place of an instance's `answers` for one batch, which is not counted.

    `changed` is called after each event.
    """

    def __init__(self, requests: Sequence[InferRequest], changed: Callable[[], None]) -> None:
        self._requests = requests
        self._changed = changed

    def is_over(self) -> bool:
        return all(request.reply.settled for request in self._requests)

    def check(self) -> None:
        for request in self._requests:
            if isinstance(failed := request.reply.outcome, WherryError):
                raise LoadFailed(f"warm-up: {failed}") from failed

    def now(self) -> float:
        return 0.0

    def prepared(self, batch: Batch) -> list[InferRequest]:
        return list(batch.requests)

    def finished(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        for run in runs:
            execution: Execution = run.execution
            for request, outcome in zip(run.requests, execution.outcomes, strict=True):
                if request in execution.later:
                    continue
                if isinstance(outcome, Failure) and outcome.error != RESCHEDULED:
                    request.reply.settle(outcome.as_exception())
                else:
                    request.reply.settle(InferResponse({}, request.rows))
        self._changed()

    def crashed(self, instance: Instance, batch: Batch) -> None:
        for request in batch.requests:
            request.reply.settle(WherryError("internal error; see the server's log"))
        self._changed()

    def stream_run(self, instance: Instance, run: BatchRun) -> StreamRun:
        raise NotImplementedError  # a Python model's streams outlive their batch

    def streamed(self, run: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        raise NotImplementedError  # as stream_run

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        request.reply.settle(response)
        self._changed()

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        return True

    def fail(self, request: InferRequest, error: WherryError) -> None:
        request.reply.settle(error)
        self._changed()

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self.fail(request, failure.as_exception())


class PythonInstance(Instance):
    """A Python model in a process of its own. `host` is the Runtime, for the calls it makes."""

    worker: LinkedWorker

    def __init__(
        self, name: str, device: Device, model: Any, config: ModelConfig, host: Host
    ) -> None:
        super().__init__(name, device)
        self._model = model
        self._config = config
        self._codec = RequestCodec(model, config)
        self.worker = LinkedWorker(
            name,
            host.ports.workers.calls,
            receive=self._receive,
            refused=self._refused,
            stop_message=Plain(["stop"]),
            unload_timeout=config.unload_timeout,
        )
        self._requests = ModelRequests(self, self.worker, config, self._codec)
        self.calls = Calls(host, config.name, self._post_answer)
        self._metrics: CustomMetrics = model.custom_metrics
        self._memory: StubMemory | None = None
        #: The message "ready" or "failed" after initialize(); None: not yet.
        self._initialized: list[Any] | None = None
        #: What the model's is_ready() returned last; None: nothing yet, or it has none.
        self._is_ready: bool | None = None
        self._has_is_ready = False

    # Any thread

    def give(self, batches: Sequence[Batch]) -> None:
        self.worker.do(self._requests.begin, batches)

    def stop(self) -> None:
        self.worker.stop()

    @property
    def open_requests(self) -> Collection[InferRequest]:
        return self._requests.executing

    def cancel(self, request: InferRequest) -> bool:
        runs = self._requests.has(request)
        if runs:
            self.worker.do(self._requests.cancel, request)
        return runs

    def not_ready_reason(self) -> str:
        """Why the model is not ready, by the last answer of its is_ready(). Queries it again, but
        does not wait for the answer."""
        if not self._has_is_ready:
            return ""
        self.worker.do(PythonInstance._query_readiness, self)
        return "" if self._is_ready else "its is_ready() reports that it is not"

    def _post_answer(self, answer: CallAnswer) -> None:
        self.worker.do(self._send_answer, answer)

    # The instance's thread

    def load(self) -> None:
        process, start = self._model.take_process(self.name)
        process.decoder.prepare = self._prepare
        self._memory = process.memory
        self.worker.connect(process.process, process.sockets, process.memory)
        if start is not None:
            process.open(start)
        self.worker.link_up()
        self._initialize()
        for columns, rows in self._model.warmup_batches():
            self._run_warm_up(columns, rows)

    def serve(self) -> None:
        try:
            self.worker.serve()
        except WorkerDied as died:
            # What it left unread may be the answer to a call of a request that it ran.
            died.reached |= self.calls.are_open
            raise

    def unload(self) -> None:
        self.worker.post(ModelRequests.give_up, self._requests)
        self.worker.unload()
        self.calls.drop_all()

    def _initialize(self) -> None:
        arguments = self._model.arguments(self.name, self.device)
        initialize = Plain(["initialize", arguments, self._codec.output_names])
        self.worker.post(self._send, initialize)
        try:
            self.worker.wait_for(lambda: self._initialized is not None)
        except WorkerDied as died:
            name = self._model.instance_name(self.name)
            raise LoadFailed(
                f"Stub process '{name}' is not healthy. {died} while it was initialized"
            ) from None
        assert self._initialized is not None
        if self._initialized[0] == "failed":
            raise load_failed(self._initialized)
        _, _, self._has_is_ready, may_call = self._initialized
        # A call may wait for a request that would be behind the caller.
        may_wait = may_call or self._codec.decoupled or self._config.sequence is not None
        self.takes_ahead = not may_wait and self._config.run_again
        if self._has_is_ready:
            self.worker.post(PythonInstance._query_readiness, self)
            self.worker.wait_for(lambda: self._is_ready is not None)

    def _run_warm_up(self, columns: Columns, rows: int) -> None:
        """Run one warm-up batch: as in Triton, each row is a request of its own,
        except in a sequence. LoadFailed if it fails."""
        if self._config.sequence is None:
            each = [(rows_of(columns, row, row + 1), 1) for row in range(rows)]
        else:
            each = [(columns, rows)]
        requests = [self._warm_up_request(columns, rows) for columns, rows in each]
        warm_up = self.answers = WarmUp(requests, self.worker.ring)
        self.worker.post(self._requests.begin, [Batch(tuple(requests), rows, "warm-up")])
        self.worker.wait_for(warm_up.is_over)
        self.worker.post(ModelRequests.forget_put_back, self._requests)
        warm_up.check()

    def _warm_up_request(self, columns: Columns, rows: int) -> InferRequest:
        reply: Reply[InferResponse]
        if self._codec.decoupled:
            reply = StreamReply(lambda stream, _: stream.consumed(), lambda _: None)
        else:
            reply = Reply(lambda _: None)
        step = None if self._config.sequence is None else WARM_UP
        return InferRequest(columns, rows, reply, id="warmup", sequence=step)

    # Messages to the process

    def _send(self, message: StubMessage) -> None:
        self.worker.link.send(message)

    def _send_answer(self, answer: CallAnswer) -> None:
        self.worker.link.add(answer, large=answer.large)
        self.worker.link.write()

    def _query_readiness(self) -> None:
        if not self.batches:
            self._send(Plain(["is_ready"]))

    def _refused(self, message: Any, error: Exception) -> None:
        if isinstance(message, CallAnswer):
            self._send(message.refused(error))
        elif isinstance(message, RunningBatch):
            self._requests.refused(message, error)

    # Messages of the process

    def _prepare(self, message: list[Any], incoming: Incoming) -> list[Any]:
        """Decode the tensors in a message. In any thread."""
        kind = message[0]
        if kind == "executed":
            decoded = self._codec.decoded
            answers = message[5]
            for index, one in enumerate(answers):
                if isinstance(one, list):
                    answers[index] = decoded(one, incoming)
        elif kind == "response":
            if message[4] is not None:
                message[4] = self._codec.decoded(message[4], incoming)
        elif kind == "call":
            message[4] = self.calls.decoded(message[3], message[4], incoming)
        elif kind == "control":
            message.append(incoming)
        return message

    def _receive(self, messages: list[list[Any]]) -> None:
        ended: list[BatchRun] = []
        try:
            for message in messages:
                if ended and message[0] != "executed":  # it may concern one of their requests
                    self.answers.finished(self, ended)
                    ended = []
                if (run := self._taken(message)) is not None:
                    ended.append(run)
        finally:
            if ended:
                self.answers.finished(self, ended)

    def _taken(self, message: list[Any]) -> BatchRun | None:
        """Process one message. Returns the batch that it ends, if any. Raises Garbage."""
        try:
            kind, (released, measured) = message[:2]
            if released:
                assert self._memory is not None
                self._memory.was_released(released)
            for one in measured:
                self._measure(*one)
            if kind == "executed":
                _, _, started_at, infer_ns, failure, answers = message
                if failure is not None:
                    self._look_at_device(failure)
                return self._requests.executed(started_at, infer_ns, failure, answers)
            rest = message[2:]
            if kind == "response":
                self._requests.responded(*rest)
            elif kind in ("ready", "failed"):
                self._initialized = message
                self.worker.ring()
            elif kind == "is_ready":
                self._is_ready = bool(rest[0])
                self.worker.ring()
            elif kind != "measured":
                self._take_call(kind, *rest)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"a message {message[0]!r}: {type(error).__name__}: {error}"
            raise Garbage(text) from error
        return None

    def _look_at_device(self, failure: list[str]) -> None:
        """End a process whose device fails each later call, too."""
        broken = broken_by(failure[0].partition(", message: ")[2])
        if broken:
            self.abort(f"its device could not be used any more ({broken})")

    def _take_call(self, kind: str, key: int, *rest: Any) -> None:
        if kind == "call":
            what, called = rest
            self._call(key, what, called)
        elif kind == "drop":
            self.calls.drop(key)
        elif kind == "cancel":
            self.calls.cancel(key)
        elif kind == "control":
            self.calls.control(key, *rest)
        elif kind == "value":
            ((name, _, _, labels, _),) = rest
            self.calls.answer(key, repr(self._metrics.value(name, _labels(labels))))
        else:
            raise Garbage(f"unknown message {kind!r}")

    def _call(self, key: int, what: Sequence[Any], called: Called | WherryError) -> None:
        *_, waits, _, traced = what
        if waits:  # for a request, maybe, that would be behind it
            self.takes_ahead = False
        self.calls.begin(key, what, called, self._requests.open_one(traced))

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


def _labels(labels: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in labels)
