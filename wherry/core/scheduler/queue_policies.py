"""How many requests of a priority may be queued, for how long, and what follows then?

These are the model's queue policies. A deadline is another thing: the caller's, for its answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from wherry.core.models.config import QueuePolicy
from wherry.core.values.request import InferRequest

#: Entries of requests that are queued no longer: fewer than these are not worth removing.
MANY = 64


class QueuePolicies:
    """The queue policies of one model, and the queue timeouts of its requests."""

    def __init__(self, policies: Sequence[QueuePolicy]) -> None:
        self._policies = {policy.level: policy for policy in policies}
        self._ends: list[tuple[float, int, InferRequest]] = []
        self._order = count()
        self._sweep_at = MANY

    def most(self, level: int) -> int | None:
        """The limit of queued requests of this level; None: none."""
        policy = self._policy(level)
        return None if policy is None else policy.max_queue_size

    def begins(self, request: InferRequest) -> None:
        """Keep the queue timeout of a request that has a `wait_until`."""
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
        """Requests whose queue timeout has passed; True: delayed, False: to be rejected."""
        over = []
        while (end := self.next_end) is not None and end <= now:
            request = heapq.heappop(self._ends)[2]
            policy = self._policy(request.priority)
            over.append((request, policy is not None and policy.timeout_action == "delay"))
        return over

    def _policy(self, level: int) -> QueuePolicy | None:
        return self._policies.get(level) or self._policies.get(0)
