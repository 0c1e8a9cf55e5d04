"""When does a batch leave the queue, and who is in it?

Work-conserving by default: a free instance takes what waits, up to `max_batch_size` rows. Whoever
sets `max_queue_delay` lets a batch that is not full wait for company until its oldest request has
waited that long; with `preferred_batch_sizes` it leaves earlier, as soon as one of those sizes is
reached (Triton's dynamic batcher has the same two settings).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wherry.config import QueuePolicy
from wherry.request import Batch, InferRequest
from wherry.scheduler.forecast import Forecast
from wherry.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.scheduler.queue import Lane, RequestQueue

IDLE = Idle()


class DynamicBatcher:
    """Forms batches of at most `max_batch_size` rows (0: the model has no batch dimension)."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        max_queue_delay: float = 0.0,
        preferred_batch_sizes: Sequence[int] = (),
        max_queue_size: int | None = None,
        queue_policies: Sequence[QueuePolicy] = (),
        instances: int = 1,
    ) -> None:
        self.max_batch_size = max(1, max_batch_size)
        self.max_queue_delay = max_queue_delay
        self.preferred_batch_sizes = sorted(preferred_batch_sizes, reverse=True)
        self.max_queue_size = max_queue_size
        self.forecast = Forecast(instances)
        self._queue = RequestQueue(queue_policies)

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    def enqueue(self, request: InferRequest, now: float) -> bool:
        if self._queue.is_full(self.max_queue_size, request):
            return False
        request.enqueued_at = now
        self._queue.push(request)
        return True

    def requeue(self, request: InferRequest, now: float) -> None:
        self._queue.push(request, alone=True)

    def cancel(self, request: InferRequest) -> bool:
        return self._queue.remove(request)

    def expire(self, now: float) -> Sequence[InferRequest]:
        return self._queue.expire(now)

    def next_deadline(self) -> float | None:
        return self._queue.next_deadline

    def clear(self) -> Sequence[InferRequest]:
        return self._queue.clear()

    def may_run_alone(self, now: float) -> bool:
        return not self.max_queue_delay and not self._queue.queued_requests

    def ran_alone(self, seconds: float, now: float) -> None:
        """Decides nothing here, and nobody waits then."""

    def finished(self, requests: Sequence[InferRequest], seconds: float | None, now: float) -> None:
        """What a batch takes decides nothing here; but who comes may ask how long it will be."""
        self.forecast.ended(requests, seconds)

    def predicted_seconds(self, request: InferRequest) -> float:
        ahead = self._queue.rows_ahead(request.priority, request.tenant)
        return self.forecast.answer_seconds(ahead, self.max_batch_size)

    def head(self) -> tuple[float, float] | None:
        lane = self._queue.oldest()
        if lane is None:
            return None
        rows = min(lane.rows, self.max_batch_size)
        return lane.oldest_at, self.forecast.batch_seconds(rows)

    def limit_rows(self, rows: int) -> None:
        self.max_batch_size = max(1, min(self.max_batch_size, rows))

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "fixed",
            "rows_at_most": self.max_batch_size,
            "max_queue_delay_seconds": self.max_queue_delay,
            "preferred_batch_sizes": self.preferred_batch_sizes[::-1],
            **self.forecast.explain(self._queue.queued_rows, self.max_batch_size),
        }

    def next_action(self, now: float) -> Action:
        if not self._queue.queued_requests:
            return IDLE
        wake_at = float("inf")
        for lane in self._queue.lanes(now):
            rows, reason = self._ready(lane, now)
            if rows:
                requests = tuple(self._queue.take(lane, rows))
                total = sum([request.rows for request in requests])
                self.forecast.began(total)
                return Dispatch(Batch(requests, total, reason))
            wake_at = min(wake_at, lane.oldest_at + self.max_queue_delay)
        return Wait(until=wake_at)

    def _ready(self, lane: Lane, now: float) -> tuple[int, str]:
        """How many rows of this lane may leave now (0: none yet), and why."""
        if lane.rows >= self.max_batch_size:
            return self.max_batch_size, "full"
        if not self.max_queue_delay:
            return self.max_batch_size, "idle"
        for size in self.preferred_batch_sizes:
            if size <= lane.rows:
                return size, "preferred"
        leaves_at = lane.oldest_at + self.max_queue_delay
        if now >= leaves_at:
            return self.max_batch_size, "delay"
        if lane.earliest_deadline() <= leaves_at:
            return self.max_batch_size, "deadline"  # waiting could only make it late
        return 0, ""

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {self.queued_requests} queued>"
