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

import heapq
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from math import ceil, inf
from typing import Any

from wherry.scheduler.forecast import Forecast
from wherry.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.values.errors import Cancelled, InvalidRequest, SequenceLost, WherryError
from wherry.values.reply import Reply
from wherry.values.request import Batch, Columns, InferRequest, InferResponse, SequenceStep

IDLE = Idle()
#: The step of a row that is there only because rows are slots and this slot has nothing to run.
NOT_READY = SequenceStep(0)


@dataclass(eq=False, slots=True)
class OpenSequence:
    """A sequence between its START and its END."""

    id: int | str
    waiting: deque[InferRequest] = field(default_factory=deque)
    #: Its instance and slot; None: it waits in the backlog, or is over.
    instance: int | None = None
    slot: int = 0
    #: Its last request has come: only another START may follow.
    ended: bool = False
    #: When it was last heard of, and since when its next step could run.
    touched_at: float = 0.0
    ready_since: float = 0.0
    running: InferRequest | None = None
    #: An entry of the idle clock is there for it.
    watched: bool = False
    #: For the shell: the state tensors that its next step takes, and their shapes if they are not
    #: those of the START.
    state: Columns = field(default_factory=dict)
    state_shapes: Hashable = None


class Slots:
    """The slots of one instance, and which of their sequences have something to run."""

    __slots__ = ("free", "ready", "taken")

    def __init__(self, slots: int) -> None:
        self.free = list(range(slots))
        self.taken: dict[int, OpenSequence] = {}
        self.ready: dict[OpenSequence, None] = {}

    def take(self, sequence: OpenSequence) -> None:
        sequence.slot = heapq.heappop(self.free)
        self.taken[sequence.slot] = sequence
        if sequence.waiting:
            self.ready[sequence] = None

    def give_back(self, sequence: OpenSequence) -> None:
        del self.taken[sequence.slot]
        self.ready.pop(sequence, None)
        heapq.heappush(self.free, sequence.slot)


class SequenceBatcher:
    """Batches of at most `max_batch_size` rows, one step of a sequence each.

    Every instance has `slots` slots (0: as many as rows). `rows_are_slots`: row i of a batch is
    slot i, and slots without a step get a row that is not ready; a model that keeps its state by
    row needs it. `iterative`: each request is a sequence of its own, which the model runs again
    until it is done (`reschedule`).
    """

    runs_sequences = True

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
        self.queued_requests = 0
        self.forecast = Forecast()
        self._places: dict[int, Slots] = {}
        self._backlog: dict[OpenSequence, None] = {}
        #: Sequences that a further step may belong to.
        self._open: dict[int | str, OpenSequence] = {}
        self._running: dict[InferRequest, OpenSequence] = {}
        self._order = count(1)
        self._deadlines: list[tuple[float, int, InferRequest]] = []
        self._idle: list[tuple[float, int, OpenSequence]] = []
        self._broken: list[tuple[InferRequest, WherryError]] = []

    def __repr__(self) -> str:
        return (
            f"<SequenceBatcher {self.model}: {self.open_sequences} sequences,"
            f" {self.queued_requests} queued>"
        )

    @property
    def open_sequences(self) -> int:
        return len(self._backlog) + sum(len(place.taken) for place in self._places.values())

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
            sequence = self._open.get(step.id)
            if not step.start and (sequence is None or sequence.ended):
                raise InvalidRequest(
                    f"inference request for sequence {step.id} to model {self.model!r} must"
                    " specify the START flag on the first request of the sequence"
                )
        if self.max_queue_size is not None and self.queued_requests >= self.max_queue_size:
            return False
        request.sequence = step
        request.enqueued_at = now
        if sequence is None:
            sequence = self._begin(step.id, now)
        sequence.ended = step.end
        self._append(sequence, request, now)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, next(self._order), request))
        return True

    def requeue(self, request: InferRequest, now: float) -> None:
        """A worker that died has taken its sequences along: nobody asks for this."""
        raise NotImplementedError

    def reschedule(self, request: InferRequest, now: float) -> bool:
        """The model wants to run this request, whose batch is about to be `finished`, again.

        False if it cannot be: the model is not iterative, or the sequence is over.
        """
        sequence = self._running.get(request)
        if not self.iterative or sequence is None or sequence.instance is None:
            return False
        assert request.sequence is not None
        request.sequence = replace(request.sequence, start=False)
        self._append(sequence, request, now)
        return True

    def cancel(self, request: InferRequest) -> bool:
        """Forget a waiting step, and with it those behind it, which are `broken`: whoever
        cancels one cancels the sequence, and none is skipped unseen."""
        return self._forget(request, "an earlier request of it was cancelled", Cancelled)

    def expire(self, now: float) -> Sequence[InferRequest]:
        """Give up the unanswered requests whose deadline has passed, and the idle sequences."""
        expired = []
        while self._next_deadline() <= now:
            request = heapq.heappop(self._deadlines)[2]
            late = "an earlier request of it came too late"
            if self._forget(request, late, SequenceLost) or request in self._running:
                expired.append(request)  # else it is broken already
        while self._idle and self._idle[0][0] <= now:
            sequence = heapq.heappop(self._idle)[2]
            sequence.watched = False
            if sequence.instance is None or sequence.waiting or sequence.running:
                continue  # over, or watched again when it is quiet
            if sequence.touched_at + self.max_sequence_idle <= now:
                self._close(sequence)
            else:
                self._watch(sequence)
        return expired

    def next_deadline(self) -> float | None:
        first = min(self._next_deadline(), self._idle[0][0] if self._idle else inf)
        return None if first == inf else first

    def finished(self, requests: Sequence[InferRequest], seconds: float | None, now: float) -> None:
        self.forecast.ended(requests, seconds)
        for request in requests:
            sequence = self._running.pop(request, None)
            if sequence is None:
                continue  # a row that was not ready
            sequence.running = None
            sequence.touched_at = now
            if self.iterative and not sequence.waiting:
                self._close(sequence)
            elif not sequence.waiting:
                self._watch(sequence)

    def instance_up(self, instance: int) -> None:
        """An instance is there (again): sequences may have its slots."""
        self._places[instance] = Slots(self.slots)
        self.forecast.instances = len(self._places)
        self._fill()

    def instance_lost(self, instance: int) -> None:
        """An instance is gone, and what its model knew of its sequences."""
        place = self._places.pop(instance, None)
        self.forecast.instances = max(1, len(self._places))
        for sequence in list(place.taken.values()) if place else ():
            sequence.instance = None
            self._break(sequence, "its worker is gone")

    def broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """Steps that will never run since an earlier one did not, and why."""
        broken, self._broken = self._broken, []
        return broken

    def waiting(self) -> Sequence[InferRequest]:
        taken = [s for place in self._places.values() for s in place.taken.values()]
        return [request for s in (*taken, *self._backlog) for request in s.waiting]

    def clear(self) -> Sequence[InferRequest]:
        taken = [s for place in self._places.values() for s in place.taken.values()]
        waiting = self.waiting()
        for request in waiting:
            request.queued = None
        for sequence in taken:
            sequence.instance = None
        self._places = {number: Slots(self.slots) for number in self._places}
        self._open.clear()
        self._backlog.clear()
        self.queued_requests = 0
        return waiting

    def may_run_alone(self, now: float) -> bool:
        return False

    def ran_alone(self, seconds: float, now: float) -> None:
        """Nothing does."""

    def is_short(self, seconds: float) -> bool:
        """How long others keep their slots, nobody knows: no step is refused for that."""
        return True

    def predicted_seconds(self, request: InferRequest) -> float:
        """Of a step that has a slot, or finds one at once."""
        step = request.sequence
        sequence = self._open.get(step.id) if step is not None else None
        ready = sum([len(place.ready) for place in self._places.values()])
        seconds = self.forecast.answer_seconds(ready, self.max_batch_size)
        # Those of its own sequence run one after the other.
        earlier = len(sequence.waiting) if sequence is not None else 0
        return seconds + earlier * self.forecast.batch_seconds(min(ready + 1, self.max_batch_size))

    def turns_within(self, seconds: float) -> float:
        return self.forecast.turns.within(seconds)

    def give_up(self, turns: float) -> Sequence[InferRequest]:
        return ()  # a sequence that was begun is not cut short

    def head(self) -> tuple[float, float] | None:
        waiting = [s.waiting[0] for place in self._places.values() for s in place.ready]
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
            "open_sequences": self.open_sequences,
            "backlog_sequences": len(self._backlog),
            "max_queue_delay_seconds": self.max_queue_delay,
            "max_sequence_idle_seconds": self.max_sequence_idle,
            **self.forecast.explain(self.queued_requests, self.max_batch_size),
        }

    def check(self) -> None:
        """The invariants: what must hold after every call."""
        waiting = 0
        for number, place in self._places.items():
            for slot, sequence in place.taken.items():
                assert (sequence.instance, sequence.slot) == (number, slot)
                assert bool(sequence.waiting) == (sequence in place.ready)
                waiting += len(sequence.waiting)
            assert sorted([*place.free, *place.taken]) == list(range(self.slots))
            assert not (self._backlog and place.free), "a sequence waits beside a free slot"
        for sequence in self._backlog:
            assert sequence.instance is None
            assert sequence.waiting
            waiting += len(sequence.waiting)
        assert waiting == self.queued_requests

    # What to do

    def next_action(self, now: float, instance: int = 0) -> Action:
        """Decide for this free instance. Call again after each `Dispatch`, for another one."""
        place = self._places.get(instance)
        if place is None or not place.ready:
            return IDLE
        wake_at = inf
        alike: dict[Hashable, list[OpenSequence]] = {}
        for sequence in sorted(place.ready, key=lambda sequence: sequence.ready_since):
            head = sequence.waiting[0]
            key = head.shape_key, None if _starts(head) else sequence.state_shapes
            alike.setdefault(key, []).append(sequence)
        for sequences in alike.values():
            leaves_at = sequences[0].ready_since + self.max_queue_delay
            rows, reason = self._leaving(len(sequences), leaves_at, now)
            if rows:
                requests = [self._start(sequence, now) for sequence in sequences[:rows]]
                if self.rows_are_slots:
                    requests = self._in_slots(sequences[:rows], requests)
                self.forecast.began(len(requests))
                return Dispatch(Batch(tuple(requests), len(requests), reason))
            wake_at = min(wake_at, leaves_at)
        return Wait(wake_at)

    def _leaving(self, ready: int, leaves_at: float, now: float) -> tuple[int, str]:
        """How many of so many steps may leave now (0: none yet), and why."""
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

    def _start(self, sequence: OpenSequence, now: float) -> InferRequest:
        request = sequence.waiting.popleft()
        self.queued_requests -= 1
        request.queued = None
        request.run = sequence
        sequence.running = request
        sequence.ready_since = now
        self._running[request] = sequence
        if _ends(request) or (sequence.ended and not sequence.waiting):
            self._succeed(sequence)
        elif not sequence.waiting:
            self._place_of(sequence).ready.pop(sequence)
        return request

    def _in_slots(
        self, sequences: Sequence[OpenSequence], requests: Sequence[InferRequest]
    ) -> list[InferRequest]:
        """One row for each slot up to the last that has a step."""
        by_slot = {s.slot: request for s, request in zip(sequences, requests, strict=True)}
        return [by_slot.get(slot) or not_ready(requests[0]) for slot in range(max(by_slot) + 1)]

    # Slots

    def _begin(self, id: int | str, now: float) -> OpenSequence:
        sequence = OpenSequence(id, touched_at=now)
        if not self.iterative:
            self._open[id] = sequence
        return sequence

    def _append(self, sequence: OpenSequence, request: InferRequest, now: float) -> None:
        request.queued = sequence
        sequence.touched_at = now
        sequence.waiting.append(request)
        self.queued_requests += 1
        if len(sequence.waiting) == 1:
            sequence.ready_since = now
        if sequence.instance is not None:
            self._place_of(sequence).ready[sequence] = None
        elif sequence not in self._backlog:
            self._backlog[sequence] = None
            self._fill()

    def _fill(self) -> None:
        """Give the free slots to those that have waited longest for one."""
        while self._backlog and self._places:
            number, place = max(self._places.items(), key=lambda item: len(item[1].free))
            if not place.free:
                return
            sequence = next(iter(self._backlog))
            del self._backlog[sequence]
            sequence.instance = number
            place.take(sequence)

    def _succeed(self, sequence: OpenSequence) -> None:
        """Its END runs. What came behind is a sequence of its own and waits for its turn."""
        rest, sequence.waiting = sequence.waiting, deque()
        self._close(sequence, fill=not rest)
        if rest:
            successor = self._begin(sequence.id, sequence.touched_at)
            successor.waiting, successor.ended = rest, sequence.ended
            successor.ready_since = sequence.ready_since
            for request in rest:
                request.queued = successor
            self._backlog[successor] = None
            self._fill()

    def _close(self, sequence: OpenSequence, *, fill: bool = True) -> None:
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]
        self._backlog.pop(sequence, None)
        if sequence.instance is not None:
            self._place_of(sequence).give_back(sequence)
            sequence.instance = None
        if fill:
            self._fill()

    def _forget(self, request: InferRequest, why: str, kind: type[WherryError]) -> bool:
        sequence = request.queued
        if not isinstance(sequence, OpenSequence):
            return False
        request.inputs = {}
        self._break(sequence, why, request, kind)
        return True

    def _break(
        self,
        sequence: OpenSequence,
        why: str,
        missing: InferRequest | None = None,
        kind: type[WherryError] = SequenceLost,
    ) -> None:
        """A step is missing: those behind it, up to the next START, cannot run."""
        waiting = list(sequence.waiting)
        at = 0 if missing is None else waiting.index(missing)
        behind = waiting[at + (missing is not None) :]
        lost = list(takewhile(lambda request: not _starts(request), behind))
        rest = behind[len(lost) :]
        error = kind(
            f"model {self.model!r}: sequence {sequence.id} cannot go on: {why}; start it again"
        )
        self._broken += [(request, error) for request in lost]
        gone = waiting[at : len(waiting) - len(rest)]
        for request in gone:
            request.queued = None
        self.queued_requests -= len(gone)
        sequence.waiting = deque(waiting[:at] + rest)
        sequence.ended = sequence.ended or not rest
        if not sequence.waiting:
            self._close(sequence)
        elif sequence.instance is None:
            self._backlog[sequence] = None
            self._fill()

    def _place_of(self, sequence: OpenSequence) -> Slots:
        assert sequence.instance is not None
        return self._places[sequence.instance]

    # Moments

    def _watch(self, sequence: OpenSequence) -> None:
        if not sequence.watched and sequence.instance is not None:
            sequence.watched = True
            at = sequence.touched_at + self.max_sequence_idle
            heapq.heappush(self._idle, (at, next(self._order), sequence))

    def _next_deadline(self) -> float:
        while self._deadlines and self._deadlines[0][2].reply.settled:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else inf


def _starts(request: InferRequest) -> bool:
    return request.sequence is not None and request.sequence.start


def _ends(request: InferRequest) -> bool:
    return request.sequence is not None and request.sequence.end


def not_ready(like: InferRequest) -> InferRequest:
    """A row for a slot that has nothing to run: nobody waits for its answer."""
    row = InferRequest(like.inputs, 1, Reply(_nobody), shape_key=like.shape_key)
    row.sequence = NOT_READY
    return row


def _nobody(reply: Reply[InferResponse]) -> None:
    """Whom the answer of a row that was not ready goes to."""
