"""What happened to each request, and what does that mean: throughput, percentiles, the time line?
(Pure.)

Times are seconds of one monotonic clock, which all processes of a machine share.

Latency counts from the intended start. Warm-up is left out: latencies and errors are of requests
meant to start in the measured window, throughput counts the answers that ended in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.bench.answers import AnswerReader

#: The outcome of a request that was answered as it should be.
OK = "ok"

#: Columns of a row and their type codes. `first`: the first piece of a stream (else as `ended`);
#: `gaps`: how many of the row's inter-token times stand in `Recorder.gap_seconds`.
COLUMNS: Final[Mapping[str, str]] = {
    "intended": "d",
    "sent": "d",
    "first": "d",
    "ended": "d",
    "outcome": "H",
    "rows": "I",
    "tokens_in": "I",
    "tokens_out": "I",
    "gaps": "I",
}

_ROW: Final = Struct("=" + "".join(COLUMNS.values()))
_TIMES: Final = Struct("=4d")  # a row begins with them, its outcome follows
_OUTCOME: Final = Struct("=H")


class Recorder:
    """Rows of one thread or process, in the order in which they ended."""

    def __init__(self) -> None:
        #: One packed row after the other: a single call writes one, which the client pays for.
        self.rows = bytearray()
        self.gap_seconds = array("f")
        self.outcomes: dict[str, int] = {OK: 0}
        self.failures = 0

    def __len__(self) -> int:
        return len(self.rows) // _ROW.size

    def add(
        self,
        intended: float,
        sent: float,
        ended: float,
        outcome: str,
        rows: int,
        answer: AnswerReader | None = None,
    ) -> None:
        """Add a request that has ended. `answer`: its pieces and tokens, if they were read."""
        index = 0
        if outcome != OK:
            self.failures += 1
            index = self._index(outcome)
        if answer is None:
            self.rows += _ROW.pack(intended, sent, ended, ended, index, rows, 0, 0, 0)
            return
        first, gaps = answer.first, answer.gaps
        if first is None:
            first = ended
        if gaps:
            self.gap_seconds.extend(gaps)
        self.rows += _ROW.pack(
            intended, sent, first, ended, index, rows,
            answer.tokens_in, answer.tokens_out, len(gaps),
        )  # fmt: skip

    def _index(self, outcome: str) -> int:
        # A server may put a new text into each error: beyond 200 kinds they count as one.
        if len(self.outcomes) >= 200 and outcome not in self.outcomes:
            outcome = "other errors"
        return self.outcomes.setdefault(outcome, len(self.outcomes))

    def latencies(self, start: int, most: int) -> list[float]:
        """Latencies of the rows from `start` on, at most `most`, evenly chosen."""
        step = max(1, -(-(len(self) - start) // most))
        found = []
        for n in range(start, len(self), step):
            intended, _, _, ended = _TIMES.unpack_from(self.rows, n * _ROW.size)
            found.append(ended - intended)
        return found

    def merge(self, other: Recorder) -> None:
        rows, index = bytearray(other.rows), [self._index(name) for name in other.outcomes]
        if index != list(range(len(index))):
            for at in range(_TIMES.size, len(rows), _ROW.size):
                (theirs,) = _OUTCOME.unpack_from(rows, at)
                _OUTCOME.pack_into(rows, at, index[theirs])
        self.rows += rows
        self.gap_seconds.extend(other.gap_seconds)
        self.failures += other.failures


Floats = npt.NDArray[np.float64]

#: Maximum number of intervals of a time line; their widths, in seconds.
MOST_INTERVALS = 150
WIDTHS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)


class Spread(msgspec.Struct, kw_only=True):
    """Mean and quantiles of values, in seconds unless another unit is named."""

    count: int
    mean: float
    deviation: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


class Figures(msgspec.Struct, kw_only=True):
    #: Of the measured window.
    seconds: float
    ok: int
    failed: int
    errors: dict[str, int]
    requests_per_second: float
    rows_per_second: float
    #: Sent and received tokens, where they are known.
    tokens_in_per_second: float = 0.0
    tokens_out_per_second: float = 0.0
    latency: Spread | None = None
    #: Streams: until the first piece, between two, and tokens/s of each stream.
    first_token: Spread | None = None
    inter_token: Spread | None = None
    tokens_per_second_of_a_stream: Spread | None = None
    #: How much later than meant requests were sent.
    lateness: Spread | None = None
    #: False if there was nothing after the warm-up, so that the figures are of the warm-up.
    warmup_excluded: bool = True

    @property
    def error_share(self) -> float:
        return self.failed / max(1, self.ok + self.failed)


class Interval(msgspec.Struct, kw_only=True):
    """A piece of the time line; times in seconds from the beginning."""

    at: float
    seconds: float
    requests_per_second: float
    rows_per_second: float
    tokens_out_per_second: float
    failed: int
    #: Requests on their way at its end.
    in_flight: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    #: Of the server, where it reports them.
    queued: float | None = None
    batch_size: float | None = None
    warmup: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The measured part of a run, by the machine's monotonic clock."""

    begin: float
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        return max(1e-9, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Table:
    intended: Floats
    sent: Floats
    first: Floats
    ended: Floats
    outcome: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.uint32]
    tokens_in: npt.NDArray[np.uint32]
    tokens_out: npt.NDArray[np.uint32]
    gaps: npt.NDArray[np.uint32]
    gap_seconds: npt.NDArray[np.float32]
    outcomes: list[str]

    @classmethod
    def of(cls, recorder: Recorder) -> Table:
        """A copy: the recorder may go on."""
        rows = np.frombuffer(bytes(recorder.rows), [*COLUMNS.items()])
        columns: dict[str, Any] = {name: rows[name].copy() for name in COLUMNS}
        gaps = np.array(recorder.gap_seconds, np.float32)
        return cls(**columns, gap_seconds=gaps, outcomes=list(recorder.outcomes))


def window(
    table: Table, begin: float, ended_at: float, *, warmup: float, duration: float | None
) -> MeasuredWindow:
    """The measured part: from the end of the warm-up until the load ended, not its last answer."""
    if duration is not None and begin + duration <= ended_at:
        stop = begin + duration
    else:
        stop = float(table.ended.max()) if len(table.ended) else ended_at
    start = begin + warmup
    return MeasuredWindow(begin, start if start < stop else begin, stop)


def spread(values: npt.NDArray[Any]) -> Spread | None:
    if not len(values):
        return None
    p50, p90, p95, p99, p999 = np.percentile(values, [50, 90, 95, 99, 99.9])
    return Spread(
        count=len(values),
        mean=float(values.mean()),
        deviation=float(values.std()),
        min=float(values.min()),
        p50=float(p50),
        p90=float(p90),
        p95=float(p95),
        p99=float(p99),
        p999=float(p999),
        max=float(values.max()),
    )


def figures(table: Table, seen: MeasuredWindow, *, open_load: bool, streams: bool) -> Figures:
    ok = table.outcome == 0
    meant = (table.intended >= seen.start) & (table.intended < seen.stop)
    answered = ok & (table.ended >= seen.start) & (table.ended <= seen.stop)
    good = ok & meant
    wrong = meant & ~ok
    kinds, counts = np.unique(table.outcome[wrong], return_counts=True)
    seconds = seen.seconds
    result = Figures(
        seconds=seconds,
        ok=int(good.sum()),
        failed=int(wrong.sum()),
        errors={
            table.outcomes[kind]: int(count)
            for kind, count in sorted(zip(kinds, counts, strict=True), key=lambda kc: -kc[1])
        },
        requests_per_second=float(answered.sum() / seconds),
        rows_per_second=float(table.rows[answered].sum() / seconds),
        tokens_in_per_second=float(table.tokens_in[answered].sum() / seconds),
        tokens_out_per_second=float(table.tokens_out[answered].sum() / seconds),
        latency=spread(table.ended[good] - table.intended[good]),
        warmup_excluded=seen.start > seen.begin,
    )
    if open_load:
        result.lateness = spread(table.sent[meant] - table.intended[meant])
    if streams and result.latency is not None:
        result.first_token = spread(table.first[good] - table.intended[good])
        result.inter_token = spread(table.gap_seconds[np.repeat(good, table.gaps)])
        long_enough = good & (table.tokens_out > 1) & (table.ended > table.first)
        after_first = (table.ended - table.first)[long_enough]
        result.tokens_per_second_of_a_stream = spread(
            (table.tokens_out[long_enough] - 1) / after_first
        )
    return result


def timeline(table: Table, seen: MeasuredWindow) -> list[Interval]:
    """The run in pieces, from its beginning (warm-up included) to the end of its load."""
    length = seen.stop - seen.begin
    width = next((w for w in WIDTHS if length / w <= MOST_INTERVALS), WIDTHS[-1])
    # The last piece is longer or shorter by up to a half: a rate over a short rest means nothing.
    count = max(1, round(length / width))
    edges = seen.begin + width * np.arange(count + 1)
    edges[-1] = max(seen.stop, edges[-2] + 1e-6)
    order = np.argsort(table.ended, kind="stable")
    ended = table.ended[order]
    good = (table.outcome == 0)[order]
    latency = (table.ended - table.intended)[order]
    cuts = np.searchsorted(ended, edges)
    sent = np.sort(table.sent)
    in_flight = np.searchsorted(sent, edges) - cuts
    rows, tokens = table.rows[order], table.tokens_out[order]
    line = []
    for n in range(count):
        part = slice(cuts[n], cuts[n + 1])
        fine, seconds = good[part], float(edges[n + 1] - edges[n])
        values = latency[part][fine]
        made = Interval(
            at=float(edges[n] - seen.begin),
            seconds=seconds,
            requests_per_second=len(values) / seconds,
            rows_per_second=float(rows[part][fine].sum() / seconds),
            tokens_out_per_second=float(tokens[part][fine].sum() / seconds),
            failed=int((~fine).sum()),
            in_flight=int(in_flight[n + 1]),
            warmup=bool(edges[n] < seen.start - 1e-9),
        )
        if len(values):
            made.mean = float(values.mean())
            made.p50, made.p95, made.p99 = (float(p) for p in np.percentile(values, [50, 95, 99]))
        line.append(made)
    return line
