"""Do the seconds of a batch follow its rows, the sum of their sizes, or the longest of them?

Learnt from the batches that have run. Pure.
"""

from __future__ import annotations

from math import inf, log

#: By how much of the difference to the latest batch the mean of its number of rows moves.
MEAN = 1 / 32
#: Batches after which evidence has lost two thirds of its weight: longer for what is hard to see,
#: shorter once it is believed, so that a change is soon noticed.
MEMORY, MEMORY_BELIEVED = 128, 64
FEWEST = 8
#: One explanation is believed rather than another if what was seen is e**SURE times as likely by
#: it; it is no longer believed if the other one is e**DOUBTFUL times as likely.
SURE, DOUBTFUL = 5.0, 4.0
#: The seconds must grow by this part of what the longest row grows by: less is not worth it.
LEAST = 0.15
#: Usual deviations that a batch counts as out by at most (a stall is out by more).
STALL = 3.0
#: After this many of these without another one between them, the model or its device has changed.
CHANGE = 3


class PaddingTest:
    """Decides whether the seconds of a batch follow its longest row.

    Compares batches of the same number of rows, so that it does not matter how the seconds grow
    with that. Their deviations from the usual seconds are explained in three ways: by noise
    alone, by the mean size of the rows, and by the longest size; each in logarithms, by one
    factor. The longest must be far more likely than both others.
    """

    def __init__(self) -> None:
        #: By number of rows: batches seen, and mean logarithms of seconds, mean and longest size.
        self._means: dict[int, tuple[int, float, float, float]] = {}
        # Decayed sums over batches: their weight, and products of deviations from these means.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        #: Seconds grow with this power of the longest size, and its standard error.
        self.power, self.error = 0.0, inf
        #: Likewise with this power of the mean size.
        self.mean_power = 0.0
        #: The deviation that the best of the explanations leaves.
        self._usual_error = inf
        #: Batches one after the other that no explanation fits.
        self._out = 0
        #: Logarithm of how much more likely the longest explains what was seen than noise does,
        #: and than the mean size does.
        self.over_noise = self.over_mean = 0.0
        self.believed = False

    @property
    def suspected(self) -> bool:
        """Whether what was seen lately speaks for the longest, but not clearly."""
        return min(self.over_noise, self.over_mean) > SURE / 3 and self.power > LEAST

    @property
    def doubted(self) -> bool:
        """Whether the mean size explains what was seen lately better, although the longest is
        believed to. While few rows are padded, that may be chance: run a batch in order."""
        return self.believed and self.over_mean < -DOUBTFUL

    def seen(self, *, padded: bool) -> None:
        """A batch in order has taken as long as its longest row would make it, or as its mean
        size would."""
        self.believed = padded
        self._forget()

    def in_order(self) -> None:
        """A batch with much padding is formed in order, as that is known to cost next to nothing.
        If what was seen lately agrees, the longest is not believed to count any more. (Without
        this, what was seen may come from batches with little padding.)"""
        if self.power + self.error < LEAST or self.doubted:
            self.believed = False

    def learn(self, rows: int, mean: float, longest: float, seconds: float) -> None:
        """A batch has run: of at least two rows, with their mean and largest size, above 0."""
        time, middle, top = log(seconds), log(mean), log(longest)
        group = _group(rows)
        count, usual_time, usual_middle, usual_top = self._means.get(group, (0, 0.0, 0.0, 0.0))
        n, tt, mm, ll, mt, lt = self._sums
        later, larger, longer = time - usual_time, middle - usual_middle, top - usual_top
        if n > FEWEST:
            usual = self._usual(later, self.mean_power * larger, self.power * longer)
            if usual is None:
                return self._forget()
            later = usual
        move = max(MEAN, 1 / (count + 1))
        self._means[group] = (
            count + 1,
            usual_time + move * later if count else time,
            usual_middle + move * larger,
            usual_top + move * longer,
        )
        if not count:
            return
        # The mean already holds a part of what deviates from it.
        weight, keep = 1 - move, 1 - 1 / (MEMORY_BELIEVED if self.believed else MEMORY)
        self._sums = (
            keep * n + weight,
            keep * tt + weight * later * later,
            keep * mm + weight * larger * larger,
            keep * ll + weight * longer * longer,
            keep * mt + weight * larger * later,
            keep * lt + weight * longer * later,
        )
        if count % 4 == 0:
            self._decide()

    def _usual(self, later: float, *expected: float) -> float | None:
        """What is out by any explanation counts as just out; None if the model has changed."""
        most = STALL * self._usual_error
        usual = max(min(0.0, *expected) - most, min(max(0.0, *expected) + most, later))
        self._out = 0 if usual == later else self._out + 1
        return usual if self._out < CHANGE else None

    def _forget(self) -> None:
        """Begin again; what is believed is believed until there is evidence against it."""
        self._means.clear()
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._out = 0
        self.power, self.error, self.mean_power = 0.0, inf, 0.0
        self.over_noise = self.over_mean = 0.0

    def _decide(self) -> None:
        n, tt, mm, ll, mt, lt = self._sums
        if n < FEWEST or ll <= 1e-6 * n or tt <= 0:
            return  # sizes that do not differ show nothing
        self.power, self.mean_power = lt / ll, mt / max(mm, 1e-9)
        least = 1e-6 * tt
        by_mean = max(least, tt - max(0.0, self.mean_power) * mt)
        by_longest = max(least, tt - max(0.0, self.power) * lt)
        self.error = (by_longest / n / ll) ** 0.5
        self._usual_error = (min(by_mean, by_longest) / n) ** 0.5
        self.over_noise = n / 2 * log(tt / by_longest)
        self.over_mean = n / 2 * log(by_mean / by_longest)
        if not self.believed and self.power > LEAST:
            self.believed = min(self.over_noise, self.over_mean) > SURE


def _group(rows: int) -> int:
    """Numbers of rows that are compared: each up to 31, then those within a 16th."""
    shift = max(0, rows.bit_length() - 5)
    return rows >> shift << shift
