"""What becomes of the requests that an instance warms up with?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wherry.instances.execution import RESCHEDULED, Execution, Failure, Outcome
from wherry.instances.instance import BatchRun, Instance
from wherry.instances.stream_run import StreamRun
from wherry.values.errors import LoadFailed, WherryError
from wherry.values.request import Batch, InferRequest, InferResponse


class WarmUp:
    """Takes the place of an instance's `answers` for one batch, which is not counted.

    `changed` is called after each thing that it is told.
    """

    def __init__(self, requests: Sequence[InferRequest], changed: Callable[[], None]) -> None:
        self._requests = requests
        self._changed = changed

    def is_over(self) -> bool:
        return all(request.reply.settled for request in self._requests)

    def check(self) -> None:
        """Raises LoadFailed if a request has failed."""
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

    def stream_run(
        self, instance: Instance, batch: Batch, requests: Sequence[InferRequest], started: float
    ) -> StreamRun:
        raise NotImplementedError  # a Python model's streams outlive their batch

    def streamed(self, run: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        raise NotImplementedError

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
