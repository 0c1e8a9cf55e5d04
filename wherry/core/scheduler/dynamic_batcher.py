"""When does a batch leave the queue, and which requests are in it?

Work-conserving by default: a free instance takes what waits, up to `max_batch_size` rows. With
`max_queue_delay` a batch that is not full waits for more requests until its oldest has waited that
long; with `preferred_batch_sizes` it leaves earlier, as soon as the first requests have one of
those sizes together, or the next one would exceed the largest (Triton's dynamic batcher has the
same two settings).

It also leaves earlier when no arrivals are expected in the time that is left: nothing runs whose
callers may send again, those whose answers were sent are back, and the rate of the others is low.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from wherry.core.models.config import QueuePolicy
from wherry.core.scheduler.forecast import Forecast
from wherry.core.scheduler.policy import Action, Dispatch, Idle, Scheduler, Wait
from wherry.core.scheduler.queue import Lane, RequestQueue
from wherry.core.values.request import Batch, InferRequest


class Batcher(Scheduler):
    """A Scheduler that decides nothing yet: a queue, and a forecast of what it takes."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        instances: int = 1,
        max_queue_size: int | None = None,
        queue_policies: Sequence[QueuePolicy] = (),
    ) -> None:
        self.max_batch_size = max(1, max_batch_size)
        self.instances = instances
        self.max_queue_size = max_queue_size
        self.forecast = Forecast(instances)
        self.decisions = self.forecast.decisions
        self.queue = RequestQueue(queue_policies)
        #: With fewer queued requests than this no limit of the queue matters.
        self._unlimited = 0 if queue_policies else inf if max_queue_size is None else max_queue_size

    def resize(self, instances: int) -> None:
        self.instances = self.forecast.instances = instances

    def __repr__(self) -> str:
        running = self.forecast.busy
        return f"<{type(self).__name__}: {self.queue.queued_requests} queued, {running} running>"

    def _dispatch(
        self, requests: Sequence[InferRequest], rows: int, reason: str, now: float, instance: int
    ) -> Dispatch:
        """Assign these requests, taken from the queue, to an instance as one batch."""
        first = requests[0]
        oldest_at = first.enqueued_at
        if len(requests) > 1 and requests[1].tenant != first.tenant:  # tenants take turns
            oldest_at = min([request.enqueued_at for request in requests])
        self.forecast.began(
            requests, now, rows, self.queue.queued_rows, oldest_at, reason, instance
        )
        return Dispatch(Batch(tuple(requests), rows, reason))

    def requeue(self, request: InferRequest, now: float, *, alone: bool) -> None:
        if alone:
            self.queue.push(request, alone=True)
        else:
            self.queue.put_back(request)

    def cancel(self, request: InferRequest) -> bool:
        return self.queue.remove(request)

    def expire(self, now: float) -> Sequence[InferRequest]:
        return self.queue.expire(now)

    def next_deadline(self) -> float | None:
        return self.queue.next_deadline if self.may_expire else None

    def waiting(self) -> Sequence[InferRequest]:
        return self.queue.waiting()

    def clear(self) -> Sequence[InferRequest]:
        return self.queue.clear()

    def is_short(self, seconds: float) -> bool:
        within = self.forecast.known_rows_within
        if within is None:
            within = self.forecast.rows_within(seconds, self.max_batch_size)
        return self.queue.queued_rows <= within

    def predicted_seconds(self, request: InferRequest) -> float:
        ahead = self.queue.rows_ahead(request.priority, request.tenant)
        return self.forecast.answer_seconds(ahead, self.max_batch_size)

    def give_up(self, turns: float) -> Sequence[InferRequest]:
        return self.queue.cut(turns * self.instances * self.max_batch_size, self.max_batch_size)

    def head(self) -> tuple[float, float] | None:
        lane = self.queue.oldest()
        if lane is None:
            return None
        rows = min(lane.rows, self.max_batch_size)
        return lane.oldest_at, self.forecast.batch_seconds(rows)

    def _is_full(self, lane: Lane) -> bool:
        """Does a lane hold a batch that can be sent ahead? A request with which a worker has died
        runs alone."""
        return lane.rows >= self.max_batch_size and not lane.head.attempts

    def limit_rows(self, rows: int) -> None:
        self.max_batch_size = max(1, min(self.max_batch_size, rows))


#: Batches that must have ended before anything is concluded.
LEARNT = 4
#: Weight of what was learnt, after each further batch.
FADING = 1 - 1 / 64
#: Expected arrivals below which a wait is not worth it.
LIKELY = 0.5
#: A caller is not expected any more after this many times the age at which others returned.
OVERDUE = 4.0


IDLE = Idle()


class ArrivalForecast:
    """Learns which requests arrive after a batch has ended: returning callers, then others.

    Callers in a loop return by some age since their answer; once all have, others arrive at some
    rate, or none do. Independent requests look like callers that return slowly, which does no harm:
    they are waited for as long as they lately took. Pure.
    """

    def __init__(self) -> None:
        #: Callers that were answered and have not returned.
        self._out = 0
        self._last_end = self._last_arrival = -inf
        #: The age by which all had returned: rises at once, falls slowly.
        self._back_by = inf
        self._ended = 0
        # Arrivals after all had returned, and the time in which they were counted; decayed.
        self._others = self._seconds = 0.0
        #: Since when no caller is expected to return.
        self._all_back_at: float | None = None

    def arrived(self, now: float) -> None:
        self._last_arrival = now
        if self._all_back_at is not None:
            self._count(now)
            self._others += 1
        elif self._out:
            self._out -= 1
            if not self._out:
                self._all_back(now)

    def ended(self, answered: int, now: float) -> None:
        """Count a batch that has ended, with this number of requests answered."""
        if self._all_back_at is not None:
            self._count(now)
            self._all_back_at = None
        elif now - self._last_end > self._back_by:
            self._out = 0  # they will not come
        self._others *= FADING
        self._seconds *= FADING
        self._out += answered
        self._ended += 1
        self._last_end = now

    def expected_until(self, leaves_at: float) -> float:
        """Until when another arrival is likely; `leaves_at` at the latest."""
        if self._ended < LEARNT:
            return leaves_at
        until = -inf
        if rate := self.rate:
            # No arrival for OVERDUE / rate seconds: the burst is over.
            until = min(leaves_at - LIKELY / rate, self._last_arrival + OVERDUE / rate)
        if self._out:
            until = max(until, self._last_end + OVERDUE * self._back_by)
        return min(until, leaves_at)

    @property
    def rate(self) -> float:
        """Arrivals a second after all callers had returned."""
        return self._others / self._seconds if self._seconds else 0.0

    def explain(self) -> dict[str, Any]:
        learnt = self._ended >= LEARNT
        return {
            "back_within_seconds": self._back_by if learnt and self._back_by < inf else None,
            "others_per_second": self.rate if learnt else None,
        }

    def _all_back(self, now: float) -> None:
        age = now - self._last_end
        if age > self._back_by or self._back_by == inf:
            self._back_by = age
        else:
            self._back_by += (age - self._back_by) / 16
        self._all_back_at = now

    def _count(self, now: float) -> None:
        assert self._all_back_at is not None
        self._seconds += now - self._all_back_at
        self._all_back_at = now


class DynamicBatcher(Batcher):
    """Forms batches of at most `max_batch_size` rows (0: the model has no batch dimension).

    `always_wait`: wait the whole delay, as Triton does. Without `wait_when_mixed` a batch leaves
    when a request arrives that cannot join it, as in Triton.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        max_queue_delay: float = 0.0,
        preferred_batch_sizes: Sequence[int] = (),
        max_queue_size: int | None = None,
        queue_policies: Sequence[QueuePolicy] = (),
        instances: int = 1,
        always_wait: bool = False,
        wait_when_mixed: bool = True,
    ) -> None:
        super().__init__(
            max_batch_size=max_batch_size,
            instances=instances,
            max_queue_size=max_queue_size,
            queue_policies=queue_policies,
        )
        self.max_queue_delay = max_queue_delay
        self.preferred_batch_sizes = sorted(preferred_batch_sizes, reverse=True)
        self.wait_when_mixed = wait_when_mixed
        self.arrivals = ArrivalForecast() if max_queue_delay and not always_wait else None

    def enqueue(self, request: InferRequest, now: float) -> bool:
        queue = self.queue
        if queue.queued_requests >= self._unlimited and queue.is_full(self.max_queue_size, request):
            return False
        request.enqueued_at = now
        queue.push(request)
        if request.deadline is not None or request.wait_until is not None:
            self.may_expire = True
        if not self.wait_when_mixed:
            queue.pass_others(request)
        if self.arrivals is not None:
            self.arrivals.arrived(now)
        return True

    def may_run_alone(self, now: float) -> bool:
        return not self.max_queue_delay and not self.queue.queued_requests

    def finished(
        self,
        requests: Sequence[InferRequest],
        seconds: float | None,
        now: float,
        *,
        batches: int = 1,
    ) -> None:
        self.forecast.ended(requests, seconds, batches)
        if self.arrivals is not None:
            self.arrivals.ended(len(requests), now)

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "fixed",
            "max_batch_rows": self.max_batch_size,
            "max_queue_delay_seconds": self.max_queue_delay,
            "preferred_batch_sizes": self.preferred_batch_sizes[::-1],
            "plan": {
                "rows": self.max_batch_size if self.max_queue_delay else None,
                "wait_seconds": self.max_queue_delay,
            },
            **(self.arrivals.explain() if self.arrivals is not None else {}),
            **self.forecast.explain(self.queue.queued_rows, self.max_batch_size),
        }

    def next_action(self, now: float, instance: int = 0, *, ahead: bool = False) -> Action:
        queue = self.queue
        if not queue.queued_requests:
            return IDLE
        wake_at = inf
        for lane in queue.lanes(now):
            if ahead and not self._is_full(lane):
                return IDLE
            if self.max_queue_delay:
                rows, reason = self._ready(lane, now)
            elif self.preferred_batch_sizes and (rows := self._preferred_rows(lane)):
                reason = "preferred"
            else:
                rows = self.max_batch_size
                reason = "full" if lane.rows >= rows else "idle"
            if rows:
                queued = queue.queued_rows
                requests = queue.take(lane, rows)
                return self._dispatch(requests, queued - queue.queued_rows, reason, now, instance)
            wake_at = min(wake_at, self._leaves_at(lane))
        self.decisions.held(now, "delay")
        return Wait(until=wake_at)

    def _ready(self, lane: Lane, now: float) -> tuple[int, str]:
        """How many rows of this lane may leave now (0: none yet), and why, if there is a delay."""
        full = lane.rows >= self.max_batch_size
        last = lane.oldest_at + self.max_queue_delay
        if now >= last:
            return self.max_batch_size, "full" if full else "delay"
        if rows := self._preferred_rows(lane):
            return rows, "preferred"
        if full:
            return self.max_batch_size, "full"
        if lane.passed:
            return self.max_batch_size, "mixed"
        if lane.head.attempts:  # a worker has died with it: it runs alone
            return self.max_batch_size, "no_arrivals_expected"
        if lane.earliest_deadline() <= last:
            return self.max_batch_size, "deadline"  # waiting could only make it late
        return (
            (self.max_batch_size, "no_arrivals_expected")
            if now >= self._leaves_at(lane)
            else (0, "")
        )

    def _preferred_rows(self, lane: Lane) -> int:
        """The rows of the first requests of this lane that make a preferred batch (0: none do)."""
        if not self.preferred_batch_sizes:
            return 0
        largest = min(self.preferred_batch_sizes[0], self.max_batch_size)
        rows = best = 0
        for request in lane.in_turn():
            if rows and rows + request.rows > largest:
                return best or rows
            rows += request.rows
            if rows in self.preferred_batch_sizes:
                best = rows
            if rows >= largest:
                return best or rows
        return best

    def _leaves_at(self, lane: Lane) -> float:
        """Until when this lane waits for more requests, if none come."""
        last = lane.oldest_at + self.max_queue_delay
        if self.arrivals is None or self.forecast.busy:
            return last
        return self.arrivals.expected_until(last)
