"""Which requests of this process are traced, and where do their spans go?

The SDK's own samplers decide; the usual ones are read once from their descriptions, because calling
them costs some 10 us for each request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

from wherry.core.observability.otel.context import (
    SAMPLED,
    SpanDraft,
    SpanEvent,
    SpanKind,
    TraceContext,
    context_of,
    current_context,
    sdk_context,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

    from wherry.core.observability.otel.spans import SpanSink


_USUAL: Final = re.compile(
    r"(ParentBased\{root:)?(?:AlwaysO(n|ff)Sampler|TraceIdRatioBased\{([0-9.e-]+)\})"
    r"(?(1),remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\}|)"
)


class TraceSampling:
    """The decision for each request. Any thread."""

    def __init__(self, sampler: Sampler) -> None:
        found = _USUAL.fullmatch(sampler.get_description())
        #: Whether the ratio and the parent decide; if not, the sampler is called for each request.
        self.is_usual = found is not None
        self._sampler = sampler
        self._follows_parents = found is not None and found[1] is not None
        #: The share of the requests without a parent that are traced.
        self.ratio = 1.0
        if found is not None:
            self.ratio = float(found[3] or found[2] == "n")
        # As TraceIdRatioBased: other services with this ratio decide alike about a trace.
        self._bound = round(self.ratio * 2**64)
        random = Random(SystemRandom().getrandbits(256))
        self._bits, self._below = random.getrandbits, random.randrange
        #: A number in [0, 1): a request without a parent is traced if it is below `ratio`.
        self.draw = random.random

    def root(self) -> TraceContext:
        low = self._below(self._bound) if self._bound else 0
        return TraceContext((self._bits(64) << 64 | low) or 1, self.span_id())

    def span_id(self) -> int:
        return self._bits(64) or 1

    def child(
        self, parent: TraceContext | None, name: str, attributes: dict[str, Any]
    ) -> TraceContext | None:
        """The context of a span below `parent`, which another process or the caller's program has
        begun; None: it is not traced."""
        if not self.is_usual:
            return self._decision(parent, name, attributes)
        if parent is None:
            return self.root() if self.draw() < self.ratio else None
        if self._follows_parents:
            is_traced = parent.is_sampled
        else:
            is_traced = parent.trace_id % 2**64 < self._bound
        return _sampled(parent.of_span(self.span_id()), parent.state) if is_traced else None

    def _decision(
        self, parent: TraceContext | None, name: str, attributes: dict[str, Any]
    ) -> TraceContext | None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace.sampling import Decision

        trace_id = self._bits(128) or 1 if parent is None else parent.trace_id
        parent_context = None if parent is None else sdk_context(parent.headers())
        result = self._sampler.should_sample(
            parent_context, trace_id, name, trace.SpanKind.SERVER, attributes, ()
        )
        if result.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        attributes.update(result.attributes or {})
        state = result.trace_state.to_header() if result.trace_state else ""
        own = TraceContext(trace_id, self.span_id())
        return _sampled(own if parent is None else parent.of_span(own.span_id), state)


def _sampled(context: TraceContext, state: str) -> TraceContext:
    return TraceContext(context.trace_id, context.span_id, SAMPLED, state, context.baggage)


class Tracing:
    """Decides and collects. Any thread; nothing blocks but `close`."""

    def __init__(
        self,
        sampling: TraceSampling,
        sink: SpanSink,
        clock: Callable[[], float],
        *,
        read: Callable[[Mapping[str, str]], TraceContext | None] = context_of,
        start: Callable[[], None] = lambda: None,
        end: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`read` finds the caller's context in headers. `start()` is called before the first span,
        `end(timeout)` at the end."""
        self.sampling = sampling
        self.clock = clock
        self.add = sink.add
        self._read, self._sink = read, sink
        self._start, self._end = start, end
        #: Whether traces begin where requests arrive, and not with calls of this program.
        self.begins_only_entries = False
        #: Whether a request without a traceparent has no parent, and is traced if it is drawn.
        self._draws = read is context_of and sampling.is_usual
        self._ratio, self._draw = sampling.ratio, sampling.draw

    def passes_by(self, headers: Mapping[str, str]) -> bool:
        """Whether a request is surely not traced, by one look at its headers. `begin` follows if
        it may be."""
        return self._draws and "traceparent" not in headers and self._draw() >= self._ratio

    def begin(
        self, name: str, kind: SpanKind, headers: Mapping[str, str], attributes: dict[str, Any]
    ) -> RequestTrace | None:
        """The trace of a request that has just arrived; None: it is not traced."""
        is_drawn = self._draws and "traceparent" not in headers
        return self._begun(name, kind, self._read(headers), attributes, is_drawn, is_entry=True)

    def local(self, model: str, parent: TraceContext | None = None) -> RequestTrace | None:
        """The trace of a call that this program itself makes, below `parent` or the current span;
        None: it is not traced. In a server only a call within a span is."""
        parent = parent or current_context()
        if parent is None and (self.begins_only_entries or self._draw() >= self._ratio):
            return None
        is_drawn = parent is None and self.sampling.is_usual
        return self._begun(f"infer {model}", SpanKind.INTERNAL, parent, {}, is_drawn)

    def _begun(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        attributes: dict[str, Any],
        is_drawn: bool,
        *,
        is_entry: bool = False,
    ) -> RequestTrace | None:
        if is_drawn:
            own: TraceContext | None = self.sampling.root()
        else:
            own = self.sampling.child(parent, name, attributes)
        if own is None:
            return None
        started = self.clock()
        return RequestTrace(
            self, SpanDraft(name, kind, own, parent, started, 0.0, attributes, is_entry=is_entry)
        )

    def flush(self) -> None:
        """Hand over in this thread what was collected, unless a thread does that."""
        if not self.begins_only_entries:
            self._sink.flush()

    def start(self) -> None:
        """Start the threads that send. May read files."""
        self._start()
        self._sink.start()
        self.begins_only_entries = True

    def close(self, timeout: float) -> bool:
        """Send what was collected, and end. False if that took longer than `timeout` seconds."""
        ends_at = self.clock() + timeout
        ended = self._sink.close(timeout)
        self._end(max(0.0, ends_at - self.clock()))
        return ended


class RequestTrace:
    """One span that is open, and what its children begin with. One thread at a time."""

    __slots__ = ("draft", "error", "settled_at", "tracing")

    def __init__(self, tracing: Tracing, draft: SpanDraft) -> None:
        self.tracing = tracing
        self.draft = draft
        #: When the last request of the runtime within it had its outcome; None: it had none.
        self.settled_at: float | None = None
        #: What that outcome was, if it was an error.
        self.error: Exception | None = None

    @property
    def context(self) -> TraceContext:
        return self.draft.context

    def event(self, name: str, **attributes: Any) -> None:
        self.draft.events.append(SpanEvent(name, self.tracing.clock(), attributes))

    def child(
        self,
        name: str,
        started: float,
        ended: float,
        *,
        context: TraceContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: dict[str, Any] | None = None,
    ) -> SpanDraft:
        """A span below this one; `tracing.add` takes it."""
        own = context or self.new_context()
        return SpanDraft(
            name, kind, own, self.draft.context, started, ended, attributes or {}, [], []
        )

    def new_context(self) -> TraceContext:
        """The context of a span below this one, before it ends."""
        return self.draft.context.of_span(self.tracing.sampling.span_id())

    def note(self, error: Exception) -> None:
        """Note what a request ended with; its protocol decides whether this span has failed."""
        kind = self.draft.attributes["error.type"] = type(error).__name__
        described = {"exception.type": kind, "exception.message": str(error)}
        at = self.settled_at or self.tracing.clock()
        self.draft.events.append(SpanEvent("exception", at, described))

    def end(self) -> None:
        """End the span: the answer has been sent, or never will be."""
        now = self.tracing.clock()
        if self.settled_at is not None:
            self.tracing.add(self.child("encode", self.settled_at, now))
        self.draft.ended = now
        self.tracing.add(self.draft)
