"""When does a batch leave if nobody has set a delay or a size?

1. A free instance takes what waits, unless callers that were just answered are about to come
   back and running together saves more time than waiting for them costs.
2. It takes no more rows than pay: the smallest batch that keeps nearly all of the spare capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from wherry.request import Batch, InferRequest
from wherry.scheduler.curve import BatchCurve
from wherry.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.scheduler.queue import RequestQueue
from wherry.scheduler.returns import AGES, Returns

IDLE = Idle()
#: A smaller batch must keep this share of the best size's spare capacity.
KEEP_SPARE = 0.85
#: and make the whole queue at most this much slower.
MOST_SLOWER = 0.05


class SelfTuningBatcher:
    def __init__(
        self, *, max_batch_size: int, instances: int = 1, max_queue_size: int | None = None
    ) -> None:
        self.max_batch_size = max(1, max_batch_size)
        self.instances = instances
        self.max_queue_size = max_queue_size
        self.curve = BatchCurve()
        self.returns = Returns()
        self._queue = RequestQueue()
        self._busy = 0
        self._running_rows = 0
        self._last_start = 0.0
        self._hold_until = 0.0
        self._hold_requests = 0
        self._sizes: list[int] = []
        self._stale = 0
        self._rows_per_request = 1.0

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    def enqueue(self, request: InferRequest, now: float) -> bool:
        if self.max_queue_size is not None and self._queue.queued_requests >= self.max_queue_size:
            return False
        request.enqueued_at = now
        self._queue.push(request)
        self.returns.arrived(now)
        self._rows_per_request += 0.02 * (request.rows - self._rows_per_request)
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

    def runs_alone_now(self) -> bool:
        return not self._queue.queued_requests and not self.returns.share

    def finished(self, batch: Batch, seconds: float, now: float) -> None:
        self._busy -= 1
        self._running_rows -= batch.rows
        self.curve.learn(batch.rows, seconds)
        self.returns.ended(len(batch.requests), now)
        self._hold_until = 0.0

    def next_action(self, now: float) -> Action:
        waiting = self._queue.queued_requests
        if not waiting:
            return IDLE
        if now < self._hold_until and waiting < self._hold_requests:
            return Wait(self._hold_until)
        lane = next(iter(self._queue.lanes()))
        # What one instance takes the others will lack.
        rows = min(lane.rows, ceil((lane.rows + self._running_rows) / self.instances))
        if rows < self.max_batch_size:
            until = max(self._wait_for(rows, now), self._paced(rows, lane.rows))
            if until > now:
                self._hold_until = until
                return Wait(until)
        self._hold_until = 0.0
        requests = tuple(self._queue.take(lane, self._how_many(rows)))
        self._busy += 1
        total = sum(r.rows for r in requests)
        self._running_rows += total
        self._last_start = now
        return Dispatch(Batch(requests, total, "x"))

    def _paced(self, rows: int, waiting: int) -> float:
        """When the next batch should start if several instances are to take turns.

        Starts that are fixed / instances / (1 - load) apart leave an instance free for each.
        """
        fixed = self.curve.fixed()
        if not self._busy or fixed is None:
            return 0.0
        seconds = self.curve.seconds(rows)
        slope = max(0.0, seconds - fixed) / rows
        rate = self.returns.rate * self._rows_per_request
        gap = (
            (1.2 - 0.2 * self.returns.share)
            * fixed
            / self.instances
            / (1 - min(0.9, rate * slope / self.instances))
        )
        return self._last_start + gap if waiting < rate * gap else 0.0

    def _wait_for(self, rows: int, now: float) -> float:
        """Until when company is worth waiting for; `now` if it is not."""
        returns, seconds = self.returns, self.curve.seconds
        if returns.last_end is None or not returns.share:
            return now
        age = now - returns.last_end
        free = max(1, self.instances - self._busy)
        alone = seconds(rows)
        strangers = (1.0 - returns.share) ** 2 * returns.rate * self._rows_per_request * alone
        best_gain, best_until, best_mates = 0.0, now, 0.0
        for i, back_at in enumerate(AGES):
            if back_at <= age:
                continue
            mates = (returns.back_by(i) - returns.arrived_since) * self._rows_per_request
            # Other free instances take their part of them.
            mates = (rows + mates) / free - rows
            mates = min(mates, self.max_batch_size - rows)
            if mates < 0.5:
                continue
            together = seconds(rows + mates)
            wait = back_at - age
            apart = alone + seconds(mates + strangers) - seconds(strangers)
            saved = apart - together
            if back_at > saved:
                break
            share = returns.share
            gain = (
                mates * (saved - wait)
                + share * rows * (saved - wait)
                - (1 - share) * rows * (wait + together - alone)
            )
            if gain > best_gain:
                best_gain, best_until, best_mates = gain, now + wait, mates
        everybody = returns.last_answered - returns.arrived_since
        if free > 1:
            everybody = min(everybody, round(best_mates / self._rows_per_request))
        self._hold_requests = self._queue.queued_requests + max(1, everybody)
        return best_until

    def _how_many(self, rows: int) -> int:
        """All that wait, or equal parts of them where a batch costs next to nothing by itself.

        Each further batch costs the fixed part of the curve once more; as many are made as leave
        nearly all of the spare capacity.
        """
        rows = min(rows, self.max_batch_size)
        fixed = self.curve.fixed()
        if rows == 1 or fixed is None:
            return rows
        seconds = self.curve.seconds(rows)
        if fixed <= 0.001 * seconds:
            return 1
        best = rows / seconds
        share = self.returns.share
        rate = self.returns.rate * (1 - share) * self._rows_per_request / self.instances
        spare = 1 - min(1.0, rate / best)
        keep = max(0.5, 1 - (1 - KEEP_SPARE) * self.instances**0.5)
        most = MOST_SLOWER * (1 - share) + 0.012 * share
        slower = min(most, (1 - keep) * spare / keep)
        return ceil(rows / (1 + int(slower * seconds / fixed)))
