"""How do the stages of a request become spans: its waits, its batches, and their instances?

It measures nothing: all times are those of the runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import msgspec

from wherry.core.observability.otel.context import SpanDraft, SpanKind, TraceContext
from wherry.core.observability.otel.tracing import RequestTrace, Tracing
from wherry.core.observability.tracing import Trace
from wherry.core.values.request import Batch, InferRequest


class Place(Protocol):
    """The instance that runs a batch."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> object: ...
    @property
    def pid(self) -> int | None: ...


class Run(msgspec.Struct, eq=False):
    """One request, or a part of it, in one batch, or, without one, on an instance or by itself."""

    request: InferRequest
    #: Of its span `execute`.
    context: TraceContext
    started: float
    place: Place | None
    batch: BatchTrace | None
    ended: float | None = None
    error: str | None = None


class FollowedRequest(Trace):
    """A request with spans below `entry`, or in `entry` if that is its own span."""

    __slots__ = ("_has_own_span", "_lock", "_was_sent", "entry", "runs")
    is_followed: ClassVar[bool] = True

    def __init__(self, entry: RequestTrace, has_own_span: bool, *about: Any) -> None:
        super().__init__(*about)
        self.entry = entry
        self._has_own_span = has_own_span
        self._was_sent = False
        self.runs: list[Run] = []
        self._lock = threading.Lock()
        attributes = entry.draft.attributes
        attributes["wherry.model"], attributes["wherry.version"] = self.model, self.version

    def context_of(self, request: InferRequest) -> TraceContext:
        run = self._open_run(request)
        return self.entry.context if run is None else run.context

    def sent(self) -> dict[str, str]:
        """The headers of the request, which goes to another process."""
        self._was_sent = True
        return self.entry.context.headers()

    def begins(
        self,
        request: InferRequest,
        started: float,
        place: Place | None = None,
        batch: BatchTrace | None = None,
    ) -> TraceContext:
        """The request runs. Returns the parent context of its calls."""
        run = Run(request, self.entry.new_context(), started, place, batch)
        with self._lock:
            if (before := self._open_run(request)) is not None:
                before.ended, before.error = started, "the worker died"
            self.runs.append(run)
        return run.context

    def ends(self, request: InferRequest, started: float, ended: float) -> None:
        if (run := self._open_run(request)) is not None:
            run.started, run.ended = started, ended

    def _open_run(self, request: InferRequest) -> Run | None:
        for run in self.runs:
            if run.request is request and run.ended is None:
                return run
        return None

    def settled(self, request: InferRequest, outcome: object, now: float) -> None:
        super().settled(request, outcome, now)
        entry = self.entry
        failed = outcome if isinstance(outcome, Exception) else None
        with self._lock:
            runs, self.runs = self.runs, []
        spans = [span for run in runs for span in self._spans(run, now)]
        if not runs and request.started_at is None and not self._was_sent:
            spans.append(self._queued(request, now))  # it never ran
        if failed is not None and spans:
            spans[-1].error = str(failed)
            spans[-1].attributes["error.type"] = self.error
        for span in spans:
            entry.tracing.add(span)
        if self._has_own_span:
            if failed is not None:
                entry.note(failed)
                entry.draft.error = str(failed)
            entry.end()
        else:
            entry.settled_at, entry.error = now, failed or entry.error

    def _spans(self, run: Run, now: float) -> list[SpanDraft]:
        executed = self.entry.child("execute", run.started, run.ended or now, context=run.context)
        executed.error = run.error
        if run.batch is None:
            executed.attributes = {"wherry.model": self.model}
        else:
            executed.attributes = {"wherry.request.rows": run.request.rows}
            executed.links = [run.batch.context]
        if run.place is None:
            return [executed]
        executed.attributes.update(where(run.place))
        return [self._queued(run.request, run.started), executed]

    def _queued(self, request: InferRequest, until: float) -> SpanDraft:
        attributes: dict[str, Any] = {"wherry.model": self.model}
        return self.entry.child("queue", request.enqueued_at, until, attributes=attributes)


class BatchTrace:
    """A batch with followed requests. Its span is below the `execute` of the first of them, so that
    the trace of that request is complete; it is linked to all of them."""

    def __init__(
        self, followed: Sequence[InferRequest], batch: Batch, place: Place, started: float
    ) -> None:
        first: FollowedRequest = followed[0].trace
        self._requests = followed
        self._tracing: Tracing = first.entry.tracing
        #: The parent context of the model's own spans.
        self.context = first.entry.new_context()
        below = [one.trace.begins(one, started, place, self) for one in followed]
        self.draft = SpanDraft(
            f"batch {first.model}", SpanKind.INTERNAL, self.context, below[0], started,
            attributes={
                "wherry.model": first.model,
                "wherry.version": first.version,
                "wherry.batch.rows": batch.rows,
                "wherry.batch.requests": len(batch.requests),
                "wherry.batch.reason": batch.reason,
                **where(place),
            },
            links=[one.trace.entry.context for one in followed],
        )  # fmt: skip

    def ended(self, started: float, ns: int) -> None:
        ended = started + ns * 1e-9
        self.draft.started, self.draft.ended = started, ended
        self._tracing.add(self.draft)
        for request in self._requests:
            request.trace.ends(request, started, ended)


def trace_request(
    request: InferRequest,
    loaded: Any,
    clock: Callable[[], float],
    entry: RequestTrace | None = None,
    *,
    has_own_span: bool = True,
    caller: Trace | None = None,
) -> Trace:
    """Note what happens to `request`, with spans if there is an `entry` for them, as a call of
    `caller`. Before it is submitted."""
    depth = 0 if caller is None else caller.depth + 1
    in_batch = not loaded.is_pipeline
    about = (loaded.name, request.rows, clock(), loaded.version, in_batch, depth)
    kind = Trace if entry is None else partial(FollowedRequest, entry, has_own_span)
    made = kind(*about)
    if caller is not None:
        caller.add(made)
    made.follow(request, clock)
    return made


def trace_below(
    caller: InferRequest, request: InferRequest, loaded: Any, clock: Callable[[], float]
) -> None:
    """Trace a call that the model of `caller` makes for it, if `caller` is traced."""
    outer: Trace | None = caller.trace
    if outer is None:
        return
    entry = None
    if isinstance(outer, FollowedRequest):
        entry = outer.entry.tracing.local(loaded.name, outer.context_of(caller))
    trace_request(request, loaded, clock, entry, caller=outer)


def begun(
    requests: Sequence[InferRequest], batch: Batch, place: Place, started: float
) -> BatchTrace | None:
    """The trace of a batch when its `requests` begin to run; None if none is followed."""
    followed = [one for one in requests if one.trace is not None and one.trace.is_followed]
    return BatchTrace(followed, batch, place, started) if followed else None


def where(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {"wherry.instance": place.name, "wherry.device": str(place.device)}
    if place.pid is not None:
        found["wherry.worker.pid"] = place.pid
    return found
