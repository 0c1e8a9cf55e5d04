"""Which step of which sequence runs next, and on which instance?

A sequence is several requests with one id, from START to END. It owns a slot of one instance as
long as it is open, so that a model may keep what it needs between the steps; its steps run one
after the other, in order of arrival. Sequences that find no slot wait in the backlog.

Two of Triton's strategies, which differ in how many slots there are and when a batch leaves:

- direct: as many slots as rows in a batch, one step of each sequence that has one. A batch waits
  for `max_queue_delay` unless `minimum_slot_utilization` of the slots have a step.
- oldest: any number of slots; a batch of those whose step has waited longest, formed as
  DynamicBatcher does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import count
from math import ceil, inf
from typing import Any

from wherry.core.scheduler.forecast import Forecast
from wherry.core.scheduler.open_sequences import OpenSequence, OpenSequences, not_ready, starts
from wherry.core.scheduler.policy import Action, Dispatch, Idle, Scheduler, Wait
from wherry.core.scheduler.queue import Deadlines
from wherry.core.values.errors import Cancelled, InvalidRequest, SequenceLost, WherryError
from wherry.core.values.request import Batch, InferRequest, SequenceStep

IDLE = Idle()


class SequenceBatcher(Scheduler):
    """Batches of at most `max_batch_size` rows, one step of a sequence each.

    Every instance has `slots` slots (0: as many as rows). `rows_are_slots`: row i of a batch is
    slot i, and slots without a step get a row that is not ready; a model that keeps its state by
    row needs it. `iterative`: each request is a sequence of its own, which the model runs again
    until it is done (`reschedule`).
    """

    runs_sequences = may_expire = True

    def __init__(
        self,
        *,
        model: str,
        max_batch_size: int,
        slots: int,
        max_queue_delay: float = 0.0,
        minimum_slot_utilization: float = 0.0,
        preferred_batch_sizes: Sequence[int] = (),
        max_sequence_idle: float = 1.0,
        max_queue_size: int | None = None,
        rows_are_slots: bool = False,
        iterative: bool = False,
    ) -> None:
        self.model = model
        self.max_batch_size = max(1, max_batch_size)
        self.slots = slots or self.max_batch_size
        self.max_queue_delay = max_queue_delay
        self.enough = ceil(minimum_slot_utilization * self.slots)
        self.preferred_batch_sizes = sorted(preferred_batch_sizes, reverse=True)
        self.max_sequence_idle = max_sequence_idle
        self.max_queue_size = max_queue_size
        self.rows_are_slots = rows_are_slots
        self.iterative = iterative
        self.forecast = Forecast()
        self.decisions = self.forecast.decisions
        self.queue = self.sequences = OpenSequences(
            model, slots=self.slots, max_idle=max_sequence_idle, reuses_ids=not iterative
        )
        self._running: dict[InferRequest, OpenSequence] = {}
        self._order = count(1)
        self._deadlines = Deadlines()

    def __repr__(self) -> str:
        return (
            f"<SequenceBatcher {self.model}: {len(self.sequences)} sequences,"
            f" {self.sequences.queued_requests} queued>"
        )

    # What happens

    def enqueue(self, request: InferRequest, now: float) -> bool:
        """Take a step in; False if the queue is full, InvalidRequest if it follows no START."""
        step = request.sequence
        sequence = None
        if self.iterative:
            id = step.id if step and step.id else next(self._order)
            step = SequenceStep(id, start=True)
        else:
            assert step is not None
            sequence = self.sequences.find(step)
            if not step.start and (sequence is None or sequence.ended):
                raise InvalidRequest(
                    f"inference request for sequence {step.id} to model {self.model!r} must"
                    " specify the START flag on the first request of the sequence"
                )
        if (
            self.max_queue_size is not None
            and self.sequences.queued_requests >= self.max_queue_size
        ):
            return False
        request.sequence = step
        request.enqueued_at = now
        if sequence is None:
            sequence = self.sequences.begin(step.id, now)
        sequence.ended = step.end
        self.sequences.append(sequence, request, now)
        self._deadlines.add(request, request.deadline)
        return True

    def requeue(self, request: InferRequest, now: float, *, alone: bool) -> None:
        raise AssertionError("a worker that died has taken its sequences along")

    def reschedule(self, request: InferRequest, now: float) -> bool:
        sequence = self._running.get(request)
        if not self.iterative or sequence is None or sequence.instance is None:
            return False
        assert request.sequence is not None
        request.sequence = replace(request.sequence, start=False)
        self.sequences.append(sequence, request, now)
        return True

    def cancel(self, request: InferRequest) -> bool:
        """Forget a waiting step, and with it those behind it, which are `broken`: to cancel a step
        is to cancel its sequence, as steps are never skipped silently."""
        why = "an earlier request of it was cancelled"
        return self.sequences.forget(request, why, Cancelled)

    def expire(self, now: float) -> Sequence[InferRequest]:
        """Forget and return unanswered requests whose deadline has passed; close idle sequences."""
        expired = []
        for request in self._deadlines.take_due(now):
            late = "an earlier request of it came too late"
            if self.sequences.forget(request, late, SequenceLost) or request in self._running:
                expired.append(request)  # else it is broken already
        self.sequences.close_idle(now)
        return expired

    def next_deadline(self) -> float | None:
        first = min(self._deadlines.next(), self.sequences.next_idle())
        return None if first == inf else first

    def finished(
        self,
        requests: Sequence[InferRequest],
        seconds: float | None,
        now: float,
        *,
        batches: int = 1,
    ) -> None:
        self.forecast.ended(requests, seconds, batches)
        for request in requests:
            sequence = self._running.pop(request, None)
            if sequence is not None:  # else a row that was not ready
                self.sequences.ended(sequence, now)

    def instance_up(self, instance: int) -> None:
        self.sequences.add_instance(instance)
        self.forecast.instances = self.sequences.instances

    def instance_lost(self, instance: int) -> None:
        self.sequences.remove_instance(instance)
        self.forecast.instances = max(1, self.sequences.instances)

    def broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        return self.sequences.broken()

    def waiting(self) -> Sequence[InferRequest]:
        return self.sequences.waiting()

    def clear(self) -> Sequence[InferRequest]:
        return self.sequences.clear()

    def predicted_seconds(self, request: InferRequest) -> float:
        """Of a step that has a slot, or finds one at once."""
        step = request.sequence
        sequence = self.sequences.find(step) if step is not None else None
        ready = len(self.sequences.all_ready())
        seconds = self.forecast.answer_seconds(ready, self.max_batch_size)
        # Those of its own sequence run one after the other.
        earlier = len(sequence.waiting) if sequence is not None else 0
        return seconds + earlier * self.forecast.batch_seconds(min(ready + 1, self.max_batch_size))

    def head(self) -> tuple[float, float] | None:
        waiting = [sequence.waiting[0] for sequence in self.sequences.all_ready()]
        if not waiting:
            return None
        rows = min(len(waiting), self.max_batch_size)
        return min([r.enqueued_at for r in waiting]), self.forecast.batch_seconds(rows)

    def limit_rows(self, rows: int) -> None:
        if not self.rows_are_slots:
            self.max_batch_size = max(1, min(self.max_batch_size, rows))

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "sequence",
            "max_batch_rows": self.max_batch_size,
            "slots_per_instance": self.slots,
            "open_sequences": len(self.sequences),
            "backlog_sequences": self.sequences.in_backlog,
            "max_queue_delay_seconds": self.max_queue_delay,
            "max_sequence_idle_seconds": self.max_sequence_idle,
            "plan": {
                "rows": self.max_batch_size if self.max_queue_delay else None,
                "wait_seconds": self.max_queue_delay,
            },
            **self.forecast.explain(self.sequences.queued_requests, self.max_batch_size),
        }

    # What to do

    def next_action(self, now: float, instance: int = 0, *, ahead: bool = False) -> Action:
        """Decide for this free instance. Call again after each `Dispatch`, for another one."""
        ready = self.sequences.ready(instance)
        if not ready or ahead:
            return IDLE
        wake_at = inf
        alike: dict[Hashable, list[OpenSequence]] = {}
        for sequence in sorted(ready, key=lambda sequence: sequence.ready_since):
            head = sequence.waiting[0]
            key = head.shape_key, None if starts(head) else sequence.state_shapes
            alike.setdefault(key, []).append(sequence)
        for sequences in alike.values():
            ready_since = sequences[0].ready_since
            leaves_at = ready_since + self.max_queue_delay
            rows, reason = self._leaving(len(sequences), leaves_at, now)
            if rows:
                requests = [self.sequences.start(sequence, now) for sequence in sequences[:rows]]
                self._running.update(zip(requests, sequences, strict=False))
                if self.rows_are_slots:
                    requests = _in_slots(sequences[:rows], requests)
                total, behind = len(requests), self.sequences.queued_requests
                self.forecast.began(requests, now, total, behind, ready_since, reason, instance)
                return Dispatch(Batch(tuple(requests), total, reason))
            wake_at = min(wake_at, leaves_at)
        self.decisions.held(now, "delay", instance=instance)
        return Wait(wake_at)

    def _leaving(self, ready: int, leaves_at: float, now: float) -> tuple[int, str]:
        """How many of the `ready` steps may leave now (0: none yet), and why."""
        if ready >= self.max_batch_size:
            return self.max_batch_size, "full"
        if not self.max_queue_delay:
            return ready, "idle"
        if self.enough and ready >= self.enough:
            return ready, "slots"
        for size in self.preferred_batch_sizes:
            if size <= ready:
                return size, "preferred"
        return (ready, "delay") if now >= leaves_at else (0, "")


def _in_slots(
    sequences: Sequence[OpenSequence], requests: Sequence[InferRequest]
) -> list[InferRequest]:
    """One row for each slot up to the last that has a step."""
    by_slot = {s.slot: request for s, request in zip(sequences, requests, strict=True)}
    return [by_slot.get(slot) or not_ready(requests[0]) for slot in range(max(by_slot) + 1)]
