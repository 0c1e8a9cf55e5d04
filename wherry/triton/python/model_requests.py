"""Which batches and requests does a Python model's process have, and how do they end?"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import count
from time import perf_counter_ns
from typing import Any

import msgspec

from wherry.core.api import (
    RESCHEDULED,
    Answers,
    Batch,
    BatchRun,
    Execution,
    Failure,
    Garbage,
    InferRequest,
    InferResponse,
    Instance,
    LinkedWorker,
    ModelConfig,
    ModelNotReady,
    Outcome,
    are_large,
    begun,
)
from wherry.triton.python.process import Plain
from wherry.triton.python.request_codec import Decoded, ModelAnswer, RequestCodec
from wherry.triton.python.stub.wire import Outgoing

#: The outcome of a request that has none yet.
_NO_OUTCOME = Failure("NoOutcome", "")


class NothingToSend(Exception):
    """No request of a batch can be sent; each has its outcome."""


class RunningBatch(BatchRun, eq=False, kw_only=True):
    """A batch from its assignment to its end, and the message that makes the process run it."""

    #: What identifies its requests to the process.
    numbers: Sequence[int]
    codec: RequestCodec
    outcomes: list[Outcome] = msgspec.field(default_factory=list)
    #: `started`, by perf_counter_ns().
    started_ns: int = msgspec.field(default_factory=perf_counter_ns)
    #: The positions of the requests that are sent, and their rows.
    members: list[int] = msgspec.field(default_factory=list)
    rows: int = 0
    #: Requests without an outcome: they are answered by response senders.
    later: Set[InferRequest] = frozenset()
    #: The parameters of the model's response to each request.
    parameters: dict[InferRequest, Mapping[str, Any]] = msgspec.field(default_factory=dict)

    def build(self, out: Outgoing) -> list[Any]:
        """An invalid request gets its error as its outcome. Raises NothingToSend."""
        sent: list[list[Any]] = []
        self.outcomes = [_NO_OUTCOME] * len(self.requests)
        self.members, self.rows = [], 0
        for index, request in enumerate(self.requests):
            try:
                tensors = self.codec.tensors(out, request)
            except (TypeError, ValueError, AttributeError) as error:
                text = f"model {self.codec.model_name!r}: {error}"
                self.outcomes[index] = Failure("InvalidRequest", text)
                continue
            self.members.append(index)
            self.rows += request.rows
            sent.append(self.codec.described(self.numbers[index], request, tensors))
        if not sent:
            raise NothingToSend
        return ["execute", sent]

    def refuse(self, failure: Failure) -> None:
        for index in self.members:
            self.outcomes[index] = failure

    def leave(self, index: int) -> None:
        self.later = self.later | {self.requests[index]}

    def ran(self, started_at: int, infer_ns: int, ran_ns: int) -> int:
        """The process has run the batch, from `started_at` on and for `infer_ns`, and had run the
        batch before at `ran_ns`: until then this one waited. Returns when it had run; all times
        are of perf_counter_ns()."""
        behind_ns = ran_ns - self.started_ns
        if behind_ns > 0:
            self.started += behind_ns * 1e-9
            self.started_ns = ran_ns
        # The clock is the same in both processes. Handing over counts as input and as output.
        ended_at = started_at + infer_ns
        self.end(started_at - self.started_ns, infer_ns, perf_counter_ns() - ended_at)
        return ended_at

    def end(self, input_ns: int = 0, infer_ns: int = 0, output_ns: int = 0) -> None:
        self.execution = Execution(
            self.outcomes,
            input_ns if input_ns > 0 else 0,
            infer_ns,
            output_ns if output_ns > 0 else 0,
            [self.rows] if self.members else [],
            0,
            self.later,
            self.parameters,
        )


class ModelRequests:
    """The requests that are assigned to an instance. Unless stated otherwise, for the thread of the
    event loop.

    A request may outlive its batch: it is open until its last response.
    """

    def __init__(
        self, instance: Instance, worker: LinkedWorker, config: ModelConfig, codec: RequestCodec
    ) -> None:
        self._instance = instance
        self._worker = worker
        self._config = config
        self._codec = codec
        #: By the numbers that identify them to the process.
        self._open: dict[int, InferRequest] = {}
        self._numbers = count(1)
        #: Numbers of requests to be run again, between two runs.
        self._between: set[int] = set()
        #: The batches that are with the process, which runs them in this order.
        self._runs: deque[RunningBatch] = deque()
        #: When the process had run the last batch, by perf_counter_ns().
        self._ran_ns = 0

    @property
    def executing(self) -> Collection[InferRequest]:
        """The open requests, except those between two runs. Any thread."""
        return [one for number, one in [*self._open.items()] if number not in self._between]

    def has(self, request: InferRequest) -> bool:
        """Whether it is open. Any thread."""
        return self._number_of(request) is not None

    def open_one(self, number: int) -> InferRequest | None:
        return self._open.get(number)

    # To the process

    def begin(self, batches: Sequence[Batch]) -> None:
        answers = self._instance.answers
        for batch in batches:
            self._begin(batch, answers)
        self._worker.link.write()

    def _begin(self, batch: Batch, answers: Answers) -> None:
        try:
            requests = answers.prepared(batch)
            numbers = []
            for request in requests:
                numbers.append(self._numbered(request))  # noqa: PERF401 - takes less
            run = RunningBatch(batch, requests, answers.now(), numbers=numbers, codec=self._codec)
            for request in requests:
                if request.trace is not None:
                    run.trace = begun(requests, batch, self._instance, run.started)
                    break
            if requests:
                self._runs.append(run)
                large = not self._codec.sends_little and are_large([r.inputs for r in requests])
                self._worker.link.add(run, large=large)
            else:
                self._worker.post(self._finish, run)
        except Exception:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            answers.crashed(self._instance, batch)

    def refused(self, run: RunningBatch, error: Exception) -> None:
        if run not in self._runs:
            return
        self._runs.remove(run)
        try:
            if isinstance(error, ValueError):
                text = f"model {self._config.name!r}: {error}"
                run.refuse(Failure("RequestTooLarge", text))
            elif not isinstance(error, NothingToSend):
                raise error
        except Exception:  # noqa: BLE001 - this process lacks memory or descriptors
            self._forget(run.numbers)
            self._instance.answers.crashed(self._instance, run.batch)
        else:
            self._finish(run)

    def _finish(self, run: RunningBatch) -> None:
        """A batch ends without having run."""
        self._forget(run.numbers)
        run.end()
        self._instance.answers.finished(self._instance, (run,))

    def cancel(self, request: InferRequest) -> None:
        """Notify the model that this request's caller has left."""
        number = self._number_of(request)
        if number is not None:
            self._worker.link.send(Plain(["cancel", number]))

    def give_up(self) -> None:
        """Fail the requests that have outlived the time to drain, and cancel them in the model."""
        if not self._worker.is_linked:  # they failed when its end was noticed
            return
        unloading = ModelNotReady(f"model {self._config.name!r} is unloading")
        open_requests, self._open = self._open, {}
        for number, request in open_requests.items():
            self._instance.answers.fail(request, unloading)
            self._worker.link.send(Plain(["cancel", number]))

    def forget_put_back(self) -> None:
        """Forget the requests to be run again: the warm-up is over."""
        self._forget(self._between)

    # From the process

    def executed(
        self, started_at: int, infer_ns: int, failure: list[str] | None, answers: Sequence[Any]
    ) -> BatchRun:
        """The oldest batch has been run. An answer is a decoded response, None (responses are sent
        separately), "again" or "failed"."""
        if not self._runs:
            raise Garbage("the result of a batch that does not run")
        run = self._runs.popleft()
        for index, answer in zip(run.members, answers, strict=True):
            number = run.numbers[index]
            if answer == "again" and number in self._open:
                run.outcomes[index] = self._again()
                self._between.add(number)
            elif answer is not None and self._open.pop(number, None) is not None:
                run.outcomes[index] = self._outcome(run, index, failure, answer)
            else:
                run.leave(index)
        if len(run.members) < len(run.numbers):
            sent = set(run.members)
            self._forget([n for index, n in enumerate(run.numbers) if index not in sent])
        self._ran_ns = run.ran(started_at, infer_ns, self._ran_ns)
        return run

    def responded(self, number: int, final: bool, decoded: Decoded | Failure | None) -> None:
        """A response sender has sent something."""
        request = self._open.get(number)
        if request is None:
            return  # its client is gone, or had an error
        answers, instance = self._instance.answers, self._instance
        instance.busy_since = instance.busy_since and answers.now()  # progress
        sends = True
        if decoded is not None:
            outcome = self._codec.answer(request, decoded)
            if isinstance(outcome, Failure):
                answers.failed(request, outcome, instance.name)
                sends = False
            elif self._codec.decoupled:
                sends = answers.respond(request, _response(request, outcome, final))
            else:
                self._open.pop(number, None)
                answers.answer(request, _response(request, outcome, final))
                return
        if final:
            self._open.pop(number, None)
            if sends:
                answers.answer(request, InferResponse({}, 0))
        elif not sends:
            self._open.pop(number, None)
            self._worker.link.send(Plain(["cancel", number]))

    def _numbered(self, request: InferRequest) -> int:
        """The number of a request about to run. It is the same in each run, as response senders may
        be held. Forgets settled requests that were to run again."""
        number = None
        if self._between:
            self._between &= self._open.keys()
            self._forget([n for n in self._between if self._open[n].reply.settled])
            number = self._number_of(request)
        if number is None:
            number = next(self._numbers)
            self._open[number] = request
        self._between.discard(number)
        return number

    def _number_of(self, request: InferRequest) -> int | None:
        return next((number for number, one in [*self._open.items()] if one is request), None)

    def _outcome(
        self, run: RunningBatch, index: int, failure: list[str] | None, answer: Any
    ) -> Outcome:
        if failure is not None:
            text, traceback = failure
            return Failure("ModelFailed", text, traceback)
        request = run.requests[index]
        outcome = self._codec.answer(request, answer)
        if isinstance(outcome, Failure):
            return outcome
        outputs, answer_parameters = outcome
        if answer_parameters:
            run.parameters[request] = answer_parameters
        return outputs

    def _again(self) -> Failure:
        return Failure(
            RESCHEDULED,
            "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: that needs model"
            f" {self._config.name!r} to have sequence_batching {{ iterative_sequence: true }}",
        )

    def _forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._open.pop(number, None)


def _response(request: InferRequest, answer: ModelAnswer, final: bool) -> InferResponse:
    outputs, answer_parameters = answer
    return InferResponse(outputs, request.rows, answer_parameters, final)
