"""How do the spans that a model's own code makes get below that of its batch?

Only where that code has loaded OpenTelemetry: nothing here imports it before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from wherry.core.observability.otel.context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.context import Context

T = TypeVar("T")


class HasContext(Protocol):
    """A span that is open."""

    @property
    def context(self) -> TraceContext: ...


def within(span: HasContext | None, call: Callable[..., T], *arguments: Any) -> T:
    """Call, and have the spans that are made in there be below this one."""
    if span is None or "opentelemetry.trace" not in sys.modules:
        return call(*arguments)
    with current(span.context.headers()):
        return call(*arguments)


def current_context() -> TraceContext | None:
    """The span that is the current one here; None: there is none. OpenTelemetry is loaded."""
    from opentelemetry import context, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator

    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    carrier: dict[str, str] = {}
    if span.trace_flags.sampled:
        W3CBaggagePropagator().inject(carrier, context.get_current())
    state = span.trace_state.to_header() if span.trace_state else ""
    flags = int(span.trace_flags)
    return TraceContext(span.trace_id, span.span_id, flags, state, carrier.get("baggage", ""))


def read_by_propagators(headers: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, as B3's, Jaeger's or others' propagators (OTEL_PROPAGATORS) read
    it."""
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(headers, context.Context()))
    try:
        return current_context()
    finally:
        context.detach(token)


def current_headers() -> dict[str, str]:
    """What a request that is sent from here says of the current span, by the propagators of this
    program; nothing unless it has loaded OpenTelemetry."""
    injected: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(injected)
    return injected


def enter(span: TraceContext) -> None:
    """Make this span the current one of this task, until the task ends."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import context

        context.attach(_context(span.headers()))


@contextmanager
def current(headers: Mapping[str, str]) -> Iterator[None]:
    """Make the span that these headers are of the current one, and their baggage its."""
    from opentelemetry import context

    token = context.attach(_context(headers))
    try:
        yield
    finally:
        context.detach(token)


def _context(headers: Mapping[str, str]) -> Context:
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract(headers)
    return W3CBaggagePropagator().extract(headers, found)
