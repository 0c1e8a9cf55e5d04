"""Which trace does a request belong to, by the propagators that OTEL_PROPAGATORS names?"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import context, propagate

from wherry.core.observability.otel.context import TraceContext
from wherry.core.observability.otel.user_code import current_context


def read_by_propagators(headers: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, as B3's, Jaeger's or others' propagators read it."""
    token = context.attach(propagate.extract(headers, context.Context()))
    try:
        return current_context()
    finally:
        context.detach(token)
