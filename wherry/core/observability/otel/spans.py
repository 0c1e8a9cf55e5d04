"""How do drafts become the SDK's spans, without delaying requests?

A separate thread makes them and hands them to the provider's processors, some of which send at
once: no request waits for any of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.trace import Event, ReadableSpan, Tracer
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from wherry.core.observability.otel.context import SpanDraft, TraceContext

log = logging.getLogger("wherry")

#: Seconds for which drafts are collected, so that a thousand requests are one wake-up.
PAUSE: Final = 0.1
#: Maximum number of pending drafts; more are dropped, and counted.
MOST_WAITING: Final = 8192
#: Maximum number of links of one span: the SDK's default.
MOST_LINKS: Final = 128


class SpanSink:
    """Takes drafts of one process. Any thread; only `flush` and `close` block. It has a thread
    once it is started."""

    def __init__(self, tracer: Tracer, version: str, clock: Callable[[], float]) -> None:
        self._tracer = tracer
        self._scope = InstrumentationScope("wherry", version)
        self._clock = clock
        self._waiting: deque[SpanDraft] = deque()
        #: Drafts that came while too many waited.
        self.dropped = 0
        self._bell, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="wherry-otel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, draft: SpanDraft) -> None:
        waiting = self._waiting
        if len(waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        waiting.append(draft)
        if not self._bell.is_set():
            self._bell.set()

    def close(self, timeout: float) -> bool:
        """Hand over the pending drafts, and end; False if that took over `timeout` seconds."""
        self._ending.set()
        self._bell.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        else:
            self.flush()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._bell.wait()
            self._ending.wait(PAUSE)
            self._bell.clear()
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Make the spans and hand them over, in this thread."""
        # Both clocks now: the wall clock may have been set since the last time.
        wall = time.time_ns() - int(self._clock() * 1e9)
        processor = self._tracer.span_processor
        dropped, self.dropped = self.dropped, 0
        if dropped:
            log.warning("spans dropped: too many at once", extra={"spans": dropped})
        while True:
            try:
                draft = self._waiting.popleft()
            except IndexError:  # another thread may have taken the last one
                return
            try:
                processor.on_end(self._readable(draft, wall))
            except Exception:  # of a processor of the program, or our own bug
                log.exception("a span is lost")

    def _readable(self, draft: SpanDraft, wall: int) -> ReadableSpan:
        """`wall`: nanoseconds from the runtime's clock to the wall clock."""
        parent, started = draft.parent, wall + int(draft.started * 1e9)
        return ReadableSpan(
            draft.name,
            _span_context(draft.context),
            None if parent is None else _span_context(parent, is_remote=draft.is_entry),
            resource=self._tracer.resource,
            attributes=draft.attributes,
            events=[
                Event(one.name, dict(one.attributes), wall + int(one.at * 1e9))
                for one in draft.events
            ],
            links=[Link(_span_context(one)) for one in draft.links[:MOST_LINKS]],
            kind=SpanKind[draft.kind.name],
            status=_FINE if draft.error is None else Status(StatusCode.ERROR, draft.error),
            start_time=started,
            end_time=max(started, wall + int(draft.ended * 1e9)),
            instrumentation_scope=self._scope,
        )


_FINE: Final = Status(StatusCode.UNSET)


def _span_context(context: TraceContext, *, is_remote: bool = False) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(context.flags)
    return SpanContext(context.trace_id, context.span_id, is_remote, flags, state)
