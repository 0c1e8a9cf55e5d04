"""Which request's own timeout is over next?"""

from __future__ import annotations

import heapq
from itertools import count
from math import inf

from wherry.core.values.request import InferRequest

#: Fewer deadlines than this are not worth a search for those of settled requests.
MANY = 64


class Deadlines:
    """The deadlines of requests, waiting or running. Pure.

    A settled request is forgotten when its deadline comes first, or when most of them are such.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, InferRequest]] = []
        self._order = count()
        self._sweep_at = MANY

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: InferRequest) -> None:
        """Remember its deadline, if it has one."""
        if request.deadline is not None:
            if len(self._heap) >= self._sweep_at:
                self._heap = [entry for entry in self._heap if not entry[2].reply.settled]
                heapq.heapify(self._heap)
                self._sweep_at = 2 * len(self._heap) + MANY
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
