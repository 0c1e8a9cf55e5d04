"""Which queued requests share a batch, if its rows are padded to the longest?

A row has a size: what a model's `cost()` returns (tokens, pixels), or the length of its texts.
`cost()` is believed. The length of texts counts only while batches are seen to take as long as
their longest text makes them. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, islice
from math import isinf
from operator import attrgetter, mul
from typing import Any

from wherry.core.scheduler.padding import PaddingTest
from wherry.core.scheduler.queue import Lane
from wherry.core.values.request import InferRequest

#: Batches after which what was seen has lost two thirds of its weight.
MEMORY = 128
#: Batches after which the parts are worked out anew, ...
EACH = 16
#: ... and its rounds, each from the last result: parts that the batches cannot separate stay.
ROUNDS = 8

#: A part by rows or by the size alone explains this share of what it could: the rest of what the
#: batches cannot separate goes to the work, in time.
LESS = 0.98


class PaddedSeconds:
    """Fits seconds = each + by_row * rows + by_size * longest + by_work * rows * longest.

    No part is below 0. Least squares over the latest batches, weighted as their noise is in
    proportion to their seconds. Where rows and sizes have not differed enough to separate the
    parts, all is attributed to the work.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.by_work = self.each = self.by_row = self.by_size = 0.0
        self._usual = 0.0
        # Decayed sums of products of work w, 1 (n), rows r, size s, and of these with seconds.
        self._ww = self._wn = self._wr = self._ws = 0.0
        self._nn = self._nr = self._ns = self._rr = self._rs = self._ss = 0.0
        self._wt = self._nt = self._rt = self._st = 0.0

    def seconds(self, rows: float, longest: float) -> float:
        """Of a batch; 0.0 while nothing is known."""
        return self.each + self.by_row * rows + (self.by_size + self.by_work * rows) * longest

    def learn(self, rows: float, longest: float, seconds: float) -> None:
        self.batches += 1
        self._usual += max(0.1, 1 / self.batches) * (seconds - self._usual)
        keep, weight = 1 - 1 / MEMORY, self._usual**-2
        n, r, s, w = weight, weight * rows, weight * longest, weight * rows * longest
        self._ww = keep * self._ww + w * rows * longest
        self._wn = keep * self._wn + w
        self._wr = keep * self._wr + w * rows
        self._ws = keep * self._ws + w * longest
        self._nn = keep * self._nn + n
        self._nr = keep * self._nr + r
        self._ns = keep * self._ns + s
        self._rr = keep * self._rr + r * rows
        self._rs = keep * self._rs + r * longest
        self._ss = keep * self._ss + s * longest
        self._wt = keep * self._wt + w * seconds
        self._nt = keep * self._nt + n * seconds
        self._rt = keep * self._rt + r * seconds
        self._st = keep * self._st + s * seconds
        if self.batches % EACH == 0 or self.batches < EACH:
            self._fit()

    def _fit(self) -> None:
        """Improve one part after the other, the others as they are (coordinate descent)."""
        w, n, r, s = self.by_work, self.each, self.by_row, self.by_size
        for _ in range(ROUNDS):
            w = max(0.0, self._wt - self._wn * n - self._wr * r - self._ws * s) / self._ww
            n = max(0.0, self._nt - self._wn * w - self._nr * r - self._ns * s) / self._nn
            r = max(0.0, LESS * self._rt - self._wr * w - self._nr * n - self._rs * s) / self._rr
            s = max(0.0, LESS * self._st - self._ws * w - self._ns * n - self._rs * r) / self._ss
        self.by_work, self.each, self.by_row, self.by_size = w, n, r, s


#: Similar requests are looked for among as many rows as this many batches have, ...
BATCHES = 4
#: ... and, in large batches, among this number of requests: a decision must be short.
REQUESTS = 128
#: Batches before which what one takes is not known well enough.
FEWEST = 8
#: A batch grows by this part at a time, then by less.
STEPS = 8
#: Factor by which a second must be worth more for requests that came later to go first.
WORTH = 1.1
#: While sizes are not known to matter, one batch in TRIED_EACH is formed as if they did; each four
#: in vain are followed by half as many.
TRIED_EACH, TRIED_RARELY = 4, 128
#: While they matter, this share of the time is spent on batches that are formed as if they did not.
SPENT, SPENT_IN_DOUBT = 0.01, 0.1
#: Batches of which at least this part is padding show whether it costs time.
PADDED = 0.25


class RowCosts:
    """Learns whether sizes matter and what a batch takes, and chooses requests of similar size.

    `known`: the sizes are from the model's `cost()`, and matter in any case.
    """

    def __init__(self, *, known: bool = True) -> None:
        self._test = None if known else PaddingTest()
        self._seconds = PaddedSeconds()
        #: Work of a batch divided by its rows, a moving average; 1 where sizes do not matter.
        self.per_row = 1.0
        #: The size of a row whose work is 1, and the largest of a batch on average.
        self._unit = 1.0
        self._longest = 0.0
        #: Batches formed as if sizes mattered, and batches since the last of them.
        self._tried = self._untried = 0
        #: Seconds of batches since one was formed as if they did not.
        self._since = 0.0
        #: id() of a request in such a batch, which runs.
        self._checked = 0

    @property
    def matter(self) -> bool:
        """Whether requests of similar size are to share a batch."""
        return self.per_row != 1.0 if self._test is None else self._test.believed

    def explain(self) -> dict[str, Any]:
        """For people: what the sizes of rows are ("cost": what cost() returns), whether rows of
        similar size share batches, the power of the longest size with which the seconds of a batch
        grow, and how many batches were formed by size to see that."""
        test = self._test
        return {
            "sizes": "cost" if test is None else "length",
            "similar_sizes_together": self.matter,
            "seconds_grow_with_power_of_longest": None if test is None else test.power,
            "error_of_that_power": None if test is None or isinf(test.error) else test.error,
            "batches_tried_by_size": self._tried,
        }

    def learn(
        self, requests: Sequence[InferRequest], rows: float, longest: float, seconds: float
    ) -> float:
        """A batch of these requests has run, or several, each of `rows` and `seconds`, and one
        with a row of size `longest`. Return the work of each. Need not be called while `longest`
        and `per_row` are 1.0: there are no sizes."""
        test = self._test
        if test is not None:
            self._examine(test, requests, rows, longest, seconds)
            if not test.believed:
                self.per_row = 1.0
                return rows
        else:
            self._seconds.learn(rows, longest, seconds)
        size = longest / self._unit
        self.per_row += 0.1 * (size - self.per_row)
        return rows * size

    def _examine(
        self,
        test: PaddingTest,
        requests: Sequence[InferRequest],
        rows: float,
        longest: float,
        seconds: float,
    ) -> None:
        total = sum([request.rows for request in requests])
        if total != rows:
            return  # several batches: of which the longest row was one is not known
        if test.believed or test.suspected:
            self._seconds.learn(rows, longest, seconds)
            self._since += seconds
        self._longest += (0.05 if self._longest else 1.0) * (longest - self._longest)
        if total == 1:
            return
        before = test.believed
        mean = sum([request.rows * request.cost for request in requests]) / total
        if self._checked and self._checked in map(id, requests):
            self._checked = 0
            if test.doubted:
                with_mean = self._seconds.seconds(total, mean)
                test.seen(padded=seconds**2 > with_mean * self._seconds.seconds(total, longest))
        test.learn(total, mean, longest, seconds)
        if test.believed and not before:  # a row of the present size goes on counting as one
            self._unit, self.per_row, self._tried = self._longest, 1.0, 0

    def choose(self, lane: Lane, most: int, now: float) -> list[InferRequest] | None:
        """Choose the requests of the next batch, of at most `most` rows: the oldest of `lane`
        and those of similar size. None: as they come."""
        test = self._test
        grouped = self.per_row != 1.0 if test is None else test.believed
        if not grouped:
            if test is None or not self._longest or not self._tries(test, lane, most):
                return None
            most = min(most, lane.rows // 2 if lane.rows <= most else most)
        waiting = list(islice(lane.in_turn(), min(BATCHES * most, max(most, REQUESTS))))
        oldest, urgent = waiting[0], self._urgent(waiting, most, now)
        if urgent is not None:
            most -= urgent.rows
        in_order, seconds, padding = self._in_order(waiting, most)
        waiting.sort(key=_size)
        place = waiting.index(oldest, bisect_left(waiting, oldest.cost, key=_size))
        low, high, value = self._alike(waiting, place, most, fill=not grouped)
        if grouped and value < WORTH * in_order:
            if self._test is not None and padding > PADDED:
                self._test.in_order()
            return None
        if grouped and self._checks(seconds - seconds * in_order / value):
            self._checked = id(oldest)
            return None
        chosen = waiting[low : high + 1]
        if urgent is not None and urgent not in chosen:
            chosen.append(urgent)
        return chosen

    def _tries(self, test: PaddingTest, lane: Lane, most: int) -> bool:
        """Whether rows of similar size are put together although sizes are not known to matter.
        If all would go in one batch, half of them are: that costs half a batch."""
        if min(lane.rows // 2, most) < 2:
            return False
        each = TRIED_EACH if lane.rows > most else 2 * TRIED_EACH
        if not test.suspected:
            each = min(TRIED_RARELY, each << self._tried // 4)
        self._untried += 1
        if self._untried < each:
            return False
        self._untried = 0
        self._tried += 1
        return True

    def _checks(self, seconds: float) -> bool:
        """Whether a batch in order of arrival may take `seconds` more, to show what padding costs
        now."""
        if self._test is None:
            return False
        if seconds > (SPENT_IN_DOUBT if self._test.doubted else SPENT) * self._since:
            return False
        self._since = 0.0
        return True

    def _urgent(
        self, waiting: Sequence[InferRequest], most: int, now: float
    ) -> InferRequest | None:
        """The request with the nearest deadline, of those that came first, if it may be late
        should it not be in this batch; the oldest is in any case."""
        room = most - waiting[0].rows
        first = [r for r in waiting[1:most] if r.deadline is not None and r.rows <= room]
        if not first:
            return None
        nearest = min(first, key=_deadline)
        longest = max([request.cost for request in waiting])
        late = now + 2 * self._seconds.seconds(most, longest)
        return nearest if _deadline(nearest) < late else None

    def _parts(self, most: int) -> tuple[float, float, float, float, float, float]:
        """The parts of a batch's seconds (see PaddedSeconds), and what a row and a unit of its
        size are worth: what they would cost in a full batch of rows of that size."""
        model = self._seconds
        each, by_row, by_size, by_work = model.each, model.by_row, model.by_size, model.by_work
        if model.batches < FEWEST:  # half and half
            each, by_row, by_size, by_work = self.per_row, 0.0, 0.0, 1.0
        return each, by_row, by_size, by_work, each / most + by_row, by_size / most + by_work

    def _in_order(self, waiting: Sequence[InferRequest], most: int) -> tuple[float, float, float]:
        """What the first of these, as many as go in a batch, are worth for each second, how many
        seconds they take, and the share of padding."""
        each, by_row, by_size, by_work, row_worth, size_worth = self._parts(most)
        rows, work, longest = 0, 0.0, 0.0
        for request in waiting:
            more, size = request.rows, request.cost
            if rows and rows + more > most:
                break
            rows += more
            work += more * size
            if size > longest:
                longest = size
        seconds = each + by_row * rows + (by_size + by_work * rows) * longest
        worth = row_worth * rows + size_worth * work
        return worth / seconds, seconds, 1 - work / (rows * longest)

    def _alike(
        self, waiting: Sequence[InferRequest], place: int, most: int, *, fill: bool
    ) -> tuple[int, int, float]:
        """The first and the last of the requests, in order of size, that go with the one at
        `place`, and what they are worth for each second: outwards from there as long as that
        grows, or as the padding costs less than those left behind would in a batch of their own.
        `fill`: as long as there is room."""
        each, by_row, by_size, by_work, row_worth, size_worth = self._parts(most)
        sizes = [request.cost for request in waiting]
        counts = [request.rows for request in waiting]
        ends = [0, *accumulate(counts)]
        works = [0.0, *accumulate(map(mul, counts, sizes))]
        last, step = len(waiting) - 1, max(1, most // STEPS)
        low = high = place
        rows, longest = counts[place], sizes[place]
        worth = rows * (row_worth + size_worth * longest)
        seconds = each + by_row * rows + (by_size + by_work * rows) * longest
        while True:
            best, found = -1.0, None
            for first, final in ((max(0, low - step), high), (low, min(last, high + step))):
                total = ends[final + 1] - ends[first]
                if total == rows or total > most:
                    continue
                longer = each + by_row * total + (by_size + by_work * total) * sizes[final]
                more = row_worth * total + size_worth * (works[final + 1] - works[first])
                value = more / longer
                if value <= best:
                    continue
                if not fill and value * seconds <= worth:
                    saved = each * (total - rows) * (1 / (ends[-1] - rows) - 1 / most)
                    if longer - seconds > more - worth + saved:
                        continue
                best, found = value, (first, final, total, more, longer)
            if found is not None:
                low, high, rows, worth, seconds = found
            elif step > 1:
                step //= 2
            else:
                return low, high, worth / seconds


_size = attrgetter("cost")
_deadline = attrgetter("deadline")
