"""Which figures had the server, and each model, in each second of the last fifteen minutes?

A figure is kept as a float of four bytes, for a model only from the first second in which something
happened.
"""

from __future__ import annotations

import base64
import time
from array import array
from collections import deque
from collections.abc import Sequence
from math import nan
from typing import Any, Final

from wherry.core.api import numbers
from wherry.server.calls.client_text import encode_json

KEPT: Final = 900
#: Seconds of a model's rate that the list of all models shows.
RECENT: Final = 120
#: Seconds from one note of a model's totals to the next.
TOTALS_EVERY: Final = 60

SERVER_FIGURES: Final = (
    "requests_per_second", "failures_per_second", "requests_in_flight", "refused_per_second",
    "cpu_share", "loop_stall_seconds",
)  # fmt: skip


def _quantiles_of(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{quantile}" for quantile in numbers.QUANTILES)


#: The names are those of a model's numbers, with a dot where one is in the other.
MODEL_FIGURES: Final = (
    "requests_per_second", "rows_per_second", "failures_per_second", "responses_per_second",
    *_quantiles_of("request_seconds"), *_quantiles_of("queue_seconds"),
    "queued_requests", "running_batches", "running_rows", "resident",
)  # fmt: skip
STEP_FIGURES: Final = (
    *MODEL_FIGURES,
    "generation.tokens_per_second", "generation.prompt_tokens_per_second",
    *_quantiles_of("generation.first_response_seconds"),
    *_quantiles_of("generation.next_response_seconds"),
    "generation.running", "generation.waiting", "generation.kv_cache_usage",
    "generation.prefix_hit_share",
)  # fmt: skip
#: Zero where nothing happens, as are rates; what else there is is not known then.
_COUNTS: Final = ("queued_requests", "running_batches", "running_rows")
_COUNTERS: Final = ("requests", "rows", "failed", "responses")
#: Of a model that may sleep: whether it is on its device.
RESIDENT: Final = {"asleep": 0.0, "resting": 0.0, "waking": 1.0, "stopping": 1.0, "ready": 2.0}


def figures_of(
    window: numbers.RateWindow,
    queued: int,
    running: Sequence[tuple[str, int, float]],
    residence: str,
) -> list[float]:
    """MODEL_FIGURES at the end of a window."""
    return [
        *[window.per_second(name) for name in _COUNTERS],
        *window.quantiles("request_seconds"),
        *window.quantiles("queue_seconds"),
        queued,
        len(running),
        sum([rows for _, rows, _ in running]),
        RESIDENT.get(residence, nan),
    ]


def step_figures_of(window: numbers.RateWindow, instances: int) -> list[float]:
    """Those STEP_FIGURES that only models have which work in steps."""
    gauges, seconds = window.now.gauges, window.seconds or 1.0
    looked_up = window.gauge("prefix_cache_queries_total")
    return [
        window.gauge("generation_tokens_total") / seconds,
        window.gauge("prompt_tokens_total") / seconds,
        *window.quantiles("first_response_seconds"),
        *window.quantiles("next_response_seconds"),
        gauges.get("running", nan),
        gauges.get("waiting", nan),
        gauges.get("kv_cache_usage", nan) / max(1, instances),
        window.gauge("prefix_cache_hits_total") / looked_up if looked_up else nan,
    ]


class Timeline:
    """When each second was read, in Unix seconds: the time of every ring of a server."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.count = 0
        self._at = array("d", bytes(8 * kept))

    def add(self, at: float) -> None:
        self._at[self.count % self.kept] = at
        self.count += 1

    def since(self, first: int) -> bytes:
        """The times of the seconds from this number on, as doubles."""
        return _unrolled(self._at, first % self.kept, self.count - first).tobytes()


class Ring:
    """Some figures of each second."""

    def __init__(self, timeline: Timeline, names: Sequence[str]) -> None:
        self.names = names
        self._timeline = timeline
        #: Of a second in which nothing happens.
        self._idle = array("f", [0.0 if one in _COUNTS or "per_" in one else nan for one in names])
        self._rows: array[float] | None = None
        self._began = self._next = max(0, timeline.count - 1)

    @property
    def first(self) -> int:
        """The number of the oldest second that is kept."""
        return max(self._began, self._timeline.count - self._timeline.kept)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has ever happened."""
        return self._rows is None

    def put(self, figures: Sequence[float] | None) -> None:
        """Keep the figures of the newest second; None: nothing happens. Seconds that were left out
        since the last call were idle."""
        if self._rows is None:
            if figures is None:
                return
            self._rows = self._idle * self._timeline.kept
        newest, width = self._timeline.count - 1, len(self._idle)
        for number in range(max(self._next, self.first), newest):
            self._set(number, width, self._idle)
        self._set(newest, width, self._idle if figures is None else array("f", figures))
        self._next = newest + 1

    def _set(self, number: int, width: int, figures: array[float]) -> None:
        assert self._rows is not None
        start = number % self._timeline.kept * width
        self._rows[start : start + width] = figures

    def columns(self, most: int = KEPT, names: Sequence[str] = ()) -> dict[str, str]:
        """The last seconds of each figure, oldest first: floats of four bytes, in base64. Empty if
        nothing has ever happened."""
        if self._rows is None:
            return {}
        count, width = self._timeline.count, len(self._idle)
        first = max(self.first, count - most)
        if self._next < count:
            self.put(None)
        rows = _unrolled(self._rows, first % self._timeline.kept * width, (count - first) * width)
        return {
            name: _base64(rows[place::width].tobytes())
            for place, name in enumerate(self.names)
            if not names or name in names
        }


def _unrolled(values: array[float], start: int, count: int) -> array[float]:
    """So many values of a ring from this place on."""
    return (values[start:] + values[:start])[:count]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Totals:
    """What one model had counted by batch size and by reason, minute by minute: what was counted in
    any part of the last fifteen minutes is then known to the minute."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, bytes]] = deque(maxlen=KEPT // TOTALS_EVERY)
        self._batches = -1.0

    def note(self, at: float, now: numbers.Reading) -> None:
        """Call it each TOTALS_EVERY seconds: what has not changed is not kept again."""
        if now.totals.batches != self._batches:
            self._batches = now.totals.batches
            sizes = [(rows, count) for rows, (count, *_) in now.batch_sizes.items()]
            totals = {"batch_sizes": sizes, "cut_reasons": now.cut_reasons}
            self._kept.append((at, encode_json(totals)))

    def all(self) -> bytes:
        """As JSON: pairs of a Unix time and the counts then, oldest first."""
        return b"[%b]" % b",".join(b"[%.3f,%b]" % one for one in self._kept)


class ServerPast:
    """The figures of the server as a whole, and the time that its models' rings share."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.ring = Ring(self.timeline, SERVER_FIGURES)
        #: Whether a second has passed that is still to be kept.
        self.is_due = False
        self._before = (time.monotonic(), time.process_time(), 0)
        self._newest: dict[str, float] = {}

    def begin_second(self, at: float) -> None:
        self.is_due = False
        self.timeline.add(at)

    def keep(
        self, rates: Sequence[tuple[float, float]], in_flight: int, refused: int, stall: float
    ) -> None:
        """Keep the figures of the newest second. `rates` are those of requests and failures of each
        model, `refused` counts since the start."""
        then, cpu_then, refused_then = self._before
        now, cpu, _ = self._before = time.monotonic(), time.process_time(), refused
        seconds = now - then
        requests = sum([one for one, _ in rates])
        failures = sum([one for _, one in rates])
        refusals, share = (refused - refused_then) / seconds, (cpu - cpu_then) / seconds
        figures = (requests, failures, in_flight, refusals, share, stall)
        self._newest = dict(zip(SERVER_FIGURES, figures, strict=True))
        self.ring.put(figures)

    def newest(self, name: str) -> float:
        """The last figure of this name; 0.0 before the first second."""
        return numbers.significant(self._newest.get(name, 0.0))

    def encode(self, ring: Ring, totals: bytes, models: Any = ()) -> bytes:
        """A ring as JSON. `models` are the last rates of all models, where it is the server's."""
        return b'{"at":"%b","figures":%b,"totals":%b,"models":%b}' % (
            base64.b64encode(self.timeline.since(ring.first)),
            encode_json(ring.columns()),
            totals,
            encode_json(models),
        )
