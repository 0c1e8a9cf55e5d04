"""What does a scheduler do with its queue, whatever its policy?"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from wherry.core.models.config import QueuePolicy
from wherry.core.scheduler.decisions import Decisions
from wherry.core.scheduler.forecast import Forecast
from wherry.core.scheduler.policy import Dispatch
from wherry.core.scheduler.queue import Lane, RequestQueue
from wherry.core.values.errors import WherryError
from wherry.core.values.request import Batch, InferRequest


class Batcher:
    """The part of a Scheduler that decides nothing: a queue, and a forecast of what it takes."""

    runs_sequences = False

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
        self.decisions = Decisions()
        self._queue = RequestQueue(queue_policies)
        #: With fewer queued requests than this no limit of the queue matters.
        self._in_any_case = (
            0 if queue_policies else inf if max_queue_size is None else max_queue_size
        )

    def resize(self, instances: int) -> None:
        """Plan for this number of instances from now on."""
        self.instances = self.forecast.instances = instances

    def __repr__(self) -> str:
        running = self.forecast.busy
        return f"<{type(self).__name__}: {self.queued_requests} queued, {running} running>"

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    @property
    def queued_rows(self) -> int:
        return self._queue.queued_rows

    def _take_in(self, request: InferRequest, now: float) -> bool:
        """Queue a request; False if the queue is full."""
        queue = self._queue
        if queue.queued_requests >= self._in_any_case and queue.is_full(
            self.max_queue_size, request
        ):
            return False
        request.enqueued_at = now
        queue.push(request)
        return True

    def _dispatch(
        self, requests: Sequence[InferRequest], rows: int, reason: str, now: float, instance: int
    ) -> Dispatch:
        """Give an instance these requests, which were taken from the queue, as one batch."""
        first = requests[0]
        oldest_at = first.enqueued_at
        if len(requests) > 1 and requests[1].tenant != first.tenant:  # tenants take turns
            oldest_at = min([request.enqueued_at for request in requests])
        self.forecast.began(rows)
        self.decisions.left(
            requests, now, rows, self._queue.queued_rows, oldest_at, reason, instance
        )
        return Dispatch(Batch(tuple(requests), rows, reason))

    def _ended(self, requests: Sequence[InferRequest], seconds: float | None, batches: int) -> None:
        """As many equal batches have ended: see `Scheduler.finished`."""
        expected = self.forecast.ended(requests, seconds, batches)
        self.decisions.ended(requests, seconds, batches, expected)

    def requeue(self, request: InferRequest, now: float, *, alone: bool) -> None:
        if alone:
            self._queue.push(request, alone=True)
        else:
            self._queue.put_back(request)

    def cancel(self, request: InferRequest) -> bool:
        return self._queue.remove(request)

    def expire(self, now: float) -> Sequence[InferRequest]:
        return self._queue.expire(now)

    def next_deadline(self) -> float | None:
        return self._queue.next_deadline if self._queue.may_expire else None

    def waiting(self) -> Sequence[InferRequest]:
        return self._queue.waiting()

    def clear(self) -> Sequence[InferRequest]:
        return self._queue.clear()

    def is_short(self, seconds: float) -> bool:
        within = self.forecast.known_rows_within
        if within is None:
            within = self.forecast.rows_within(seconds, self.max_batch_size)
        return self._queue.queued_rows <= within

    def predicted_seconds(self, request: InferRequest) -> float:
        ahead = self._queue.rows_ahead(request.priority, request.tenant)
        return self.forecast.answer_seconds(ahead, self.max_batch_size)

    def give_up(self, turns: float) -> Sequence[InferRequest]:
        return self._queue.cut(turns * self.instances * self.max_batch_size, self.max_batch_size)

    def head(self) -> tuple[float, float] | None:
        lane = self._queue.oldest()
        if lane is None:
            return None
        rows = min(lane.rows, self.max_batch_size)
        return lane.oldest_at, self.forecast.batch_seconds(rows)

    def reschedule(self, request: InferRequest, now: float) -> bool:
        return False

    def broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        return ()

    def instance_up(self, instance: int) -> None:
        """Any instance runs any request."""

    def instance_lost(self, instance: int) -> None:
        """Any instance runs any request."""

    def _is_full(self, lane: Lane) -> bool:
        """Does a lane hold a batch that may be given ahead? A request with which a worker has died
        is alone with the next one."""
        return lane.rows >= self.max_batch_size and not lane.head.attempts

    def limit_rows(self, rows: int) -> None:
        self.max_batch_size = max(1, min(self.max_batch_size, rows))
