"""What is the outcome of each request of a batch that a Python model runs?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from time import perf_counter_ns
from typing import Any

from wherry.core.api import Batch, BatchRun, Execution, Failure, InferRequest, Outcome
from wherry.triton.python.request_codec import RequestCodec
from wherry.triton.python.stub.wire import Outgoing

#: The outcome of a request that has none yet.
_NO_OUTCOME = Failure("NoOutcome", "")


class NothingToSend(Exception):
    """No request of a batch can be sent; each has its outcome."""


class RunningBatch(BatchRun):
    """A batch from when it was given to its end, and the message that has it run.

    `numbers` identify its requests to the process.
    """

    __slots__ = ("codec", "later", "members", "numbers", "outcomes", "parameters", "started_ns")

    def __init__(
        self,
        batch: Batch,
        requests: Sequence[InferRequest],
        numbers: Sequence[int],
        codec: RequestCodec,
        started: float,
    ) -> None:
        self.batch = batch
        self.requests = requests
        self.started = started
        self.trace = None
        self.numbers = numbers
        self.codec = codec
        #: `started`, by perf_counter_ns().
        self.started_ns = perf_counter_ns()
        #: The positions of the requests that are sent.
        self.members: list[int] = []
        self.outcomes: list[Outcome] = [_NO_OUTCOME] * len(requests)
        #: Requests without an outcome: they are answered by response senders.
        self.later: Set[InferRequest] = frozenset()
        #: What the model says to a request beside its outputs.
        self.parameters: dict[InferRequest, Mapping[str, Any]] = {}

    def build(self, out: Outgoing) -> list[Any]:
        """What is wrong with a request becomes its outcome. Raises NothingToSend."""
        sent: list[list[Any]] = []
        self.members = []
        for index, request in enumerate(self.requests):
            try:
                tensors = self.codec.tensors(out, request)
            except (TypeError, ValueError, AttributeError) as error:
                text = f"model {self.codec.model_name!r}: {error}"
                self.outcomes[index] = Failure("InvalidRequest", text)
                continue
            self.members.append(index)
            sent.append(self.codec.described(self.numbers[index], request, tensors))
        if not sent:
            raise NothingToSend
        return ["execute", sent]

    def refuse(self, failure: Failure) -> None:
        """The batch cannot be sent: that is the outcome of each request that could be."""
        for index in self.members:
            self.outcomes[index] = failure

    def leave(self, index: int) -> None:
        """The request at this position has no outcome."""
        self.later = self.later | {self.requests[index]}

    def ran(self, started_at: int, infer_ns: int, ran_ns: int) -> int:
        """The process has run the batch, from `started_at` on and for `infer_ns`, and the batch
        before until `ran_ns`: so long this one waited. Returns when it had run, all by
        perf_counter_ns()."""
        behind_ns = ran_ns - self.started_ns
        if behind_ns > 0:
            self.started += behind_ns * 1e-9
            self.started_ns = ran_ns
        # The clock is the same in both processes. Handing over counts as input and as output.
        ended_at = started_at + infer_ns
        self.end(started_at - self.started_ns, infer_ns, perf_counter_ns() - ended_at)
        return ended_at

    def end(self, input_ns: int = 0, infer_ns: int = 0, output_ns: int = 0) -> None:
        """The batch ends, with its outcomes and these durations."""
        rows = 0
        for index in self.members:
            rows += self.requests[index].rows
        self.execution = Execution(
            self.outcomes,
            input_ns if input_ns > 0 else 0,
            infer_ns,
            output_ns if output_ns > 0 else 0,
            [rows] if self.members else [],
            0,
            self.later,
            self.parameters,
        )
