"""How is one request of the runtime followed: through the queue, its batches, and their instances?

`InferRequest.trace` is a `FollowedRequest` if its request is traced, else None: that is the only
thing that other requests are asked. All times are those that the runtime takes anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from wherry.core.observability.otel.context import SpanDraft, SpanKind, TraceContext
from wherry.core.observability.otel.tracing import RequestTrace, Tracing
from wherry.core.values.reply import Reply
from wherry.core.values.request import Batch, InferRequest, InferResponse


class Place(Protocol):
    """The instance that runs a batch."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> object: ...
    @property
    def pid(self) -> int | None: ...


class FollowedRequest:
    """One request of the runtime, within a trace. With `own_span` it has a span around it, else it
    is its trace that ends later."""

    __slots__ = (
        "_alone", "_ended", "_lock", "_own_span", "_was_sent", "model", "runs", "trace", "version",
    )  # fmt: skip

    def __init__(
        self, trace: RequestTrace, model: str, version: str, *, own_span: bool = False
    ) -> None:
        self.trace = trace
        self.model = model
        self.version = version
        self._own_span = own_span
        self._was_sent = False
        #: If it runs in no batch: the spans of that.
        self._alone: list[SpanDraft] = []
        #: The spans of batches that have ended, until it has its outcome.
        self._ended: list[SpanDraft] = []
        #: The batches that have it, or parts of it, and have not ended.
        self.runs: dict[InferRequest, Run] = {}
        self._lock = threading.Lock()

    def follow(self, request: InferRequest) -> None:
        """From now on. Before the request is submitted."""
        request.trace = self
        attributes = self.trace.draft.attributes
        attributes["wherry.model"], attributes["wherry.version"] = self.model, self.version
        request.reply.first(lambda reply: self._settled(request, reply))

    def enters(
        self, request: InferRequest, started: float, place: Place | None = None
    ) -> TraceContext:
        """The request runs in no batch, but in steps on an instance, or by itself, as a pipeline's
        does: the span that its calls are below."""
        with self._lock:
            context = self.trace.new_context()
            self._alone = [] if place is None else [self._queued(request, started)]
            ran = self.trace.child("execute", started, started, context=context)
            ran.attributes = {"wherry.model": self.model, **({} if place is None else where(place))}
            self._alone.append(ran)
        return context

    def context_of(self, request: InferRequest) -> TraceContext:
        run = self.runs.get(request)
        return self.trace.context if run is None else run.context

    def sent(self) -> dict[str, str]:
        """The request goes to another process: what that is told of the trace."""
        self._was_sent = True
        return self.trace.context.headers()

    def begins(self, request: InferRequest, batch: BatchTrace, started: float) -> Run:
        run = Run(request, batch, self.trace.new_context(), started)
        with self._lock:
            before = self.runs.pop(request, None)
            self.runs[request] = run
        if before is not None:  # its worker has died
            self._ran(before, started, error="the worker died")
        return run

    def ends(self, request: InferRequest, started: float, ended: float) -> None:
        with self._lock:
            run = self.runs.pop(request, None)
        if run is not None:
            run.started = started
            self._ran(run, ended)

    def _queued(self, request: InferRequest, until: float) -> SpanDraft:
        attributes: dict[str, Any] = {"wherry.model": self.model}
        return self.trace.child("queue", request.enqueued_at, until, attributes=attributes)

    def _ran(self, run: Run, ended: float, error: str | None = None) -> None:
        executed = self.trace.child(
            "execute", run.started, ended, context=run.context, attributes=run.batch.attributes()
        )
        executed.attributes["wherry.request.rows"] = run.request.rows
        executed.links = [run.batch.draft.context]
        executed.error = error
        self._ended += [self._queued(run.request, run.started), executed]

    def _settled(self, request: InferRequest, reply: Reply[InferResponse]) -> None:
        trace, outcome = self.trace, reply.outcome
        now = trace.tracing.clock()
        failed = outcome if isinstance(outcome, Exception) else None
        with self._lock:
            open_runs, self.runs = list(self.runs.values()), {}
        for run in open_runs:
            self._ran(run, now)
        if self._alone:
            self._alone[-1].ended = now
        elif not open_runs and request.started_at is None and not self._was_sent:
            self._ended.append(self._queued(request, now))  # it never ran
        parts = self._alone or self._ended
        if failed is not None and parts:
            parts[-1].error = str(failed)
            parts[-1].attributes["error.type"] = type(failed).__name__
        for part in parts:
            trace.tracing.add(part)
        self._alone = self._ended = []
        trace.settled_at = now
        if failed is not None:
            trace.error = failed
        if self._own_span:
            if failed is not None:
                trace.draft.failed(failed, now)
            trace.settled_at = None
            trace.end()


class Run:
    """One request, or a part of it, in one batch."""

    __slots__ = ("batch", "context", "request", "started")

    def __init__(
        self, request: InferRequest, batch: BatchTrace, context: TraceContext, started: float
    ) -> None:
        self.request = request
        self.batch = batch
        #: Of its span `execute`.
        self.context = context
        self.started = started


class BatchTrace:
    """A batch with traced requests. Its span is below the `execute` of the first of them, so that
    a trace holds all that its request went through; it is linked to all of them."""

    def __init__(
        self, followed: Sequence[InferRequest], batch: Batch, place: Place, started: float
    ) -> None:
        """`followed` are the requests of the batch with a trace."""
        first: FollowedRequest = followed[0].trace
        self._requests = followed
        self._tracing: Tracing = first.trace.tracing
        self._place = place
        context = first.trace.new_context()
        self.draft = SpanDraft(
            f"batch {first.model}", SpanKind.INTERNAL, context, None, started,
            attributes={
                "wherry.model": first.model,
                "wherry.version": first.version,
                "wherry.batch.rows": batch.rows,
                "wherry.batch.requests": len(batch.requests),
                "wherry.batch.reason": batch.reason,
                **self.attributes(),
            },
            events=[],
            links=[one.trace.trace.context for one in followed],
        )  # fmt: skip
        runs = [one.trace.begins(one, self, started) for one in followed]
        self.draft.parent = runs[0].context

    @property
    def context(self) -> TraceContext:
        """What the model's own spans are below of."""
        return self.draft.context

    def attributes(self) -> dict[str, Any]:
        return where(self._place)

    def ended(self, started: float, ns: int) -> None:
        ended = started + ns * 1e-9
        draft = self.draft
        draft.started, draft.ended = started, ended
        self._tracing.add(draft)
        for request in self._requests:
            request.trace.ends(request, started, ended)


def follow_in(
    tracing: Tracing, request: InferRequest, model: str, version: str, headers: Mapping[str, str]
) -> None:
    """Follow a request that another process of ours has taken, and traces, by these headers."""
    trace = tracing.begin(f"infer {model}", SpanKind.SERVER, headers, {})
    if trace is not None:
        FollowedRequest(trace, model, version, own_span=True).follow(request)


def follow_below(caller: InferRequest, request: InferRequest, model: str, version: str) -> None:
    outer: FollowedRequest = caller.trace
    trace = outer.trace.tracing.local(model, outer.context_of(caller))
    if trace is not None:
        FollowedRequest(trace, model, version, own_span=True).follow(request)


def begun(
    requests: Sequence[InferRequest], batch: Batch, place: Place, started: float
) -> BatchTrace | None:
    """The trace of a batch of which `requests` begin to run; None: none of them is traced."""
    followed = [request for request in requests if request.trace is not None]
    return BatchTrace(followed, batch, place, started) if followed else None


def where(place: Place) -> dict[str, Any]:
    batch_attributes: dict[str, Any] = {
        "wherry.instance": place.name,
        "wherry.device": str(place.device),
    }
    if place.pid is not None:
        batch_attributes["wherry.worker.pid"] = place.pid
    return batch_attributes
