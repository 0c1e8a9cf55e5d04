"""How many requests of a priority may wait, how long, and what becomes of those that have?

What the queue's timer knows beside the deadlines: a deadline is the caller's, for its answer; what
is kept here is the model's, for the queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from wherry.models.config import QueuePolicy
from wherry.values.request import InferRequest

#: So many entries of requests that wait no longer are not worth sweeping.
MANY = 64


class Patience:
    """The queue policies of one model, and until when its requests may wait."""

    def __init__(self, policies: Sequence[QueuePolicy]) -> None:
        self._policies = {policy.level: policy for policy in policies}
        self._ends: list[tuple[float, int, InferRequest]] = []
        self._order = count()
        self._sweep_at = MANY

    def most(self, level: int) -> int | None:
        """How many requests of this level may wait."""
        policy = self._policy(level)
        return None if policy is None else policy.max_queue_size

    def begins(self, request: InferRequest) -> None:
        """A request with a `wait_until` waits from now on."""
        assert request.wait_until is not None
        if len(self._ends) >= self._sweep_at:
            self._ends = [entry for entry in self._ends if entry[2].queued is not None]
            heapq.heapify(self._ends)
            self._sweep_at = 2 * len(self._ends) + MANY
        heapq.heappush(self._ends, (request.wait_until, next(self._order), request))

    @property
    def next_end(self) -> float | None:
        while self._ends and self._ends[0][2].queued is None:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def over(self, now: float) -> list[tuple[InferRequest, bool]]:
        """Who has waited long enough, and whether it may go on, behind all others."""
        over = []
        while (end := self.next_end) is not None and end <= now:
            request = heapq.heappop(self._ends)[2]
            policy = self._policy(request.priority)
            over.append((request, policy is not None and policy.timeout_action == "delay"))
        return over

    def _policy(self, level: int) -> QueuePolicy | None:
        return self._policies.get(level) or self._policies.get(0)
