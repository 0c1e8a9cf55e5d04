"""Which load is tried next, to find the highest one that meets a target? (Pure.)

It doubles until the target is missed, then halves the gap between the highest load that met it
and the lowest that did not, until they are close.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wherry.bench.figures import Figures


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits that a load must meet: seconds of the latency by quantile; `errors` is the share that
    may fail; `rate` are the requests/s at least, and `first_token` the seconds that 95 of 100
    streams may take to their first piece."""

    limits: dict[str, float]
    errors: float = 0.01
    rate: float = 0.0
    first_token: float | None = None

    def met(self, measured: Figures) -> bool:
        """An open load must be kept up with, too: `Search` looks after that."""
        if measured.latency is None or measured.error_share > self.errors:
            return False
        if measured.requests_per_second < self.rate or self.late_streams(measured):
            return False
        return all(getattr(measured.latency, name) <= limit for name, limit in self.limits.items())

    def late_streams(self, measured: Figures) -> bool:
        """Whether first pieces come too late, or what was measured is no streams."""
        if self.first_token is None:
            return False
        return measured.first_token is None or measured.first_token.p95 > self.first_token

    def __str__(self) -> str:
        limits = [f"{name} <= {1e3 * limit:g} ms" for name, limit in self.limits.items()]
        if self.first_token is not None:
            limits.append(f"first token p95 <= {1e3 * self.first_token:g} ms")
        if self.rate:
            limits.append(f"requests/s >= {self.rate:g}")
        return ", ".join([*limits, f"errors <= {100 * self.errors:g} %"])


@dataclass(slots=True)
class Search:
    """Ask `next()` for a load, `tell` it how that went, until there is no next.

    Callers are whole numbers; a rate is found to within `precision` of itself, if it is not below
    `least`: a run would have no request.
    """

    whole: bool
    start: float = 1.0
    least: float = 0.1
    most: float = 65536.0
    precision: float = 0.05
    _good: float | None = None
    _bad: float | None = None
    _tried: dict[float, bool] = field(default_factory=dict)

    @property
    def found(self) -> float | None:
        """The highest load that met the target, so far."""
        return self._good

    def next(self) -> float | None:
        """The next load, or None: it is found."""
        if self._good is None and self._bad is None:
            return self.start
        if self._bad is None:
            assert self._good is not None
            return min(2 * self._good, self.most) if self._good < self.most else None
        if self._good is None:
            smaller = self._between(0.0, self._bad)
            return smaller if self.least <= smaller < self._bad else None
        middle = self._between(self._good, self._bad)
        close = self._bad - self._good <= max(1.0 * self.whole, self.precision * self._bad)
        return None if close or middle in self._tried else middle

    def tell(self, load: float, met: bool) -> None:
        """Record whether `load` met the target. If a lower load fails where a higher one did not,
        the lower one counts."""
        self._tried[load] = met
        if met:
            self._good = max(load, self._good or 0.0)
        else:
            self._bad = min(load, self._bad or load)
            if self._good is not None and self._good >= self._bad:
                below = [one for one, fine in self._tried.items() if fine and one < self._bad]
                self._good = max(below, default=None)

    def _between(self, low: float, high: float) -> float:
        middle = (low + high) / 2
        return float(max(1, int(middle))) if self.whole else float(f"{middle:.3g}")
