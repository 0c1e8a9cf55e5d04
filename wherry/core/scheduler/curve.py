"""How long does a batch take, by its rows, and how well is that known? Learnt while running."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from typing import NamedTuple

#: Sizes are kept exactly up to here, then in steps of an eighth of an octave.
EXACT_SIZES = 64
#: Weight of the newest batch in the mean of its size, and the batches that mean is worth at most.
MEMORY, MOST_WORTH = 0.1, 19
#: Batches after which the mean of a size that was not among them counts half against others, ...
HALVED_AFTER = 32
#: ... and those after which it is forgotten. What it cost once may have been
#: an accident, and the policy runs no size that looks bad.
FORGOTTEN_AFTER = 512
#: After IN_A_ROW batches, each CHANGED times slower than its size was (or two that much faster),
#: the device has changed.
IN_A_ROW, CHANGED = 3, 1.5
#: Batches that the curve is used for, once it is settled, before it is made from the means again.
RENEWED_EACH = 16
#: The standard deviation of a normal variable in mean deviations.
DEVIATIONS = 1.25


class KnownSize(NamedTuple):
    rows: int
    seconds: float
    error: float
    age: int


class _Size:
    __slots__ = ("batches", "early", "last", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.batches = self.last = self.early = 0

    @property
    def worth(self) -> int:
        return min(MOST_WORTH, self.batches)


class BatchCurve:
    """Seconds by batch size: a mean of each size run lately, drawn towards a straight line as far
    as that explains all of them, never decreasing. Between sizes and beyond them straight lines.

    The drawing is an empirical Bayes estimate: the line is worth as many batches as the noise of
    one is larger than the variance of the sizes about the line. Pure.
    """

    def __init__(self) -> None:
        self.batches = 0
        #: Mean deviation of a batch from what was expected, as a share of that.
        self.noise = 0.0
        #: Sizes that give more rows a second than any smaller one, and their seconds.
        self.efficient: list[tuple[int, float]] = []
        #: The largest size that was run more than once.
        self.surely_known = 0
        self._known: dict[int, _Size] = {}
        #: The known sizes in order, and what `seconds` reads of them.
        self._sizes: list[int] = []
        self._smooth: list[float] = []
        self._fixed = self._slope = 0.0
        self._renewed_at = 0
        #: The latest batches as multiples of what their sizes took before.
        self._ratios: deque[float] = deque(maxlen=IN_A_ROW)

    def learn(self, rows: int, seconds: float) -> float | None:
        """Count a batch. Return the seconds that were expected, if they were known."""
        expected = None
        if sizes := self._sizes:
            expected = self._smooth[0] if rows <= sizes[0] else self.seconds(rows)
        self.batches += 1
        rows = rows if rows <= EXACT_SIZES else _bucket(rows)
        size = self._known.get(rows)
        usual = seconds
        if expected:
            off, weight = abs(seconds / expected - 1), 1 / self.batches
            off = off if off < 1 else 1.0
            self.noise += (weight if weight > 0.02 else 0.02) * (off - self.noise)
            most = 2 * (expected if size is None else size.seconds)
            if seconds > most and self.batches > 8:  # a stall, or something was compiled
                usual = most
        if size is None:
            insort(sizes, rows)
            size = self._known[rows] = _Size(usual)
        else:
            ratio = seconds / size.seconds
            much = 1 + 4 * self.noise
            much = much if much > CHANGED else CHANGED
            self._ratios.append(ratio)
            if 1 / much <= ratio <= much:
                size.early = 0
            elif self._has_changed(much):
                size.last = self.batches
                self._forget(self.batches - 1)
                usual, size.batches = seconds, 0
            elif ratio > much:
                size.early = 0
            else:  # a batch may be late by accident, but hardly twice early
                size.early += 1
                if size.early > 1 or size.batches == 1:
                    size.batches = 0
        size.batches += 1
        weight = 1 / size.batches
        size.seconds += (weight if weight > MEMORY else MEMORY) * (usual - size.seconds)
        size.last = self.batches
        since, young = self.batches - self._renewed_at, size.batches in (1, 2, 4, 8)
        if young or since >= RENEWED_EACH or since > self.batches // 4:
            self._renew()
        return expected

    def seconds(self, rows: float) -> float:
        """The expected time of a batch of `rows` (a mean may be fractional; 0 rows: no batch)."""
        sizes, smooth = self._sizes, self._smooth
        if rows < 1:
            return rows * smooth[0]
        i = bisect_left(sizes, rows)
        if i == 0:
            return smooth[0]
        if i < len(sizes):
            low, high = sizes[i - 1], sizes[i]
            part = (rows - low) / (high - low)
            return smooth[i - 1] + part * (smooth[i] - smooth[i - 1])
        return smooth[-1] + self._slope * (rows - sizes[-1])

    def fixed(self) -> float | None:
        """Seconds that a batch costs whatever its size: where the straight line starts.

        None while only one size is known.
        """
        return self._fixed if len(self._sizes) > 1 else None

    def slope(self) -> float | None:
        return self._slope if len(self._sizes) > 1 else None

    def points(self) -> list[KnownSize]:
        deviation = DEVIATIONS * self.noise
        known = self._known
        return [
            KnownSize(
                rows,
                seconds,
                seconds * deviation / known[rows].worth ** 0.5,
                self.batches - known[rows].last,
            )
            for rows, seconds in zip(self._sizes, self._smooth, strict=True)
        ]

    def _has_changed(self, much: float) -> bool:
        """Whether the device has become slower or faster, after a batch that was either."""
        latest = self._ratios
        faster = len(latest) > 1 and max(latest[-2], latest[-1]) < 1 / much
        return faster or (len(latest) == IN_A_ROW and min(latest) > much)

    def _forget(self, before: int) -> None:
        """Drop the sizes last run in batch `before` or earlier; the latest one always stays."""
        latest = max([size.last for size in self._known.values()])
        for rows in self._sizes:
            if self._known[rows].last <= before and self._known[rows].last < latest:
                del self._known[rows]
        self._sizes = sorted(self._known)
        self._ratios.clear()

    def _renew(self) -> None:
        self._renewed_at = self.batches
        before, known = self.batches - FORGOTTEN_AFTER, self._known
        if min([size.last for size in known.values()]) <= before:
            self._forget(before)
        self._fit_line()
        # What decreases is noise, or old: such neighbours share their mean (pool adjacent
        # violators), in which the older one counts less.
        pools: list[tuple[float, float, int]] = []
        for rows, mean in zip(self._sizes, self._drawn(), strict=True):
            age, many = self.batches - known[rows].last, 1
            worth = known[rows].worth * 0.5 ** (age / HALVED_AFTER)
            while pools and pools[-1][0] > mean:
                others, more, sizes = pools.pop()
                mean = (mean * worth + others * more) / (worth + more)
                worth, many = worth + more, many + sizes
            pools.append((mean, worth, many))
        self._smooth = [mean for mean, _, many in pools for _ in range(many)]
        sure = [rows for rows, size in known.items() if size.batches > 1]
        self.surely_known = max(sure, default=0)
        self.efficient, rate = [], 0.0
        for rows, seconds in zip(self._sizes, self._smooth, strict=True):
            if rows / seconds > rate:
                rate = rows / seconds
                self.efficient.append((rows, seconds))

    def _fit_line(self) -> None:
        n = x = y = xx = xy = 0.0
        for rows, size in self._known.items():
            # The noise is in proportion: to the average, or one lucky batch would rule the line.
            weight = size.worth / size.seconds**2
            n += weight
            x += weight * rows
            y += weight * size.seconds
            xx += weight * rows * rows
            xy += weight * rows * size.seconds
        spread = n * xx - x * x
        slope = max(0.0, (n * xy - x * y) / spread) if spread > 1e-3 * x * x else 0.0
        fixed = (y - slope * x) / n
        self._fixed, self._slope = (fixed, slope) if fixed >= 0 else (0.0, xy / xx)

    def _drawn(self) -> list[float]:
        """The mean of each size, drawn towards the line."""
        known = [self._known[rows] for rows in self._sizes]
        line = [self._fixed + self._slope * rows for rows in self._sizes]
        noise = max(1e-4, (DEVIATIONS * self.noise) ** 2)
        both = list(zip(known, line, strict=True))
        beyond = sum([(size.seconds / at - 1) ** 2 - noise / size.worth for size, at in both])
        worth = min(64.0, noise * len(known) / beyond) if beyond > 0 else 64.0
        return [
            (size.worth * size.seconds + worth * at) / (size.worth + worth) for size, at in both
        ]


def _bucket(rows: int) -> int:
    """Rounded up: devices that work in steps have their ends there."""
    step = 1 << ((rows - 1).bit_length() - 4)
    return ceil(rows / step) * step
