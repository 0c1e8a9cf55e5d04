"""What is the outcome of each request of a batch that a Python model runs?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from time import perf_counter_ns
from typing import Any

from wherry.backends.triton_python.request_codec import RequestCodec
from wherry.backends.triton_python.stub.wire import Outgoing
from wherry.instances.executable import Execution, Failure, Outcome
from wherry.instances.instance import BatchRun
from wherry.values.request import Batch, InferRequest

#: The outcome of a request that has none yet.
_NONE_YET = Failure("NoOutcome", "")


class NothingToSend(Exception):
    """No request of a batch can be sent; each has its outcome."""


class RunningBatch(BatchRun):
    """A batch from when it was given to its end, and the message that has it run.

    `numbers` identify its requests to the process.
    """

    __slots__ = ("codec", "members", "numbers", "outcomes", "parameters", "started_ns")

    def __init__(
        self,
        batch: Batch,
        requests: Sequence[InferRequest],
        numbers: Sequence[int],
        codec: RequestCodec,
        started: float,
    ) -> None:
        super().__init__(batch, requests, Execution(), started)
        self.numbers = numbers
        self.codec = codec
        #: `started`, by perf_counter_ns().
        self.started_ns = perf_counter_ns()
        #: The positions of the requests that are sent.
        self.members: list[int] = []
        self.outcomes: list[Outcome] = [_NONE_YET] * len(requests)
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

    def was_behind(self, ran_ns: int) -> None:
        """The process had run the batch before this one at that time: until then it waited."""
        behind_ns = ran_ns - self.started_ns
        if behind_ns > 0:
            self.started += behind_ns * 1e-9
            self.started_ns = ran_ns

    def end(self, input_ns: int = 0, infer_ns: int = 0, output_ns: int = 0) -> None:
        """The batch has run, or is not run. Requests without an outcome are answered by response
        senders."""
        outcomes, members = self.outcomes, self.members
        later: Set[InferRequest] = frozenset()
        if _NONE_YET in outcomes:
            later = {r for r, one in zip(self.requests, outcomes, strict=True) if one is _NONE_YET}
        self.execution = Execution(
            outcomes,
            max(0, input_ns),
            infer_ns,
            max(0, output_ns),
            [sum([self.requests[index].rows for index in members])] if members else [],
            later=later,
            parameters=self.parameters,
        )
