"""How do the spans that a model's own code makes get below that of its batch?

Only where that code has loaded OpenTelemetry: nothing here imports it before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from wherry.observability.otel.context import TraceContext

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


@contextmanager
def current(headers: Mapping[str, str]) -> Iterator[None]:
    """Make the span that these headers are of the current one, and their baggage its."""
    from opentelemetry import context
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract(headers)
    token = context.attach(W3CBaggagePropagator().extract(headers, found))
    try:
        yield
    finally:
        context.detach(token)
