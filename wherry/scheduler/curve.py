"""How long does a batch of so many rows take? Learnt while running."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import ceil
from typing import NamedTuple

#: Sizes are kept exactly up to here, then in steps of an eighth of an octave.
EXACT_SIZES = 64
#: Batches after which a size that was not among them is forgotten. What it cost once may have been
#: an accident, and the policy runs no size that looks bad.
FORGOTTEN_AFTER = 512
#: Batches from one look for such sizes to the next.
LOOKED_FOR_EACH = 16


class KnownSize(NamedTuple):
    """What is known of one batch size."""

    rows: int
    seconds: float
    #: Standard error of the seconds.
    error: float
    #: Batches since it was run last.
    age: int


class BatchCurve:
    """Seconds by batch size: a moving average of each size seen, straight lines between them.

    Never decreasing. Beyond the largest size seen the slope of the last stretch goes on; below
    the smallest the time is the smallest's. Time comes in as an argument; pure.
    """

    def __init__(self, *, memory: float = 0.1) -> None:
        self.memory = memory
        # From the mean deviation of one batch: of a normal one, 1.25 times as much, and of a mean
        # with this memory only a part.
        self._error_part = 1.25 * (memory / (2 - memory)) ** 0.5
        self._sizes: list[int] = []
        self._seconds: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        #: All batches so far, and how many there had been when each size was run last.
        self._batches = 0
        self._last_run: dict[int, int] = {}
        #: By how much of itself the mean of a size is likely to be wrong (a standard error).
        self.error = 0.0
        #: The values, made non-decreasing: what `seconds` reads.
        self._smooth: list[float] = []
        self._stale = False
        #: Decayed sums for a straight line through all batches.
        self._line = (0.0, 0.0, 0.0, 0.0, 0.0)

    def learn(self, rows: int, seconds: float) -> float | None:
        """Returns the mean of this size until now; None: it is the first."""
        size = rows if rows <= EXACT_SIZES else _bucket(rows)
        self._batches += 1
        self._last_run[size] = self._batches
        known = self._seconds.get(size)
        seen = self._seen[size] = self._seen.get(size, 0) + 1
        if known is None:
            insort(self._sizes, size)
            mean = seconds
        else:
            mean = known + max(self.memory, 1 / seen) * (seconds - known)
            self.error += 0.05 * (self._error_part * abs(seconds / known - 1) - self.error)
        self._seconds[size] = mean
        # The noise is in proportion: to the average, or one lucky batch would rule the line.
        weight = mean**-2
        n, x, y, xx, xy = self._line
        self._line = (
            0.998 * n + weight,
            0.998 * x + weight * rows,
            0.998 * y + weight * seconds,
            0.998 * xx + weight * rows * rows,
            0.998 * xy + weight * rows * seconds,
        )
        self._stale = True
        if self._batches % LOOKED_FOR_EACH == 0:
            self._forget(self._batches - FORGOTTEN_AFTER)
        return known

    def _forget(self, before: int) -> None:
        """Drop the sizes last run in batch `before` or earlier; the latest one always stays."""
        if min(self._last_run.values()) > before:
            return
        for size in [size for size, batch in self._last_run.items() if batch <= before]:
            self._sizes.remove(size)
            del self._seconds[size], self._seen[size], self._last_run[size]

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def seconds(self, rows: float) -> float:
        """The expected time of a batch of `rows` (a mean may be fractional; 0 rows: no batch)."""
        if self._stale:
            self._smoothen()
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
        return smooth[-1] + self._last_slope() * (rows - sizes[-1])

    def hoped(self, rows: int) -> float:
        """The least it may take: a size that was never tried, as long as a smaller one that is
        more than half as large. So it is tried, and then known."""
        if self._stale:
            self._smoothen()
        i = bisect_right(self._sizes, rows) - 1
        if i >= 0 and 2 * self._sizes[i] > rows:
            return self._smooth[i]
        return self.seconds(rows)

    def fixed(self) -> float | None:
        """Seconds that a batch costs whatever its size: where a straight line starts.

        None while only one size is known.
        """
        n, x, y, xx, xy = self._line
        spread = n * xx - x * x
        if spread <= 1e-3 * x * x:
            return None
        return max(0.0, (y * xx - x * xy) / spread)

    def slope(self) -> float | None:
        """Seconds that each row costs, by the same line."""
        n, x, y, xx, xy = self._line
        spread = n * xx - x * x
        if spread <= 1e-3 * x * x:
            return None
        return max(0.0, (n * xy - x * y) / spread)

    def points(self) -> list[KnownSize]:
        """What was learnt of each size."""
        self._smoothen()
        settled = self.memory / (2 - self.memory)  # the part of a batch's variance in its mean
        return [
            KnownSize(
                rows,
                seconds,
                seconds * self.error * max(1.0, 1 / self._seen[rows] / settled) ** 0.5,
                self._batches - self._last_run[rows],
            )
            for rows, seconds in zip(self._sizes, self._smooth, strict=True)
        ]

    def _smoothen(self) -> None:
        """What decreases is noise: such neighbours share their mean (pool adjacent violators)."""
        self._stale = False
        self._smooth = [self._seconds[size] for size in self._sizes]
        if self._smooth == sorted(self._smooth):
            return
        pools: list[tuple[float, int]] = []
        for size in self._sizes:
            mean, count = self._seconds[size], 1
            while pools and pools[-1][0] > mean:
                others, many = pools.pop()
                mean = (mean * count + others * many) / (count + many)
                count += many
            pools.append((mean, count))
        self._smooth = [mean for mean, count in pools for _ in range(count)]

    def _last_slope(self) -> float:
        """Seconds a row beyond the largest size, from sizes far enough apart for the noise.

        With one size only it is 0: larger ones look cheap, are tried, and the truth is learnt.
        """
        top = self._sizes[-1]
        i = bisect_right(self._sizes, top * 2 / 3) - 1
        if i < 0:
            return 0.0
        return (self._smooth[-1] - self._smooth[i]) / (top - self._sizes[i])


def _bucket(rows: int) -> int:
    """Rounded up: devices that work in steps have their ends there."""
    step = 1 << ((rows - 1).bit_length() - 4)
    return ceil(rows / step) * step
