"""Which sequence has a slot of which instance, which waits for one, and what is its next step?"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from math import inf

from wherry.core.values.errors import SequenceLost, WherryError
from wherry.core.values.reply import Reply
from wherry.core.values.request import Columns, InferRequest, InferResponse, SequenceStep

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
    #: When it was last used, and since when its next step could run.
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


class OpenSequences:
    """The sequences of one model, from their START to their END, in the slots of its instances.
    Pure.

    A sequence keeps its slot for as long as it is open. One that finds none waits in the backlog,
    in order of arrival. After `max_idle` seconds without a step it is closed.
    """

    def __init__(self, model: str, *, slots: int, max_idle: float, reuses_ids: bool) -> None:
        """`reuses_ids`: a later request with the same id belongs to the same sequence."""
        self.queued_requests = 0
        self._model = model
        self._slots = slots
        self._max_idle = max_idle
        self._reuses_ids = reuses_ids
        self._places: dict[int, Slots] = {}
        self._backlog: dict[OpenSequence, None] = {}
        #: Sequences that a further step may belong to.
        self._open: dict[int | str, OpenSequence] = {}
        self._order = count(1)
        #: When a sequence may have been idle for too long.
        self._idle: list[tuple[float, int, OpenSequence]] = []
        self._broken: list[tuple[InferRequest, WherryError]] = []

    # Questions

    @property
    def queued_rows(self) -> int:
        """One for each request: the steps of a sequence run one after the other."""
        return self.queued_requests

    def __len__(self) -> int:
        return len(self._backlog) + sum(len(place.taken) for place in self._places.values())

    @property
    def in_backlog(self) -> int:
        return len(self._backlog)

    @property
    def instances(self) -> int:
        return len(self._places)

    def find(self, step: SequenceStep) -> OpenSequence | None:
        return self._open.get(step.id)

    def ready(self, instance: int) -> Collection[OpenSequence]:
        """Those in the slots of an instance that have a step to run."""
        place = self._places.get(instance)
        return place.ready if place is not None else ()

    def all_ready(self) -> list[OpenSequence]:
        return [sequence for place in self._places.values() for sequence in place.ready]

    def waiting(self) -> list[InferRequest]:
        taken = [s for place in self._places.values() for s in place.taken.values()]
        return [request for s in (*taken, *self._backlog) for request in s.waiting]

    def next_idle(self) -> float:
        """The earliest moment at which `close_idle` has something to do; inf: never."""
        return self._idle[0][0] if self._idle else inf

    # Steps

    def begin(self, id: int | str, now: float) -> OpenSequence:
        sequence = OpenSequence(id, touched_at=now)
        if self._reuses_ids:
            self._open[id] = sequence
        return sequence

    def append(self, sequence: OpenSequence, request: InferRequest, now: float) -> None:
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

    def start(self, sequence: OpenSequence, now: float) -> InferRequest:
        """Take the next step of a sequence that is ready, which runs from now on."""
        request = sequence.waiting.popleft()
        self.queued_requests -= 1
        request.queued = None
        request.run = sequence
        sequence.running = request
        sequence.ready_since = now
        if _ends(request) or (sequence.ended and not sequence.waiting):
            self._succeed(sequence)
        elif not sequence.waiting:
            self._place_of(sequence).ready.pop(sequence)
        return request

    def ended(self, sequence: OpenSequence, now: float) -> None:
        sequence.running = None
        sequence.touched_at = now
        if sequence.waiting:
            return
        if self._reuses_ids:
            self._watch(sequence)
        else:
            self._close(sequence)

    def forget(self, request: InferRequest, why: str, kind: type[WherryError]) -> bool:
        """A waiting step will not run, nor will those behind it, up to the next START: they are
        `broken`. False if it does not wait here."""
        sequence = request.queued
        if not isinstance(sequence, OpenSequence):
            return False
        request.inputs = {}
        self._break(sequence, why, request, kind)
        return True

    def close_idle(self, now: float) -> None:
        """Close the sequences that have had no step for too long."""
        while self._idle and self._idle[0][0] <= now:
            sequence = heapq.heappop(self._idle)[2]
            sequence.watched = False
            if sequence.instance is None or sequence.waiting or sequence.running:
                continue  # over, or watched again when it is quiet
            if sequence.touched_at + self._max_idle <= now:
                self._close(sequence)
            else:
                self._watch(sequence)

    def broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """Forget and return the steps that will never run since an earlier one did not, and
        why."""
        broken, self._broken = self._broken, []
        return broken

    # Instances

    def add_instance(self, instance: int) -> None:
        self._places[instance] = Slots(self._slots)
        self._fill()

    def remove_instance(self, instance: int) -> None:
        """It is gone, with its model's state of its sequences: these are `broken`."""
        place = self._places.pop(instance, None)
        for sequence in list(place.taken.values()) if place else ():
            sequence.instance = None
            self._break(sequence, "its worker is gone")

    def clear(self) -> list[InferRequest]:
        waiting = self.waiting()
        for request in waiting:
            request.queued = None
        for place in self._places.values():
            for sequence in place.taken.values():
                sequence.instance = None
        self._places = {number: Slots(self._slots) for number in self._places}
        self._open.clear()
        self._backlog.clear()
        self.queued_requests = 0
        return waiting

    def check(self) -> None:
        """The invariants: what must hold after every call."""
        waiting = 0
        for number, place in self._places.items():
            for slot, sequence in place.taken.items():
                assert (sequence.instance, sequence.slot) == (number, slot)
                assert bool(sequence.waiting) == (sequence in place.ready)
                waiting += len(sequence.waiting)
            assert sorted([*place.free, *place.taken]) == list(range(self._slots))
            assert not (self._backlog and place.free), "a sequence waits beside a free slot"
        for sequence in self._backlog:
            assert sequence.instance is None
            assert sequence.waiting
            waiting += len(sequence.waiting)
        assert waiting == self.queued_requests

    # Parts

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
            successor = self.begin(sequence.id, sequence.touched_at)
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
        lost = list(takewhile(lambda request: not starts(request), behind))
        rest = behind[len(lost) :]
        error = kind(
            f"model {self._model!r}: sequence {sequence.id} cannot go on: {why}; start it again"
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

    def _watch(self, sequence: OpenSequence) -> None:
        if not sequence.watched and sequence.instance is not None:
            sequence.watched = True
            at = sequence.touched_at + self._max_idle
            heapq.heappush(self._idle, (at, next(self._order), sequence))


def starts(request: InferRequest) -> bool:
    return request.sequence is not None and request.sequence.start


def _ends(request: InferRequest) -> bool:
    return request.sequence is not None and request.sequence.end


def not_ready(like: InferRequest) -> InferRequest:
    """A row for a slot that has nothing to run: its answer is dropped."""
    row = InferRequest(like.inputs, 1, Reply(_drop), shape_key=like.shape_key)
    row.sequence = NOT_READY
    return row


def _drop(reply: Reply[InferResponse]) -> None:
    """Reply of a row that was not ready: its outcome is dropped."""
