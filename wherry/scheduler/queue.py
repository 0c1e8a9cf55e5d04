"""Which requests wait, in which order, and which of them may share a batch?

Requests that may share a batch stand in one lane: the same priority and the same shape key. Lanes
are served by priority, then by the age of their first request.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator

from wherry.request import InferRequest

#: So many entries of requests that are gone are not worth sweeping.
MANY = 64


#: Seconds of waiting that are worth one level of priority.
LEVEL_SECONDS = 1.0


class Lane:
    """Requests in order of arrival that may share a batch."""

    __slots__ = ("gone", "key", "requests", "rows")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.requests: deque[InferRequest] = deque()
        self.rows = 0
        #: Requests that have left and still stand here; they may wait in another lane by now.
        self.gone = 0

    @property
    def head(self) -> InferRequest:
        return self.requests[0]

    def earliest_deadline(self) -> float:
        """Looks at every request: for lanes that hold less than a batch."""
        waiting = (r.deadline for r in self.requests if r.queued is self)
        return min((d for d in waiting if d is not None), default=float("inf"))


class RequestQueue:
    """Waiting requests by lane, with deadlines and cancellation.

    A cancelled request leaves the counts at once, and its lane when it comes to the head or when
    most of the lane is such: cancelling costs the same in a queue of any length. Likewise with
    the deadlines of requests that were answered.
    """

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane] = {}
        self._deadlines: list[tuple[float, int, InferRequest]] = []
        self._sweep_at = MANY
        self._order = 0
        self.queued_requests = 0

    def push(self, request: InferRequest, *, alone: bool = False) -> None:
        """Put a request at the end of its lane, or into a lane of its own."""
        self._order += 1
        if alone:
            request.shape_key = ("alone", self._order)
        key = (request.priority, request.shape_key)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        lane.requests.append(request)
        lane.rows += request.rows
        request.queued = lane
        self.queued_requests += 1
        if request.deadline is not None:
            if len(self._deadlines) >= self._sweep_at:
                self._sweep_deadlines()
            heapq.heappush(self._deadlines, (request.deadline, self._order, request))

    def lanes(self, now: float = 0.0) -> Iterator[Lane]:
        """The lanes that hold requests, in the order in which they should be served.

        Strictly by priority, but nobody starves: each `LEVEL_SECONDS` of waiting count as one
        level of priority.
        """
        if len(self._lanes) > 1:
            live = [lane for lane in list(self._lanes.values()) if self._tidy(lane)]
            yield from sorted(live, key=lambda lane: _order(lane.head, now))
            return
        for lane in list(self._lanes.values()):
            if self._tidy(lane):
                yield lane

    def take(self, lane: Lane, max_rows: int) -> list[InferRequest]:
        """Remove the longest run of requests at the head of `lane` of at most `max_rows` rows.

        The first one is taken in any case.
        """
        taken: list[InferRequest] = []
        rows = 0
        requests = lane.requests
        while self._tidy(lane):
            request = requests[0]
            if taken and rows + request.rows > max_rows:
                break
            requests.popleft()
            request.queued = None
            rows += request.rows
            taken.append(request)
        lane.rows -= rows
        self.queued_requests -= len(taken)
        return taken

    @property
    def queued_rows(self) -> int:
        return sum([lane.rows for lane in self._lanes.values()])

    def take_these(self, lane: Lane, chosen: list[InferRequest]) -> list[InferRequest]:
        """Remove chosen requests of `lane`, wherever they stand in it; in order of arrival."""
        for request in chosen:
            self._leave(lane, request)
        self._tidy(lane)
        return sorted(chosen, key=lambda request: request.enqueued_at)

    def remove(self, request: InferRequest) -> bool:
        """Take a request out of the queue; False if it is not in there (any more)."""
        lane = request.queued
        if not isinstance(lane, Lane) or self._lanes.get(lane.key) is not lane:
            return False
        request.inputs = {}  # its place in the lane may stay a while: do not hold its tensors
        self._leave(lane, request)
        return True

    def expire(self, now: float) -> list[InferRequest]:
        """Return the unanswered requests whose deadline has passed, waiting or running."""
        expired = []
        while (deadline := self.next_deadline) is not None and deadline <= now:
            request = heapq.heappop(self._deadlines)[2]
            self.remove(request)
            expired.append(request)
        return expired

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of an unanswered request that is or was in this queue."""
        while self._deadlines and self._deadlines[0][2].reply.settled:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def clear(self) -> list[InferRequest]:
        """Remove and return everything that waits."""
        everything = [r for lane in self._lanes.values() for r in lane.requests if r.queued is lane]
        for request in everything:
            request.queued = None
        self._lanes.clear()
        self.queued_requests = 0
        return everything

    def _leave(self, lane: Lane, request: InferRequest) -> None:
        """Count a request out; its place in the lane goes when it comes to the head."""
        request.queued = None
        self.queued_requests -= 1
        lane.rows -= request.rows
        lane.gone += 1
        if lane.gone > MANY and 2 * lane.gone > len(lane.requests):
            lane.requests = deque(r for r in lane.requests if r.queued is lane)
            lane.gone = 0

    def _sweep_deadlines(self) -> None:
        self._deadlines = [entry for entry in self._deadlines if not entry[2].reply.settled]
        heapq.heapify(self._deadlines)
        self._sweep_at = 2 * len(self._deadlines) + MANY

    def _tidy(self, lane: Lane) -> bool:
        """Drop what was cancelled from the head; forget the lane and say False if it is empty."""
        requests = lane.requests
        while requests and requests[0].queued is not lane:
            requests.popleft()
            lane.gone -= 1
        if not requests:
            self._lanes.pop(lane.key, None)
        return bool(requests)


def _order(head: InferRequest, now: float) -> tuple[int, float]:
    levels = max(0, int((now - head.enqueued_at) / LEVEL_SECONDS))
    return max(1, head.priority - levels), head.enqueued_at
