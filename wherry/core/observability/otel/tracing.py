"""Which requests of this process are traced, and where do their spans go?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from wherry.core.observability.otel.context import TraceContext, context_of
from wherry.core.observability.otel.drafts import SpanDraft, SpanEvent, SpanKind
from wherry.core.observability.otel.user_code import current_context

if TYPE_CHECKING:
    from wherry.core.observability.otel.sampling import TraceSampling


class Sink(Protocol):
    """Where drafts go."""

    def start(self) -> None: ...
    def flush(self) -> None: ...
    def add(self, draft: SpanDraft) -> None: ...
    def close(self, timeout: float) -> bool: ...


class Tracing:
    """Decides and collects. Any thread; nothing blocks but `close`."""

    def __init__(
        self,
        sampling: TraceSampling,
        sink: Sink,
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
        self.read = read
        self.add = sink.add
        self._sink = sink
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
        parent = self.read(headers)
        if self._draws and "traceparent" not in headers:
            own: TraceContext | None = self.sampling.root()
        else:
            own = self.sampling.child(parent, name, attributes)
        return self._begun(name, kind, own, parent, attributes, is_entry=True)

    def local(self, model: str, parent: TraceContext | None = None) -> RequestTrace | None:
        """The trace of a call that this program itself makes, below `parent` or the current span;
        None: it is not traced. In a server only a call within a span is."""
        parent = parent or current_context()
        if parent is None and (self.begins_only_entries or self._draw() >= self._ratio):
            return None
        name, attributes = f"infer {model}", dict[str, Any]()
        if parent is None and self.sampling.is_usual:
            own: TraceContext | None = self.sampling.root()
        else:
            own = self.sampling.child(parent, name, attributes)
        return self._begun(name, SpanKind.INTERNAL, own, parent, attributes, is_entry=False)

    def _begun(
        self,
        name: str,
        kind: SpanKind,
        own: TraceContext | None,
        parent: TraceContext | None,
        attributes: dict[str, Any],
        *,
        is_entry: bool,
    ) -> RequestTrace | None:
        if own is None:
            return None
        now = self.clock()
        draft = SpanDraft(name, kind, own, parent, now, 0.0, attributes, [], [], is_entry)
        return RequestTrace(self, draft)

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
        """Note what a request ended with; whether this span has failed, its protocol says."""
        kind = type(error).__name__
        self.draft.attributes["error.type"] = kind
        attributes_of_error = {"exception.type": kind, "exception.message": str(error)}
        self.draft.events.append(
            SpanEvent("exception", self.settled_at or self.tracing.clock(), attributes_of_error)
        )

    def end(self) -> None:
        """The answer has left, or will never."""
        now = self.tracing.clock()
        if self.settled_at is not None:
            self.tracing.add(self.child("encode", self.settled_at, now))
        self.draft.ended = now
        self.tracing.add(self.draft)
