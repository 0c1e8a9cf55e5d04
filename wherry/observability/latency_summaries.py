"""How long did the requests of the last minute take, by quantile?

For Triton's metrics `nv_inference_..._summary_us` and `nv_cache_..._summary_per_model`, which a
server keeps if it is asked to. A value counts in one of its logarithm's steps: a quantile is right
to within 1 % of itself.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

#: What a request's duration has parts of.
PARTS: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")
#: How long the response cache took.
LOOKUPS: Final = ("cache_hit", "cache_miss")

_NAMES: Final = (*PARTS, *LOOKUPS)

#: Triton's window: a minute, which moves on in five steps.
WINDOW_SECONDS: Final = 60.0
_SLICES: Final = 5
_SLICE_SECONDS: Final = WINDOW_SECONDS / _SLICES
#: Steps of the natural logarithm of a value.
_STEPS: Final = 50.0


class LatencySummaries:
    """The durations of one model's requests within the last minute. Safe from any thread."""

    __slots__ = ("_clock", "_lock", "_slices")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: When each slice began, and the counts of each part in it, and of each kind of lookup.
        self._slices: deque[tuple[float, tuple[Counter[int], ...]]] = deque()

    def add(self, *nanoseconds: float) -> None:
        """Count one request: the durations of its PARTS, or of the first of them."""
        with self._lock:
            for counts, ns in zip(self._slice(), nanoseconds, strict=False):
                counts[_step(ns)] += 1

    def looked_up(self, nanoseconds: float, *, hit: bool) -> None:
        """Count one lookup in the response cache."""
        with self._lock:
            self._slice()[_NAMES.index("cache_hit" if hit else "cache_miss")][
                _step(nanoseconds)
            ] += 1

    def quantiles(self, part: str, shares: Sequence[float]) -> list[float]:
        """The part's quantiles in microseconds; NaN if no request came in the last minute."""
        index = _NAMES.index(part)
        counts: Counter[int] = Counter()
        with self._lock:
            self._forget(self._clock())
            for _, slice_counts in self._slices:
                counts.update(slice_counts[index])
        return [_quantile(counts, share) for share in shares]

    def _slice(self) -> tuple[Counter[int], ...]:
        """The counts of now. Under the lock."""
        now = self._clock()
        if not self._slices or now - self._slices[-1][0] >= _SLICE_SECONDS:
            self._forget(now)
            self._slices.append((now, tuple(Counter() for _ in _NAMES)))
        return self._slices[-1][1]

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0][0] >= WINDOW_SECONDS:
            self._slices.popleft()


def _step(ns: float) -> int:
    return int(math.log(max(1.0, ns)) * _STEPS)


def _quantile(counts: Counter[int], share: float) -> float:
    rank = max(1, math.ceil(share * counts.total()))
    below = 0
    for step in sorted(counts):
        below += counts[step]
        if below >= rank:
            return 0.0 if step == 0 else math.exp((step + 0.5) / _STEPS) / 1000
    return math.nan
