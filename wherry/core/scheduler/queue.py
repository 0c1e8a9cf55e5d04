"""Which requests wait, in which order, which may share a batch, and whose time is over?

Requests that may share a batch stand in one lane: the same priority and the same shape key. Lanes
are served by priority; within one the tenants take turns, one request each: the tenant that was
served longest ago is next. One tenant's requests go in order of arrival.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from math import inf

from wherry.core.models.config import QueuePolicy
from wherry.core.values.request import InferRequest, Part

#: Fewer entries than this are not worth a search for those of requests that have left.
MANY = 64
#: Seconds of waiting that are worth one level of priority.
LEVEL_SECONDS = 1.0


class Deadlines:
    """Moments by which requests must have been answered, or must run. Pure.

    A settled request is forgotten when its moment comes first, or when most of them are such.
    """

    def __init__(self, *, of_waits: bool = False) -> None:
        """`of_waits`: one that runs is forgotten like one that is settled."""
        self._of_waits = of_waits
        self._heap: list[tuple[float, int, InferRequest]] = []
        self._order = count()
        self._sweep_at = MANY

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: InferRequest, at: float | None) -> None:
        """Remember the moment of a request, if it has one."""
        if at is not None:
            if len(self._heap) >= self._sweep_at:
                self._heap = [entry for entry in self._heap if not entry[2].reply.settled]
                heapq.heapify(self._heap)
                self._sweep_at = 2 * len(self._heap) + MANY
            heapq.heappush(self._heap, (at, next(self._order), request))

    def next(self) -> float:
        """The first moment; inf: there is none."""
        while self._heap:
            first = self._heap[0][2]
            if not first.reply.settled and not (self._of_waits and first.queued is None):
                break
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def take_due(self, now: float) -> list[InferRequest]:
        due: list[InferRequest] = []
        while self.next() <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due


class Lane:
    """Requests that may share a batch: each tenant's in order of arrival, the next tenant first."""

    __slots__ = ("behind", "gone", "key", "passed", "priority", "rows", "tenants")

    def __init__(self, priority: int, key: Hashable) -> None:
        self.key = key
        self.priority = priority
        self.tenants: dict[str, deque[InferRequest]] = {}
        self.rows = 0
        #: Requests that have left and are still listed; they may wait in another lane by now.
        self.gone = 0
        #: Its requests have waited too long: all others of their priority come first.
        self.behind = False
        #: A request of its priority has come behind some of its own that cannot share their batch.
        self.passed = False

    @property
    def head(self) -> InferRequest:
        return next(iter(self.tenants.values()))[0]

    @property
    def oldest_at(self) -> float:
        return min([requests[0].enqueued_at for requests in self.tenants.values()])

    def in_turn(self) -> Iterator[InferRequest]:
        """The queued requests, in the order in which they should be served."""
        waiting = list(map(iter, self.tenants.values()))
        if len(waiting) == 1:  # as nearly always
            for request in waiting[0]:
                if request.queued is self:
                    yield request
            return
        while waiting:
            going_on = []
            for requests in waiting:
                for request in requests:
                    if request.queued is self:
                        yield request
                        going_on.append(requests)
                        break
            waiting = going_on

    def earliest_deadline(self) -> float:
        """Looks at every request: for lanes that hold less than a batch."""
        waiting = (request.deadline for request in self.in_turn())
        return min((d for d in waiting if d is not None), default=inf)


class RequestQueue:
    """Waiting requests by lane, with deadlines and cancellation.

    A cancelled request leaves the counts at once, and its lane when it comes to the head or when
    most of the lane is such: cancelling costs the same in a queue of any length. Likewise with
    the deadlines of requests that were answered.
    """

    def __init__(self, policies: Sequence[QueuePolicy] = ()) -> None:
        self._policies = {policy.level: policy for policy in policies}
        #: When the waits of requests end that have a policy.
        self._waits = Deadlines(of_waits=True)
        self._lanes: dict[Hashable, Lane] = {}
        #: When each tenant was served last, counted in turns.
        self._served: dict[str, int] = {}
        self._turns = 0
        self._deadlines = Deadlines()
        self._order = 0
        self.queued_requests = 0
        self.queued_rows = 0

    def push(self, request: InferRequest, *, alone: bool = False, behind: bool = False) -> None:
        """Put a request at the end of its lane, into a lane of its own, or into the one `behind`
        all others of its priority."""
        if alone:
            self._order += 1
            request.shape_key = ("alone", self._order)
        key: Hashable = (request.priority, request.shape_key)
        if behind:
            key = ("behind", key)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(request.priority, key)
            lane.behind = behind
        requests = lane.tenants.get(request.tenant)
        if requests is None:
            requests = self._join(lane, request.tenant)
        requests.append(request)
        rows = request.rows
        lane.rows += rows
        request.queued = lane
        self.queued_requests += 1
        self.queued_rows += rows
        if behind:
            return
        if request.deadline is not None:
            self._deadlines.add(request, request.deadline)
        if request.wait_until is not None and not alone:
            self._waits.add(request, request.wait_until)

    def put_back(self, request: InferRequest) -> None:
        """Put a request that was taken at the head of its lane again. Looks at the whole lane."""
        lane = self._lanes.get((request.priority, request.shape_key))
        if lane is not None:
            self._sweep(lane)  # it may still be listed there
        self.push(request)
        request.queued.tenants[request.tenant].rotate()  # type: ignore[attr-defined] # it is a Lane

    def pass_others(self, newcomer: InferRequest) -> None:
        """Mark the other lanes of its priority: this request arrived in another lane."""
        for lane in self._lanes.values():
            if lane is newcomer.queued:
                lane.passed &= lane.rows > newcomer.rows  # else all have left that were passed
            elif lane.priority == newcomer.priority:
                lane.passed = True

    def lanes(self, now: float = 0.0) -> Sequence[Lane]:
        """The lanes that hold requests, in the order in which they should be served.

        Strictly by priority, but no lane starves: each `LEVEL_SECONDS` of waiting count as one
        level of priority.
        """
        if len(self._lanes) == 1:  # as nearly always
            (lane,) = self._lanes.values()
            if lane.rows and not lane.gone and len(lane.tenants) == 1:
                return (lane,)
        live = [lane for lane in tuple(self._lanes.values()) if self._tidy(lane)]
        for lane in live:
            if len(lane.tenants) > 1:
                order = sorted(lane.tenants, key=self._served.__getitem__)
                lane.tenants = {tenant: lane.tenants[tenant] for tenant in order}
        if len(live) > 1:
            live.sort(key=lambda lane: self._next_lane(lane, now))
        return live

    def take(self, lane: Lane, max_rows: int) -> list[InferRequest]:
        """Remove the longest run of requests at the head of `lane` of at most `max_rows` rows, and
        the first one in any case."""
        taken: list[InferRequest] = []
        rows = 0
        if not lane.gone and len(lane.tenants) == 1:  # as nearly always: the first of one line
            (requests,) = lane.tenants.values()
            while requests:
                request = requests[0]
                more = rows + request.rows
                if more > max_rows and taken:
                    break
                rows = more
                request.queued = None
                taken.append(requests.popleft())
        else:
            for request in lane.in_turn():
                if taken and rows + request.rows > max_rows:
                    break
                rows += request.rows
                taken.append(request)
            for request in taken:
                request.queued = None
            lane.gone += len(taken)
        lane.rows -= rows
        self.queued_requests -= len(taken)
        self.queued_rows -= rows
        if len(self._lanes) > 1 or len(lane.tenants) > 1 or lane.gone:
            self._pass_turns(lane, taken)
        else:
            self._turns += 1
            self._served[taken[0].tenant] = self._turns
        return taken

    def take_these(self, lane: Lane, chosen: list[InferRequest]) -> list[InferRequest]:
        """Remove chosen requests from anywhere in `lane`; in order of arrival."""
        for request in chosen:
            self._leave(lane, request)
        self._pass_turns(lane, chosen)
        return sorted(chosen, key=lambda request: request.enqueued_at)

    def is_full(self, size: int | None, newcomer: InferRequest) -> bool:
        """Do `size` requests wait, or as many of its priority as its policy allows? A request still
        comes in if its tenant has less than an equal share of `size`, or if it is a pipeline's call
        or a further part of a request; only these parts are exempt from a policy's limit."""
        if self._policies and not (newcomer.follows and isinstance(newcomer, Part)):
            policy = self._policy(newcomer.priority)
            most = None if policy is None else policy.max_queue_size
            if most is not None and self._waiting_at(newcomer.priority) >= most:
                return True
        if size is None or self.queued_requests < size or newcomer.follows:
            return False
        lanes = self._lanes.values()
        tenants = {newcomer.tenant}.union(*(lane.tenants for lane in lanes))
        held = sum([len(lane.tenants.get(newcomer.tenant, ())) for lane in lanes])
        return held + 1 > size / len(tenants)

    def oldest(self) -> Lane | None:
        """The lane that has been there longest."""
        for lane in list(self._lanes.values()):
            if self._tidy(lane):
                return lane
        return None

    def rows_ahead(self, priority: int, tenant: str) -> float:
        """How many rows would run before a request that came now."""
        lanes = [lane for lane in self._lanes.values() if lane.priority <= priority]
        rows = sum([lane.rows for lane in lanes])
        if not rows or not any(lane.tenants.keys() - {tenant} for lane in lanes):
            return rows
        held: Counter[str] = Counter()
        for lane in lanes:
            held.update({name: len(requests) for name, requests in lane.tenants.items()})
        # Each of the others has as many turns before it as its own tenant has.
        before = sum([min(count, held[tenant] + (name != tenant)) for name, count in held.items()])
        return rows * before / held.total()

    def remove(self, request: InferRequest) -> bool:
        """Take a request out of the queue; False if it is not in there (any more)."""
        lane = request.queued
        if not isinstance(lane, Lane) or self._lanes.get(lane.key) is not lane:
            return False
        # Its place in the lane may stay a while: do not hold its tensors.
        request.inputs, request.reservations = {}, ()
        self._leave(lane, request)
        return True

    def cut(self, rows: float, most: int = 1) -> list[InferRequest]:
        """Remove requests until at most `rows` rows are left, of batches of at most `most`: those
        of the worst priority first, of these the last ones of each tenant. Requests with a timeout
        stay."""
        if self.queued_rows <= rows:
            return []
        places: Counter[tuple[int, str]] = Counter()
        waiting = []
        left = 0
        for lane in self._lanes.values():
            for request in lane.in_turn():
                left += min(request.rows, most)  # a larger one is a batch of its own
                whose = (request.priority, request.tenant)
                places[whose] += 1
                if request.deadline is None:
                    waiting.append((request.priority, places[whose], request.enqueued_at, request))
        waiting.sort(key=lambda entry: entry[:3])
        removed = []
        while waiting and left > rows:
            request = waiting.pop()[3]
            left -= min(request.rows, most)
            self.remove(request)
            removed.append(request)
        return removed

    def expire(self, now: float) -> list[InferRequest]:
        """Return the unanswered requests whose deadline has passed, waiting or running."""
        expired = []
        for request in self._deadlines.take_due(now):
            self.remove(request)
            expired.append(request)
        for request in self._waits.take_due(now) if self._policies else ():
            policy = self._policy(request.priority)
            if policy is not None and policy.timeout_action == "delay":
                self._leave(request.queued, request)  # type: ignore[arg-type] # it is a Lane
                self.push(request, behind=True)
            else:
                self.remove(request)
                expired.append(request)
        return expired

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of an unanswered request that is or was in this queue, or the
        end of a wait."""
        first = self._deadlines.next()
        if self._policies:
            first = min(first, self._waits.next())
        return None if first == inf else first

    def waiting(self) -> list[InferRequest]:
        return [request for lane in self._lanes.values() for request in lane.in_turn()]

    def clear(self) -> list[InferRequest]:
        everything = self.waiting()
        for request in everything:
            request.queued = None
        self._lanes.clear()
        self.queued_requests = self.queued_rows = 0
        return everything

    def _policy(self, level: int) -> QueuePolicy | None:
        return self._policies.get(level) or self._policies.get(0)

    def _waiting_at(self, priority: int) -> int:
        lanes = [lane for lane in self._lanes.values() if lane.priority == priority]
        return sum([sum(map(len, lane.tenants.values())) - lane.gone for lane in lanes])

    def _leave(self, lane: Lane, request: InferRequest) -> None:
        """Subtract a request from the counts; its place in the lane goes once it is at the head."""
        request.queued = None
        self.queued_requests -= 1
        self.queued_rows -= request.rows
        lane.rows -= request.rows
        lane.gone += 1
        if lane.gone > MANY and 2 * lane.gone > sum(map(len, lane.tenants.values())):
            self._sweep(lane)

    def _sweep(self, lane: Lane) -> None:
        """Drop what has left, anywhere in the lane."""
        if lane.gone:
            here = {
                tenant: deque(r for r in requests if r.queued is lane)
                for tenant, requests in lane.tenants.items()
            }
            lane.tenants = {tenant: requests for tenant, requests in here.items() if requests}
            lane.gone = 0

    def _tidy(self, lane: Lane) -> bool:
        """Drop what has left from the heads. If nothing waits in the lane, forget it (False) unless
        it is the only one: then its next request is likely to come soon."""
        tenants = lane.tenants
        for tenant, requests in tuple(tenants.items()) if lane.gone else ():
            while requests and requests[0].queued is not lane:
                requests.popleft()
                lane.gone -= 1
            if not requests and len(tenants) > 1:
                del tenants[tenant]
        if lane.rows:
            return True
        if len(self._lanes) > 1:
            self._lanes.pop(lane.key, None)
        return False

    # Turns

    def _join(self, lane: Lane, tenant: str) -> deque[InferRequest]:
        """Add a tenant to the lane. One that was not served lately comes before the last one."""
        if tenant not in self._served:
            if len(self._served) > MANY + 2 * self.queued_requests:
                here = set().union(*(lane.tenants for lane in self._lanes.values()))
                self._served = {name: self._served[name] for name in here}
            self._served[tenant] = self._turns - 1
        if not lane.rows:  # what is listed there has left
            lane.tenants.clear()
            lane.gone = 0
        requests = lane.tenants[tenant] = deque()
        return requests

    def _pass_turns(self, lane: Lane, taken: list[InferRequest]) -> None:
        for request in taken if len(lane.tenants) > 1 else taken[:1]:
            self._turns += 1
            self._served[request.tenant] = self._turns
        if lane.gone or (not lane.rows and len(self._lanes) > 1):
            self._tidy(lane)

    def _next_lane(self, lane: Lane, now: float) -> tuple[int, bool, int, float]:
        head = lane.head
        levels = max(0, int((now - lane.oldest_at) / LEVEL_SECONDS))
        level = max(1, lane.priority - levels)
        return level, lane.behind, self._served[head.tenant], head.enqueued_at
