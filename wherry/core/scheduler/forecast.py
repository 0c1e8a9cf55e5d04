"""How long will a batch take, and how long a request that comes now?

Learnt from the batches that have run. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from wherry.core.scheduler.costs import RowCosts
from wherry.core.scheduler.curve import BatchCurve
from wherry.core.scheduler.decisions import Decisions
from wherry.core.scheduler.overload import TurnTimes
from wherry.core.values.request import InferRequest


class Forecast:
    """What runs on `instances` equal instances, and what it has taken so far."""

    def __init__(self, instances: int = 1) -> None:
        self.instances = instances
        self.curve = BatchCurve()
        self.turns = TurnTimes()
        self.costs = RowCosts()
        self.decisions = Decisions()
        self.busy = 0
        self.running_rows = 0
        #: The last answer of `rows_within`, until something is learnt.
        self.known_rows_within: float | None = None

    def began(
        self,
        requests: Sequence[InferRequest],
        now: float,
        rows: int,
        rows_left: int,
        oldest_at: float,
        reason: str,
        instance: int,
    ) -> None:
        """A batch is assigned to an instance; the arguments are those of a `Decision`."""
        self.busy += 1
        self.running_rows += rows
        decisions = self.decisions
        hold = decisions.released(now, oldest_at, instance) if decisions.holds else None
        decisions.events.append(
            (id(requests[0]), now, rows, rows_left, oldest_at, reason, instance, hold)
        )

    def ended(
        self, requests: Sequence[InferRequest], seconds: float | None, batches: int = 1
    ) -> None:
        """As many equal batches with these `requests` in all are over, after `seconds` each; None:
        there is nothing to learn from that."""
        rows, cost = 0, 0.0
        for request in requests:
            rows += request.rows
            if request.cost > cost:
                cost = request.cost
        self.busy -= batches
        self.running_rows -= rows
        expected = None
        if seconds is not None:
            costs, work = self.costs, rows / batches
            if seconds > 0 and not cost == costs.per_row == 1.0:
                work = costs.learn(requests, work, cost, seconds)
            expected = self.learn(work, seconds)
        self.decisions.events.append((id(requests[0]), seconds, expected, batches))

    def learn(self, work: float, seconds: float) -> float | None:
        """Returns what this work was expected to take."""
        if seconds <= 0:  # a coarse clock has not moved
            return None
        self.turns.ended(seconds)
        self.known_rows_within = None
        return self.curve.learn(round(work) or 1, seconds)

    def batch_seconds(self, rows: float) -> float:
        """What a batch of `rows` takes; 0.0 while nothing is known."""
        return self.curve.seconds(rows * self.costs.per_row) if self.curve.batches else 0.0

    def waiting_seconds(self, rows_ahead: float, most: int) -> float:
        """Seconds until a request starts behind `rows_ahead`, in batches of `most` rows; 0.0 while
        nothing is known or an instance is about to take it."""
        if not self.curve.batches or (self.busy < self.instances and rows_ahead < most):
            return 0.0
        running = 0.0
        if self.busy:
            rows = self.running_rows / self.busy
            ahead = max(0, self.busy - self.instances)
            running = self.batch_seconds(rows) * (ahead + 0.5)
            most = max(most, round(rows))  # a request with many rows is a batch of its own
        before = running + rows_ahead // most * self.batch_seconds(most)
        return before / self.instances

    def answer_seconds(self, rows_ahead: float, most: int) -> float:
        """`waiting_seconds` and its own batch, or 0.0 likewise."""
        waiting = self.waiting_seconds(rows_ahead, most)
        return waiting and waiting + self.batch_seconds(rows_ahead % most + 1)

    def rows_within(self, seconds: float, most: int) -> float:
        """The most rows ahead with which `answer_seconds` is surely not above `seconds`; kept in
        `known_rows_within` until something is learnt."""
        batch = self.batch_seconds(most)
        batches = (seconds / batch - 1) * self.instances - 0.5 if batch else inf
        self.known_rows_within = most * batches
        return self.known_rows_within

    def explain(self, queued_rows: int, most: int) -> dict[str, Any]:
        return {
            "curve": [
                {
                    "rows": point.rows,
                    "seconds": point.seconds,
                    "error_seconds": point.error,
                    "age_batches": point.age,
                }
                for point in self.curve.points()
            ],
            "fixed_seconds": self.curve.fixed(),
            "row_seconds": self.curve.slope(),
            "work_per_row": self.costs.per_row,
            "row_sizes": self.costs.explain(),
            "predicted_wait_seconds": self.waiting_seconds(queued_rows, most),
        }
