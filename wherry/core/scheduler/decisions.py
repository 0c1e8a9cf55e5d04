"""What was decided for the last batches?

Pure. Recording an event costs next to nothing; it is interpreted when the decisions are read.
"""

from __future__ import annotations

from collections import deque

import msgspec

REMEMBERED = 64
#: For what batches are held: callers that return, their turn among the instances, max_queue_delay.
HELD_FOR = ("callers", "turn", "delay")
#: Held from whichever instance is free.
ANY_INSTANCE = -1

#: A batch has left: id() of its first request, when, rows, rows that stayed queued, when its oldest
#: request was queued, reason, instance; for how long it was held, for what, for how many of them.
_Left = tuple[int, float, int, int, float, str, int, "_Hold | None"]
_Hold = tuple[float, str, int]
#: Batches have ended: id() of the first one's first request, seconds that each took, seconds that
#: were expected, how many.
_Ended = tuple[int, float | None, float | None, int]


class Decision(msgspec.Struct):
    """One batch: why it left, what it left behind, what it took. Times are the scheduler's."""

    left_at: float
    rows: int
    #: Rows that stayed queued.
    rows_left: int
    oldest_at: float
    reason: str
    instance: int
    #: For how long it was held although an instance was free, ...
    held_seconds: float = 0.0
    #: ... for what, and for how many of them: see `Decisions.held`.
    held_for: str = ""
    held_count: int = 0
    runs: bool = True
    #: What it took; None: it runs, or nothing could be learnt from it.
    seconds: float | None = None
    #: What batches of its size took before; None: there were none.
    expected_seconds: float | None = None


class Decisions:
    """The last `REMEMBERED` decisions of one scheduler, which `Forecast` writes down. Holds no
    request."""

    def __init__(self) -> None:
        #: Some more than are shown: for the oldest ends the start may have been dropped.
        self.events: deque[_Left | _Ended] = deque(maxlen=2 * REMEMBERED + 32)
        #: By instance: since when it is free and gets nothing, for what, for how many of them.
        self.holds: dict[int, _Hold] = {}
        #: By what for: how long batches were held although an instance was free.
        self.held_seconds = dict.fromkeys(HELD_FOR, 0.0)
        #: Of a copy: when it was made.
        self.now = 0.0

    def copy(self, now: float) -> Decisions:
        """As they are at that moment, to be looked at without the scheduler's lock."""
        copy = Decisions()
        copy.events, copy.held_seconds = self.events.copy(), self.held_seconds.copy()
        copy.now = now
        return copy

    def last(self) -> list[Decision]:
        """The last ones, in the order in which the batches left. About 80 us."""
        decisions: list[Decision] = []
        running: dict[int, Decision] = {}
        for event in self.events:
            if len(event) == 8:
                key, left_at, rows, rows_left, oldest_at, reason, instance, hold = event
                decision = Decision(left_at, rows, rows_left, oldest_at, reason, instance)
                if hold is not None:
                    decision.held_seconds, decision.held_for, decision.held_count = hold
                decisions.append(decision)
                running[key] = decision
                continue
            key, seconds, expected_seconds, batches = event
            first = running.get(key)
            if first is None:
                continue
            # An instance runs its batches in order; equal ones are reported together.
            alike = [
                other
                for other, one in running.items()
                if one.instance == first.instance and one.rows == first.rows
            ]
            start = alike.index(key)
            for other in alike[start : start + batches]:
                one = running.pop(other)
                one.runs = False
                one.seconds, one.expected_seconds = seconds, expected_seconds
        return decisions[-REMEMBERED:]

    def held(
        self, now: float, held_for: str, count: int = 0, *, instance: int = ANY_INSTANCE
    ) -> None:
        """What is queued is held although this instance is free: for one of HELD_FOR, and for how
        many callers, or rows of a turn."""
        held = self.holds.get(instance)
        self.holds[instance] = now if held is None else held[0], held_for, count

    def released(self, now: float, oldest_at: float, instance: int) -> _Hold | None:
        """A batch leaves to this instance: was it held, and for how long?"""
        hold = self.holds.pop(ANY_INSTANCE, None) or self.holds.pop(instance, None)
        if hold is None:
            return None
        since, held_for, count = hold
        # What was held first may have been cancelled.
        seconds = now - (since if since > oldest_at else oldest_at)
        self.held_seconds[held_for] = self.held_seconds.get(held_for, 0.0) + seconds
        return seconds, held_for, count
