"""What becomes of the requests of a batch: what they are given before it runs, and answered after?

This is what an instance talks to. What follows for the queue and the instances is the dispatcher's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from wherry.core.instances.delivery import Delivery
from wherry.core.instances.execution import RESCHEDULED, Execution, Failure, Outcome
from wherry.core.instances.instance import BatchRun, Instance
from wherry.core.instances.poison_watch import PoisonWatch
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.stream_run import FailureHandler, ModelStreams, StreamRun
from wherry.core.scheduler.open_sequences import NOT_READY
from wherry.core.values.errors import Cancelled, WherryError
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Batch, InferRequest, InferResponse

log = logging.getLogger("wherry")


class BatchOwner(FailureHandler, Protocol):
    """What the dispatcher is told. No lock is held."""

    def ended(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        """Batches of the instance have ended: let it go on, if it can meanwhile. Called before
        their callers are told, as these may be back at once. `callers_answered`
        follows."""
        ...

    def callers_answered(self, instance: Instance) -> None:
        """The callers of all batches of the instance that have ended were told."""
        ...

    def reschedule(self, request: InferRequest) -> bool:
        """Queue a request again whose model wants to run it once more; False if it cannot be."""
        ...

    def limit_rows(self, rows: int) -> None:
        """Form no batch with more rows from now on."""
        ...

    def request_ended(self) -> None:
        """A request that had outlived its batch was answered."""
        ...


class Outcomes:
    """The outcomes of one model's batches; what an instance knows as its `answers`."""

    def __init__(
        self,
        owner: BatchOwner,
        delivery: Delivery,
        streams: ModelStreams,
        poisons: PoisonWatch,
        inputs: SequenceInputs | None,
    ) -> None:
        self._model = streams.config.name
        self._owner = owner
        self._delivery = delivery
        self._statistics = streams.statistics
        #: The runtime's clock.
        self.now = streams.clock
        self._poisons = poisons
        #: If requests are steps of sequences: what their model is given beside.
        self._inputs = inputs
        self._streams = streams if inputs is None else replace(streams, keep=inputs.keep)

    def prepared(self, batch: Batch) -> Sequence[InferRequest]:
        if self._inputs is None:
            for request in batch.requests:
                if request.reply.settled:
                    return [request for request in batch.requests if not request.reply.settled]
            return batch.requests
        requests = list(batch.requests)  # no step is skipped unseen
        self._inputs.fill(requests)
        return requests

    # A batch that answers once

    def finished(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        try:
            ran: list[tuple[BatchRun, Sequence[InferRequest], Sequence[Outcome]]] = []
            for run in runs:
                execution = run.execution
                special = execution.later or execution.out_of_memory_rows
                if special or self._inputs is not None:
                    ran.append((run, *self._with_outcomes(run)))
                else:  # as nearly always
                    ran.append((run, run.requests, execution.outcomes))
            self._owner.ended(instance, runs)
            good: list[tuple[InferRequest, InferResponse]] = []
            bad: list[tuple[InferRequest, Failure]] = []
            for run, requests, outcomes in ran:
                if run.requests:
                    self._count(instance, run, requests)
                response_parameters = run.execution.parameters
                for request, outcome in zip(requests, outcomes, strict=True):
                    if isinstance(outcome, Failure):
                        bad.append((request, outcome))
                    elif request.reply.claim():
                        response = InferResponse(
                            outcome,
                            request.rows,
                            response_parameters.get(request) if response_parameters else None,
                        )
                        good.append((request, response))
            self._delivery.answer(good)
            for request, failure in bad:
                self._owner.failed(request, failure, instance.name)
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self._fail(instance, [run.batch for run in runs])
        self._owner.callers_answered(instance)

    def crashed(self, instance: Instance, batch: Batch) -> None:
        self._fail(instance, [batch])
        self._owner.callers_answered(instance)

    def _fail(self, instance: Instance, batches: Sequence[Batch]) -> None:
        log.exception("internal error", extra={"model": self._model})
        for batch in batches:
            for request in batch.requests:
                self._owner.fail(request, WherryError("internal error; see the server's log"))
        now = self.now()
        self._owner.ended(instance, [BatchRun(batch, (), Execution(), now) for batch in batches])

    def _count(self, instance: Instance, run: BatchRun, requests: Sequence[InferRequest]) -> None:
        """Count a batch of which `requests` have ended."""
        execution = run.execution
        instance.good_batches += 1
        if self._poisons.active:
            self._poisons.survived(requests)
        if run.trace is not None:
            took = execution.input_ns + execution.infer_ns + execution.output_ns
            run.trace.ended(run.started, took)
        self._statistics.executed(
            run.requests if self._inputs is None else requests,
            execution.executed_rows,
            run.batch.reason,
            run.started,
            execution.input_ns,
            execution.infer_ns,
            execution.output_ns,
        )

    def _with_outcomes(self, run: BatchRun) -> tuple[Sequence[InferRequest], Sequence[Outcome]]:
        """The requests that end with this batch, and their outcomes: not those that outlive it,
        run again, or only fill a slot."""
        requests, execution = run.requests, run.execution
        outcomes: Sequence[Outcome] = execution.outcomes
        if execution.out_of_memory_rows > 1:
            self._lacks_memory(execution.out_of_memory_rows)
        if execution.later:
            done = [i for i, request in enumerate(requests) if request not in execution.later]
            requests, outcomes = [requests[i] for i in done], [outcomes[i] for i in done]
        if self._inputs is None:
            return requests, outcomes
        answered: list[InferRequest] = []
        answers: list[Outcome] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if self._runs_on(request, outcome):
                continue
            answered.append(request)
            if not isinstance(outcome, Failure):
                outcome = self._inputs.keep(request, outcome)
            answers.append(outcome)
        return answered, answers

    def _lacks_memory(self, rows: int) -> None:
        """So many rows were too many. Half of them ran, or will say the same in their turn."""
        self._owner.limit_rows(rows // 2)
        log.warning(
            "batches limited: out of memory",
            extra={"model": self._model, "rows": rows, "from_now_on": rows // 2},
        )

    def _runs_on(self, request: InferRequest, outcome: Outcome | None) -> bool:
        """Has this row no outcome yet, or none at all?"""
        if request.sequence is NOT_READY:
            return True
        again = isinstance(outcome, Failure) and outcome.error == RESCHEDULED
        return again and not request.reply.settled and self._owner.reschedule(request)

    # A batch that streams

    def stream_run(
        self, instance: Instance, batch: Batch, requests: Sequence[InferRequest], started: float
    ) -> StreamRun:
        return StreamRun(self._streams, instance, batch, requests, started)

    def streamed(self, run: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        instance = run.instance
        assert isinstance(instance, Instance)
        try:
            instance.good_batches += 1
            if self._poisons.active:
                self._poisons.survived(run.requests)
            run.ended()
            for index, (request, outcome) in enumerate(zip(run.requests, outcomes, strict=True)):
                if not self._runs_on(request, outcome):
                    run.settle(index, outcome)
            self._owner.ended(instance, [BatchRun(run.batch, (), Execution(), run.started)])
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self._fail(instance, [run.batch])
        self._owner.callers_answered(instance)

    # Requests that outlive their batch

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        if request.reply.claim():
            self._delivery.answer([(request, response)])
        self._owner.request_ended()

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        reply = request.reply
        assert isinstance(reply, StreamReply)
        with self._statistics.lock:
            self._statistics.responses += 1
        if reply.send(response):
            return True
        unread = f"model {self._model!r}: the caller left {reply.unread} responses unread"
        self._owner.fail(request, Cancelled(unread))
        return False

    def fail(self, request: InferRequest, error: WherryError) -> None:
        self._owner.fail(request, error)

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self._owner.failed(request, failure, instance)
