"""What happened to a request: when did it wait, run and end, and which models did it call?

A `Trace` is kept of requests of pipelines and their calls, of requests written to Triton's trace
files, and of those that OpenTelemetry follows (`otel.following.FollowedRequest`).
`InferRequest.trace` is None for all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse

#: Traces kept of each pipeline: the latest.
KEPT = 8
#: Maximum number of calls in one trace.
MOST_CALLS = 200


@dataclass(slots=True, eq=False)
class Trace:
    """One request of one model. Times are seconds of the runtime's clock."""

    #: Whether OpenTelemetry follows it.
    is_followed: ClassVar[bool] = False

    model: str
    rows: int
    started: float
    version: str = ""
    #: Whether it runs in batches: False for pipelines and ensembles.
    in_batch: bool = True
    #: Number of traces above it: calls that wait for it.
    depth: int = 0
    ended: float = 0.0
    #: The class of the error that it ended with.
    error: str = ""
    queued_at: float = 0.0
    #: When it ran, and for how long: input, inference, output. None: in no batch.
    ran_at: float | None = None
    compute_ns: tuple[int, int, int] = (0, 0, 0)
    calls: list[Trace] = field(default_factory=list)
    #: Number of calls beyond MOST_CALLS.
    left_out: int = 0
    #: Called in the settling thread, before the answer is delivered.
    on_end: Callable[[], None] | None = None

    #: Until it has its outcome.
    _request: InferRequest | None = None

    def follow(self, request: InferRequest, clock: Callable[[], float]) -> None:
        """Note what happens to `request`. Before it is submitted."""
        request.trace, self._request = self, request

        def settled(reply: Reply[InferResponse]) -> None:
            ended, self._request = self._request, None  # else each would live until a collection
            assert ended is not None
            self.settled(ended, reply.outcome, clock())

        request.reply.first(settled)

    def settled(self, request: InferRequest, outcome: object, now: float) -> None:
        self.end(now, outcome)
        self.queued_at = request.enqueued_at
        if self.in_batch and request.started_at is not None:
            self.ran_at, self.compute_ns = request.started_at, request.compute_ns
        if self.on_end is not None:
            self.on_end()

    def end(self, now: float, outcome: object) -> None:
        self.ended = now
        self.error = type(outcome).__name__ if isinstance(outcome, Exception) else ""

    def add(self, call: Trace) -> None:
        if len(self.calls) < MOST_CALLS:
            self.calls.append(call)
        else:
            self.left_out += 1

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.started)

    @property
    def queue_seconds(self) -> float:
        """The part of `seconds` before it ran."""
        return 0.0 if self.ran_at is None else max(0.0, self.ran_at - self.queued_at)

    def tree(self, origin: float | None = None) -> dict[str, Any]:
        """The trace as JSON: milliseconds, as offsets from the first start."""
        origin = self.started if origin is None else origin
        shown: dict[str, Any] = {
            "model": self.model,
            "rows": self.rows,
            "start_ms": _ms(self.started - origin),
            "total_ms": _ms(self.seconds),
            "queue_ms": _ms(self.queue_seconds),
        }
        if self.error:
            shown["error"] = self.error
        if self.calls:
            shown["calls"] = [call.tree(origin) for call in self.calls]
        if self.left_out:
            shown["calls_left_out"] = self.left_out
        return shown


@dataclass(slots=True)
class Stage:
    """The totals of all calls of one model by a pipeline."""

    calls: int = 0
    failed: int = 0
    rows: int = 0
    seconds: float = 0.0
    queue_seconds: float = 0.0


class CallTraces:
    """The calls of one pipeline's requests: totals by model, and the latest traces.

    Written in the pipelines' loop; other threads may read.
    """

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}
        self._latest: deque[Trace] = deque(maxlen=KEPT)

    def ended(self, root: Trace) -> None:
        self._latest.append(root)
        for call in _calls(root):
            stage = self._stages.setdefault(call.model, Stage())
            stage.calls += 1
            stage.failed += bool(call.error)
            stage.rows += call.rows
            stage.seconds += call.seconds
            stage.queue_seconds += call.queue_seconds

    def stages(self) -> list[dict[str, Any]]:
        """Each called model in the order of first calls, with means in milliseconds."""
        return [
            {
                "model": name,
                "calls": stage.calls,
                "failed": stage.failed,
                "rows": stage.rows,
                "mean_total_ms": _ms(stage.seconds / stage.calls),
                "mean_queue_ms": _ms(stage.queue_seconds / stage.calls),
            }
            for name, stage in list(self._stages.items())
        ]

    def latest(self) -> list[dict[str, Any]]:
        return [trace.tree() for trace in reversed(list(self._latest))]


def _calls(trace: Trace) -> Iterator[Trace]:
    for call in trace.calls:
        yield call
        yield from _calls(call)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
