"""Which trace does a request belong to, by the propagators that OTEL_PROPAGATORS names?"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator

from wherry.observability.otel.context import TraceContext


def read_by_propagators(headers: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, as B3's, Jaeger's or others' propagators read it."""
    found = propagate.extract(headers)
    span = trace.get_current_span(found).get_span_context()
    if not span.is_valid:
        return None
    carrier: dict[str, str] = {}
    W3CBaggagePropagator().inject(carrier, found)
    return TraceContext(
        span.trace_id,
        span.span_id,
        int(span.trace_flags),
        span.trace_state.to_header() if span.trace_state else "",
        carrier.get("baggage", ""),
    )
