"""When does a batch leave, and which requests are in it, if no delay or size is set?

Five rules, each from what was learnt while running:

1. A free instance takes what waits,
2. unless callers that were just answered are about to come back, and running together saves more
   time than waiting for them costs (`_company`).
3. Several instances take turns (`_turn`): batches that start together end together, with nobody
   free in between; and what one takes the others will lack (`_fair_part`).
4. Where the device works in steps, a batch ends with a step (`_step`); where a batch costs next to
   nothing by itself, it takes only a part of what waits (`_part`).
5. Where rows are padded to the longest, rows of similar length go together (costs.py).

docs/internals/batching.md has the reasons and what the rules reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import ceil, inf
from typing import Any

from wherry.models.config import QueuePolicy
from wherry.scheduler.batcher import Batcher
from wherry.scheduler.costs import RowCosts
from wherry.scheduler.policy import Action, Idle, Wait
from wherry.scheduler.queue import Lane
from wherry.scheduler.returns import AGES, Returns
from wherry.values.request import InferRequest

IDLE = Idle()
#: Running a queue in parts must keep this share of the spare capacity (of one instance) ...
KEEP_SPARE = 0.85
#: ... of which at least so much is taken to be there: the rate is not known any better, ...
LEAST_SPARE = 0.01
#: ... and may make the whole at most this much slower. A step must make it so much faster.
MOST_SLOWER = 0.05
#: How far apart the starts of several instances are, in the least distance that can be kept:
#: among strangers, and among callers in a loop.
APART_OPEN, APART_CLOSED = 1.2, 1.0
#: Beyond this load that distance is not kept: batches would grow, and the distance with them.
MOST_LOAD_OPEN, MOST_LOAD_CLOSED = 0.85, 0.6
#: Strangers are run a turn at a time until so many times as much is there.
MANY_TURNS = 1.5


class SelfTuningBatcher(Batcher):
    """Forms batches of at most `max_batch_size` rows, for `instances` equal instances."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        instances: int = 1,
        max_queue_size: int | None = None,
        queue_policies: Sequence[QueuePolicy] = (),
        costs_given: bool = True,
    ) -> None:
        super().__init__(
            max_batch_size=max_batch_size,
            instances=instances,
            max_queue_size=max_queue_size,
            queue_policies=queue_policies,
        )
        self.forecast.costs = RowCosts(given=costs_given)
        self.curve = self.forecast.curve
        self.returns = Returns()
        self._last_start = 0.0
        # A wait that was decided: until when, or until so many requests are there.
        self._hold_until = 0.0
        self._hold_requests = 0
        self._rows_per_request = 1.0

    # What happens

    def enqueue(self, request: InferRequest, now: float) -> bool:
        if not self._take_in(request, now):
            return False
        if request.deadline is not None and request.deadline <= self._hold_until:
            self._hold_until = 0.0  # it cannot wait so long: decide again
        self.returns.arrived(now)
        self._rows_per_request += 0.01 * (request.rows - self._rows_per_request)
        return True

    def may_run_alone(self, now: float) -> bool:
        if self.queued_requests:
            return False
        return not self.returns.share or self._company(1, now, 1) <= now

    def ran_alone(self, seconds: float, now: float) -> None:
        if not self.forecast.costs.matter:  # what this row's cost was is not known here
            self.forecast.learn(1, seconds)
        self.returns.ended(1, now)

    def finished(
        self,
        requests: Sequence[InferRequest],
        seconds: float | None,
        now: float,
        *,
        batches: int = 1,
    ) -> None:
        self._hold_until = 0.0
        self._ended(requests, seconds, batches)
        if seconds is not None:
            self.returns.ended(len(requests), now)

    def explain(self) -> dict[str, Any]:
        returns = self.returns
        return {
            "policy": "self-tuning",
            "max_batch_rows": self.max_batch_size,
            **self.forecast.explain(self._queue.queued_rows, self.max_batch_size),
            "requests_per_second": returns.rate,
            "returning_share": returns.share,
            "callers": {
                "returning": returns.share * returns.last_answered * self._rows_per_request,
                "returned_within_seconds": [
                    [age, share] for age, share in zip(AGES, returns.shares, strict=True) if share
                ],
                "strangers_per_second": returns.rate * (1 - returns.share),
            },
        }

    # What to do

    def next_action(self, now: float, instance: int = 0, *, ahead: bool = False) -> Action:
        waiting = self.queued_requests
        if not waiting:
            return IDLE
        held = now < self._hold_until and waiting < self._hold_requests
        if held and self._queue.queued_rows < self.max_batch_size:
            return Wait(self._hold_until)
        lane = self._queue.lanes(now)[0]
        apart, turn = self._turn()
        rows, reason = min(self._fair_part(lane.rows, turn), self.max_batch_size), "full"
        if ahead and (rows < self.max_batch_size or not self._is_full(lane)):
            return IDLE
        if lane.rows < self.max_batch_size:
            back_at = until = self._company(rows, now)
            if self.forecast.busy and lane.rows < turn:
                until = max(until, self._last_start + apart)
            if now < until < (self.next_deadline() or inf):
                self._hold_until = until
                if until == back_at:
                    self.decisions.held(now, "callers", self._hold_requests - waiting)
                else:
                    self.decisions.held(now, "turn", ceil(turn))
                return Wait(until)
            reason = "waited" if self._hold_until else "idle"
        self._hold_until = 0.0
        requests = self._take(lane, rows, now)
        total = sum([request.rows for request in requests])
        self._last_start = now
        return self._dispatch(requests, total, "part" if total < rows else reason, now, instance)

    def _company(self, rows: int, now: float, arriving: int = 0) -> float:
        """Until when callers on their way back are worth waiting for; `now` if they are not.

        Waiting for `mates` until they are back makes one batch of what would be two. Everybody in
        a loop wins what that saves, less the wait.
        """
        returns, seconds = self.returns, self.forecast.batch_seconds
        if returns.last_end is None or not returns.share:
            return now
        arrived, per_request = returns.arrived_since + arriving, self._rows_per_request
        if arrived >= returns.last_answered:
            return now
        age = now - returns.last_end
        free = max(1, self.instances - self.forecast.busy)
        share, alone = returns.share, seconds(rows)
        # Arrivals while this batch would run need another one in any case: those of new callers
        strangers = (1.0 - share) ** 2 * returns.rate * per_request * alone
        # and of callers that are back by its end, but not by the end of the wait.
        by_its_end = returns.back_by(max(0, bisect_right(AGES, alone) - 1))
        best_gain, best_until, best_mates = 0.0, now, 0.0
        for i, back_at in enumerate(AGES):
            if back_at <= age:
                continue
            if back_at > alone:
                break
            mates = (returns.back_by(i) - arrived) * per_request
            mates = min((rows + mates) / free, self.max_batch_size) - rows
            if mates < 0.5:
                continue
            wait, together = back_at - age, seconds(rows + mates)
            late = strangers + max(0.0, by_its_end - returns.back_by(i)) * per_request
            saved = alone + seconds(mates + late) - seconds(late) - together
            gain = (mates + share * rows) * (saved - wait)
            if back_at <= saved and gain > best_gain:
                best_gain, best_until, best_mates = gain, now + wait, mates
        everybody = returns.last_answered - arrived
        if free > 1:
            everybody = min(everybody, round(best_mates / per_request))
        self._hold_requests = self.queued_requests + max(1, everybody)
        return best_until

    def _turn(self) -> tuple[float, float]:
        """How far apart several instances should start to take turns, and the rows that come
        meanwhile.

        With `fixed` seconds a batch and a load (of the rows alone) below 1, starts that are
        fixed / instances / (1 - load) apart are the closest that leave an instance free for each.
        """
        if self.instances == 1:
            return 0.0, 0.0
        fixed, slope = self.curve.fixed(), self.curve.slope()
        if fixed is None or slope is None:
            return 0.0, 0.0
        rate = self.returns.rate * self._rows_per_request
        load = rate * slope * self.forecast.costs.per_row / self.instances
        share = self.returns.share
        apart = APART_OPEN + (APART_CLOSED - APART_OPEN) * share
        most = MOST_LOAD_OPEN + (MOST_LOAD_CLOSED - MOST_LOAD_OPEN) * share
        apart *= fixed / self.instances / (1 - min(most, load))
        return apart, rate * apart

    def _fair_part(self, rows: int, turn: float) -> int:
        """Of strangers a turn's rows: batches of one size take the same time, and stay apart. Of
        callers in a loop, or if far more is there, an equal part of what waits and runs."""
        fair = (rows + self.forecast.running_rows) / self.instances
        if fair < MANY_TURNS * (1 - self.returns.share) * turn:
            fair = turn
        return min(rows, ceil(fair))

    def _take(self, lane: Lane, rows: int, now: float) -> list[InferRequest]:
        costs = self.forecast.costs
        if not costs.matter:
            rows = self._part(self._step(lane, rows))
        chosen = costs.choose(lane, rows, now)
        if chosen is None:
            return self._queue.take(lane, rows)
        return self._queue.take_these(lane, chosen)

    def _step(self, lane: Lane, rows: int) -> int:
        """All that wait, or as many as fill a step of the device if that is clearly more a second.

        Steps end at powers of two or at multiples of one, so only those are looked at. A full
        batch is not cut: what it costs would never be learnt again.
        """
        if rows == 1 or rows >= self.max_batch_size or not self.curve:
            return rows
        sizes = {1 << i for i in range((rows - 1).bit_length())}
        if self._rows_per_request != 1.0:  # as many as whole requests make
            ends = list(accumulate([request.rows for request in lane.in_turn()]))
            sizes = {ends[max(0, bisect_right(ends, size) - 1)] for size in sizes}
        rate, size = max([(size / self.curve.hoped(size), size) for size in sizes])
        return size if rate * self.curve.seconds(rows) > self._clearly() * rows else rows

    def _clearly(self) -> float:
        """Rates that differ by this factor are not equal, and not the noise of what was learnt."""
        return 1 + MOST_SLOWER + 2 * self.curve.error

    def _part(self, rows: int) -> int:
        """All of them, or equal parts if the fixed cost of each is next to nothing."""
        if rows == 1 or (fixed := self.curve.fixed()) is None:
            return rows
        # Callers in a loop gain nothing: a request left behind only changes places with them.
        open_share = 1 - self.returns.share**2
        seconds = self.forecast.batch_seconds(rows)
        strangers = self.returns.rate * open_share * self._rows_per_request / self.instances
        spare = max(LEAST_SPARE, 1 - strangers * seconds / rows)
        keep = max(0.5, 1 - (1 - KEEP_SPARE) * self.instances**0.5)
        slower = min(MOST_SLOWER * open_share, (1 - keep) / keep * spare)
        in_fixed = seconds / max(fixed, 1e-9)
        # The root: in a long queue small parts gain little, and each costs its fixed part.
        parts = max(1.0, min(1 + slower * in_fixed, in_fixed**0.5 / 2))
        part = ceil(rows / int(parts))
        # The straight line that `fixed` is from knows no steps.
        steps = self.curve.seconds(part) * rows > self._clearly() * seconds * part
        return rows if steps else part
