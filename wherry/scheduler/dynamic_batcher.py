"""When does a batch leave the queue, and who is in it?

Work-conserving by default: a free instance takes what waits, up to `max_batch_size` rows. Whoever
sets `max_queue_delay` lets a batch that is not full wait for company until its oldest request has
waited that long; with `preferred_batch_sizes` it leaves earlier, as soon as one of those sizes is
reached (Triton's dynamic batcher has the same two settings).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wherry.request import Batch, InferRequest
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
    ) -> None:
        self.max_batch_size = max(1, max_batch_size)
        self.max_queue_delay = max_queue_delay
        self.preferred_batch_sizes = sorted(preferred_batch_sizes, reverse=True)
        self.max_queue_size = max_queue_size
        self._queue = RequestQueue()

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    def enqueue(self, request: InferRequest, now: float) -> bool:
        full = self.max_queue_size is not None and self.queued_requests >= self.max_queue_size
        if full and not request.follows:
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
        """Nothing to learn, neither."""

    def finished(self, requests: Sequence[InferRequest], seconds: float | None, now: float) -> None:
        """Nothing to learn: this policy has no estimates."""

    def predicted_seconds(self) -> float:
        return 0.0

    def limit_rows(self, rows: int) -> None:
        self.max_batch_size = max(1, min(self.max_batch_size, rows))

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "fixed",
            "rows_at_most": self.max_batch_size,
            "max_queue_delay_seconds": self.max_queue_delay,
            "preferred_batch_sizes": self.preferred_batch_sizes[::-1],
        }

    def next_action(self, now: float) -> Action:
        if not self._queue.queued_requests:
            return IDLE
        wake_at = float("inf")
        for lane in self._queue.lanes(now):
            rows, reason = self._ready(lane, now)
            if rows:
                requests = tuple(self._queue.take(lane, rows))
                return Dispatch(Batch(requests, sum(r.rows for r in requests), reason))
            wake_at = min(wake_at, lane.head.enqueued_at + self.max_queue_delay)
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
        leaves_at = lane.head.enqueued_at + self.max_queue_delay
        if now >= leaves_at:
            return self.max_batch_size, "delay"
        if lane.earliest_deadline() <= leaves_at:
            return self.max_batch_size, "deadline"  # waiting could only make it late
        return 0, ""

    def __repr__(self) -> str:
        return f"<DynamicBatcher: {self.queued_requests} queued>"
