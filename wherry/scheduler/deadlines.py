"""Which request's own timeout is over next?"""

from __future__ import annotations

import heapq
from itertools import count
from math import inf

from wherry.values.request import InferRequest


class Deadlines:
    """The deadlines of requests, waiting or running. Pure. A settled request is forgotten."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, InferRequest]] = []
        self._order = count()

    def add(self, request: InferRequest) -> None:
        """Remember its deadline, if it has one."""
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, next(self._order), request))

    def next(self) -> float:
        """The first deadline; inf: there is none."""
        while self._heap and self._heap[0][2].reply.settled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def take_due(self, now: float) -> list[InferRequest]:
        """Forget and return the requests whose deadline has passed."""
        due: list[InferRequest] = []
        while self.next() <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
