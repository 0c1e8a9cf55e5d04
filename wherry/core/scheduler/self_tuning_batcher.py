"""When does a batch leave, and which requests are in it, if no delay or size is set?

One objective: the least mean answer time of all callers, in the steady rhythm that a decision leads
to. By what was learnt of the device (curve.py) and of the callers (callers.py) it decides

1. whether a batch waits for callers that were just answered, for how many and how long
   (rhythm.CallerLoop): running together may save more than the wait costs,
2. how far apart batches start on several instances (rhythm.turn): those that start together end
   together, with no instance free in between,
3. how many of the queued rows run (`_part`): the others run sooner where a part costs no more,
4. which ones, if rows are padded to the longest (costs.py).

docs/internals/batching.md has the reasons and what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import Any

from wherry.core.models.config import QueuePolicy
from wherry.core.scheduler.callers import CallerLoop, ReturningCallers, Rhythm, turn
from wherry.core.scheduler.costs import RowCosts
from wherry.core.scheduler.dynamic_batcher import IDLE, Batcher
from wherry.core.scheduler.policy import Action, Wait
from wherry.core.scheduler.queue import Lane
from wherry.core.values.request import InferRequest

#: Batches from one plan to the next, once much is learnt.
PLANNED_EACH = 8
#: A plan holds for a number of callers that differs by this share at most.
OTHER_CALLERS = 0.1
#: Strangers are run a turn at a time until this many times as much waits.
MANY_TURNS = 1.5
#: A part that costs a row this share more or less, and half the noise, costs about the same.
ABOUT = 0.05
#: Parts may use this share of an instance's spare time.
OF_SPARE = 1 / 6
#: Cuts to a step of which one is left out: sizes that look bad are tried again.
RETRIED_EACH = 64
#: At least this share is taken to be spare: the rate is not known any better.
LEAST_SPARE = 0.01


class SelfTuningBatcher(Batcher):
    """Forms batches of at most `max_batch_size` rows, for `instances` equal instances."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        instances: int = 1,
        max_queue_size: int | None = None,
        queue_policies: Sequence[QueuePolicy] = (),
        known_costs: bool = True,
    ) -> None:
        super().__init__(
            max_batch_size=max_batch_size,
            instances=instances,
            max_queue_size=max_queue_size,
            queue_policies=queue_policies,
        )
        self.forecast.costs = RowCosts(known=known_costs)
        self.curve = self.forecast.curve
        self.callers = ReturningCallers(instances)
        self._running_requests = 0
        self._last_end = self._last_start = 0.0
        # What was planned: after how many batches and for how many callers, ...
        self._planned_at, self._planned_for = -PLANNED_EACH, 0
        # ... the rhythm of callers in a loop, and of one that does not wait, if there are any, ...
        self._rhythm: Rhythm | None = None
        self._at_once: Rhythm | None = None
        # ... and the seconds between two starts on several instances.
        self._turn_seconds = 0.0
        self._steps = 0
        # A wait that was decided: until when, or until how many requests are there.
        self._hold_until = 0.0
        self._hold_requests = 0

    # What happens

    def resize(self, instances: int) -> None:
        super().resize(instances)
        self.callers.instances = instances

    def enqueue(self, request: InferRequest, now: float) -> bool:
        queue = self.queue
        if queue.queued_requests >= self._unlimited and queue.is_full(self.max_queue_size, request):
            return False
        request.enqueued_at = now
        queue.push(request)
        if request.deadline is not None or request.wait_until is not None:
            self.may_expire = True
            if request.deadline is not None and request.deadline <= self._hold_until:
                self._hold_until = 0.0  # it cannot wait so long: decide again
        self.callers.arrived(request.rows, now)
        return True

    def may_run_alone(self, now: float) -> bool:
        return not self.queue.queued_requests and self._wait(1, now)[0] <= now

    def ran_alone(self, seconds: float, now: float) -> None:
        if not self.forecast.costs.matter:  # what this row's cost was is not known here
            self.forecast.learn(1, seconds)
        self._answered(1, now)

    def finished(
        self,
        requests: Sequence[InferRequest],
        seconds: float | None,
        now: float,
        *,
        batches: int = 1,
    ) -> None:
        self._hold_until = 0.0
        self._running_requests -= len(requests)
        self.forecast.ended(requests, seconds, batches)
        self._answered(len(requests), now)

    def _answered(self, requests: int, now: float) -> None:
        self.callers.ended(requests, self.queue.queued_requests + self._running_requests, now)
        self._last_end = now

    # What to do

    def next_action(self, now: float, instance: int = 0, *, ahead: bool = False) -> Action:
        queue = self.queue
        waiting = queue.queued_requests
        if not waiting:
            return IDLE
        most = self.max_batch_size
        held = now < self._hold_until and waiting < self._hold_requests
        if held and queue.queued_rows < most:
            return Wait(self._hold_until)
        lane = queue.lanes(now)[0]
        rows = queued = min(lane.rows, most)
        if ahead and (rows < most or not self._is_full(lane)):
            return IDLE
        if self.curve.batches:
            self._plan()
            if rows > 1:
                rows = self._how_many(rows, waiting, lane)
        if rows == queued < most and (self._rhythm is not None or self.forecast.busy):
            until, enough, held_for = self._wait(waiting, now)
            if now < until < (self.next_deadline() or inf):
                self._hold_until, self._hold_requests = until, enough
                self.decisions.held(now, held_for, enough - waiting)
                return Wait(until)
        reason = "full" if queued == most else "waited" if self._hold_until else "idle"
        self._hold_until = 0.0
        before = queue.queued_rows
        chosen = self.forecast.costs.choose(lane, rows, now)
        requests = queue.take(lane, rows) if chosen is None else queue.take_these(lane, chosen)
        total = before - queue.queued_rows
        self._last_start = now
        self._running_requests += len(requests)
        return self._dispatch(requests, total, "part" if total < queued else reason, now, instance)

    def _plan(self) -> None:
        """Plan again, if much has happened since."""
        curve, callers, count = self.curve, self.callers, self.callers.count
        each = min(PLANNED_EACH, 4 + curve.batches // 8)
        if (
            curve.batches - self._planned_at < each
            and abs(count - self._planned_for) <= OTHER_CALLERS * count
        ):
            return
        self._planned_at, self._planned_for = curve.batches, count
        self._rhythm = self._at_once = None
        rows = callers.rows
        returns = callers.times() if count > self.instances else None
        if returns is not None:  # else each caller has an instance, or there are only strangers
            forecast, most = self.forecast, max(1.0, self.max_batch_size / rows)
            loop = CallerLoop(
                count, returns, lambda n: forecast.batch_seconds(n * rows), self.instances, most
            )
            self._rhythm, self._at_once = loop.best()
        fixed, slope = curve.fixed(), curve.slope()
        if self.instances > 1 and callers.gap and fixed is not None and slope is not None:
            work_rate = rows / callers.gap * self.forecast.costs.per_row
            self._turn_seconds = turn(fixed, slope, work_rate, self.instances)

    def _wait(self, waiting: int, now: float) -> tuple[float, int, str]:
        """Until when the rest of a group or of a turn is worth waiting for, if it is; how many
        requests are enough, and what the wait is for."""
        rhythm, callers = self._rhythm, self.callers
        if rhythm is not None and rhythm.wait:
            enough = min(rhythm.requests - 0.5, callers.count - self._running_requests)
            until = self._last_end + rhythm.wait
            if waiting < enough and now < until:
                return until, max(waiting + 1, ceil(enough)), "callers"
        elif self.forecast.busy and callers.gap:
            until, enough = self._last_start + self._turn_seconds, self._turn_seconds / callers.gap
            if waiting < enough and now < until:
                return until, max(waiting + 1, ceil(enough)), "turn"
        return now, 0, ""

    def _loop_share(self) -> float:
        """The share of the requests that are here that callers in a loop have sent."""
        here = self.queue.queued_requests + self._running_requests
        return min(1.0, self.callers.count / here) if here else 1.0

    def _how_many(self, rows: int, waiting: int, lane: Lane) -> int:
        """Of these rows, the first ones of `lane`, as many as one batch should have: those of a
        group of callers, else an equal part of all that are here or a turn of strangers, and of
        them a step or another part if that is as cheap."""
        rhythm, per_request = self._rhythm, lane.rows / waiting
        here = waiting + self._running_requests
        if rhythm is not None and rhythm.wait:
            more = max(1.0, here / max(1, self._planned_for))
            return min(rows, max(1, ceil(rhythm.requests * more * per_request - 1e-6)))
        if self.instances > 1:
            fair = here / self.instances
            in_turn = self._turn_seconds / self.callers.gap if self.callers.gap else 0.0
            if fair < MANY_TURNS * (1 - self._loop_share()) * in_turn:
                fair = in_turn
            rows = min(rows, max(1, ceil(fair * per_request)))
        if rows == 1 or self.forecast.costs.matter:
            return rows
        return self._part(self._step(rows))

    def _step(self, rows: int) -> int:
        """All of the rows, or as many as fill a step of the device if these are clearly more a
        second. One cut in `RETRIED_EACH` is left out: what the whole costs would never be learnt
        again."""
        curve = self.curve
        if rows > curve.surely_known:
            return rows
        least, found = curve.seconds(rows) / rows / self._clearly(), rows
        for size, seconds in curve.efficient:
            if size >= rows:
                break
            if seconds / size < least:
                least, found = seconds / size, size
        if found < rows:
            self._steps += 1
            if self._steps % RETRIED_EACH == 0:
                return rows
        return found

    def _part(self, rows: int) -> int:
        """All of the rows, or an equal part if the fixed cost of a batch is next to nothing.

        A part is answered sooner, and makes the whole slower by its fixed cost. That uses spare
        time, as strangers leave it. Callers in a loop gain nothing: a request that is left behind
        only changes places with them.
        """
        curve, callers, k = self.curve, self.callers, self.instances
        fixed = curve.fixed()
        if fixed is None or rows == 1:
            return rows
        seconds, open_share = curve.seconds(rows), 1 - self._loop_share() ** 2
        rate = callers.rows / callers.gap * open_share / k if callers.gap else 0.0
        spare = max(LEAST_SPARE, 1 - rate * seconds / rows)
        slower = min(ABOUT * open_share, OF_SPARE * spare * k**0.5)
        part = ceil(rows / int(1 + slower * seconds / max(fixed, 1e-9)))
        # The straight line that `fixed` is from knows no steps.
        steps = curve.seconds(part) * rows > self._clearly() * seconds * part
        return rows if steps else part

    def _clearly(self) -> float:
        """Costs of a row that differ by this factor are not about the same."""
        return 1 + ABOUT + self.curve.noise / 2

    # What is shown

    def explain(self) -> dict[str, Any]:
        callers, times = self.callers, self.callers.times()
        rate = 1 / callers.gap if callers.gap else 0.0
        loop = self._loop_share() if callers.count else 0.0
        returned = [] if times is None else [[times.until(n / 8), (n + 1) / 8] for n in range(8)]
        explained = {
            "policy": "self-tuning",
            "max_batch_rows": self.max_batch_size,
            **self.forecast.explain(self.queue.queued_rows, self.max_batch_size),
            "requests_per_second": rate,
            "returning_share": loop,
            "callers": {
                "returning": callers.count * callers.rows,
                "returned_within_seconds": returned,
                "strangers_per_second": rate * (1 - loop),
            },
        }
        rhythm, at_once = self._rhythm, self._at_once
        if rhythm is not None and at_once is not None:
            explained["plan"] = {
                "rows": rhythm.requests * callers.rows,
                "wait_seconds": rhythm.wait,
                "apart_seconds": 0.0 if rhythm.wait else self._turn_seconds,
                "answer_seconds": rhythm.answer,
                "answer_seconds_at_once": at_once.answer,
            }
        return explained
