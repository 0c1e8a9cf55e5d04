"""Which models did a request call, and how long did each call take?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wherry.core.values.request import InferRequest

#: Traces kept of each pipeline: the latest.
KEPT = 8
#: Maximum number of calls in one span.
MOST_CHILDREN = 200


@dataclass(slots=True)
class Span:
    """One request of one model. Times are seconds; `started` is by the runtime's clock."""

    model: str
    rows: int
    started: float
    seconds: float = 0.0
    #: Time in the queue, included in `seconds`.
    queue_seconds: float = 0.0
    error: str = ""
    version: str = ""
    #: When it ran, by the same clock, and for how long: input, inference, output. None: in no
    #: batch of its own.
    ran_at: float | None = None
    compute_ns: tuple[int, int, int] = (0, 0, 0)
    children: list[Span] = field(default_factory=list)
    #: Number of calls beyond MOST_CHILDREN.
    left_out: int = 0
    #: Number of spans above it: calls that wait for it.
    depth: int = 0

    def call(self, request: InferRequest, model: str, version: str, now: float) -> Span:
        depth = self.depth + 1
        request.span = span = Span(model, request.rows, now, version=version, depth=depth)
        self.add(span)
        return span

    def ended(self, request: InferRequest, now: float, *, in_batch: bool) -> None:
        """Its request has its outcome. `in_batch`: it is of no pipeline or ensemble."""
        self.seconds = now - self.started
        if in_batch and request.started_at is not None:
            self.queue_seconds = max(0.0, request.started_at - request.enqueued_at)
            self.ran_at, self.compute_ns = request.started_at, request.compute_ns

    def add(self, child: Span) -> None:
        if len(self.children) < MOST_CHILDREN:
            self.children.append(child)
        else:
            self.left_out += 1

    def tree(self, origin: float | None = None) -> dict[str, Any]:
        """The trace as JSON: milliseconds, as offsets from the first span's start."""
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
        if self.children:
            shown["calls"] = [child.tree(origin) for child in self.children]
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
        self._latest: deque[Span] = deque(maxlen=KEPT)

    def ended(self, root: Span) -> None:
        self._latest.append(root)
        for span in _calls(root):
            stage = self._stages.setdefault(span.model, Stage())
            stage.calls += 1
            stage.failed += bool(span.error)
            stage.rows += span.rows
            stage.seconds += span.seconds
            stage.queue_seconds += span.queue_seconds

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
        return [span.tree() for span in reversed(list(self._latest))]


def _calls(span: Span) -> Iterator[Span]:
    for child in span.children:
        yield child
        yield from _calls(child)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
