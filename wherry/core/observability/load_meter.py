"""How busy is a server? (Load balancers read that, and autoscalers.)"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from wherry.core.observability.numbers import LONG_AGO, WINDOW, significant
from wherry.core.observability.statistics import ModelStatistics

#: Seconds for which one reading of the models is reused.
FRESH: Final = 0.05
#: Seconds between two readings of the counters that are kept.
STEP: Final = 0.5


class MeasuredModel(Protocol):
    """What the load of a server is read from."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def statistics(self) -> ModelStatistics: ...
    @property
    def runner(self) -> Any: ...
    def not_ready_reason(self) -> str: ...


class LoadReport(msgspec.Struct, frozen=True, array_like=True):
    """The load of all models of a server at a moment. Seconds that are not known yet are 0.0."""

    #: Share of the time of its instances that the busiest model would need with full batches; of
    #: models that work in steps, the share of their slots in use.
    utilisation: float = 0.0
    #: Requests answered and requests failed a second, without those whose callers left.
    requests_per_second: float = 0.0
    errors_per_second: float = 0.0
    #: Rows that wait, and rows that run.
    queued_rows: int = 0
    running_rows: int = 0
    #: Rows that could come now and be in the next batches.
    free_slots: int = 0
    #: Of the model with the longest: seconds until a row that comes now runs, and is answered.
    wait_seconds: float = 0.0
    answer_seconds: float = 0.0
    #: Of the slowest model: what a batch of one row takes, and a full one.
    one_seconds: float = 0.0
    full_seconds: float = 0.0
    #: Of the slowest model: the time that a row takes of all its instances, in full batches.
    row_seconds: float = 0.0
    #: Tokens that the KV caches of language models hold at most, and the share in use of the
    #: fullest.
    kv_cache_tokens: int = 0
    kv_cache_usage: float = 0.0


class Counts(NamedTuple):
    """Counters of one model: rows, requests and errors since its load."""

    rows: int = 0
    requests: int = 0
    errors: int = 0


class LoadMeter:
    """Reads the load of a server's models. For one thread."""

    def __init__(self) -> None:
        self._latest = LoadReport()
        self._read_at = -FRESH
        self._kept: deque[tuple[float, Mapping[tuple[str, str], Counts]]] = deque()

    def read(self, models: Iterable[MeasuredModel], now: float) -> LoadReport:
        """The load at `now`. Rates are those of the last WINDOW seconds, as far as it was read in
        them; without an earlier reading, or a batch that has ended, the busy share is that of what
        runs at the moment."""
        if now - self._read_at >= FRESH:
            self._read_at = now
            self._latest = self._read([one for one in models if not one.not_ready_reason()], now)
        return self._latest

    def _read(self, models: Sequence[MeasuredModel], now: float) -> LoadReport:
        counts = {(one.name, one.version): _counts(one.statistics) for one in models}
        seconds, before = self._before(now, counts)
        grown = [_grown(before.get(key, Counts()), new) for key, new in counts.items()]
        loads = [one.runner.load() for one in models]
        busy = [
            rate(more.rows, seconds) * load.row_seconds
            if seconds and load.row_seconds and not load.joins and (more.rows or not load.busy)
            else load.busy_share  # also while a batch runs for longer than the window
            for load, more in zip(loads, grown, strict=True)
        ]
        kept = [gauges for one in models for gauges in one.runner.gauges().values()]
        return LoadReport(
            utilisation=max(busy, default=0.0),
            requests_per_second=rate(sum(one.requests for one in grown), seconds),
            errors_per_second=rate(sum(one.errors for one in grown), seconds),
            queued_rows=sum(load.queued_rows for load in loads),
            running_rows=sum(load.running_rows for load in loads),
            free_slots=sum(load.free_slots for load in loads),
            wait_seconds=max((load.wait_seconds for load in loads), default=0.0),
            answer_seconds=max((load.answer_seconds() for load in loads), default=0.0),
            one_seconds=max((load.one_seconds for load in loads), default=0.0),
            full_seconds=max((load.full_seconds for load in loads), default=0.0),
            row_seconds=max((load.row_seconds for load in loads), default=0.0),
            kv_cache_tokens=round(
                sum(one.get("kv_blocks", 0.0) * one.get("kv_block_size", 0.0) for one in kept)
            ),
            kv_cache_usage=max((one.get("kv_cache_usage", 0.0) for one in kept), default=0.0),
        )

    def _before(
        self, now: float, counts: Mapping[tuple[str, str], Counts]
    ) -> tuple[float, Mapping[tuple[str, str], Counts]]:
        """Keep a reading. Return the one that is a window older, or the oldest there is, and how
        many seconds ago that was; 0.0: it is too young for a rate."""
        kept = self._kept
        while kept and kept[0][0] < now - LONG_AGO:
            kept.popleft()
        if not kept or now - kept[-1][0] >= STEP:
            kept.append((now, counts))
        while len(kept) > 2 and kept[1][0] <= now - WINDOW:
            kept.popleft()
        then, before = kept[0]
        return (now - then if now - then >= STEP else 0.0), before


def _counts(counted: ModelStatistics) -> Counts:
    with counted.lock:
        errors = counted.fail.count - counted.failures["CANCELED"]
        return Counts(counted.inference_count, counted.success.count, errors)


def _grown(before: Counts, now: Counts) -> Counts:
    """What was counted since; a model that was loaded again has begun at 0."""
    grown = Counts(*(new - old for new, old in zip(now, before, strict=True)))
    return now if min(grown) < 0 else grown


def rate(count: float, seconds: float) -> float:
    return significant(max(0.0, count) / seconds) if seconds > 0 else 0.0
