"""Which trace do the W3C's headers name, and what is noted of a span while its request is in
flight?

A context that breaks the standard is ignored: no request is refused for it, and nothing is logged.
https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/.

A draft is a plain value: a span of the SDK costs ten times as much, and is made of it later, in
another thread. OpenTelemetry is used only where the model's own code has loaded it.
Times are seconds of the runtime's clock.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from opentelemetry.context import Context


#: A later version may have more fields behind the known ones.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
_MOST_TRACEPARENT: Final = 256
_MEMBER: Final = re.compile(
    r"[ \t]*[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~][ \t]*|[ \t]*"
)
_MOST_STATE: Final = 4096
_MOST_MEMBERS: Final = 32
_BAGGAGE: Final = re.compile(r"[\t -~]*")
_MOST_BAGGAGE: Final = 8192

SAMPLED: Final = 1


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """A reference to one span, with the headers that travel with it."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED
    #: The headers `tracestate` and `baggage` as they came; "": none to pass on.
    state: str = ""
    baggage: str = ""

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def headers(self) -> dict[str, str]:
        """The headers for the next process."""
        carrier = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"}
        if self.state:
            carrier["tracestate"] = self.state
        if self.baggage:
            carrier["baggage"] = self.baggage
        return carrier

    def of_span(self, span_id: int) -> TraceContext:
        return TraceContext(self.trace_id, span_id, self.flags, self.state, self.baggage)


def context_of(headers: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, whose names are in lower case; None: missing or invalid."""
    traceparent = headers.get("traceparent")
    if traceparent is None or len(traceparent) > _MOST_TRACEPARENT:
        return None
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if more is not None and version == "00":
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    state, baggage = headers.get("tracestate", ""), headers.get("baggage", "")
    return TraceContext(
        trace_id, span_id, int(flags, 16) & SAMPLED, _checked_state(state), _checked(baggage)
    )


def _checked_state(state: str) -> str:
    """The header `tracestate` if it is valid, else "": one invalid member invalidates it."""
    if not state or len(state) > _MOST_STATE or state.count(",") >= _MOST_MEMBERS:
        return ""
    members = state.split(",")
    keys = [member.partition("=")[0].strip() for member in members if member.strip()]
    if len(set(keys)) < len(keys) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return state


def _checked(baggage: str) -> str:
    return baggage if len(baggage) <= _MOST_BAGGAGE and _BAGGAGE.fullmatch(baggage) else ""


class SpanKind(IntEnum):
    """What a span is to the spans around it, by OpenTelemetry's names."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class SpanEvent(msgspec.Struct, gc=False):
    name: str
    at: float
    attributes: Mapping[str, Any]


class SpanDraft(msgspec.Struct, eq=False):
    """One span. `parent` may be of another process."""

    name: str
    kind: SpanKind
    context: TraceContext
    parent: TraceContext | None
    started: float
    ended: float = 0.0
    attributes: dict[str, Any] = {}
    events: list[SpanEvent] = []
    links: list[TraceContext] = []
    #: Whether the parent is of another process.
    is_entry: bool = False
    #: Why it failed; None: it did not.
    error: str | None = None


T = TypeVar("T")


def within(span: Any, call: Callable[..., T], *arguments: Any) -> T:
    """Call, with the spans that are made in there below `span.context`, if there is one."""
    if span is None or "opentelemetry.trace" not in sys.modules:
        return call(*arguments)
    with current(span.context.headers()):
        return call(*arguments)


def current_context() -> TraceContext | None:
    """The current span here, or None. OpenTelemetry must be loaded."""
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
    """The current span's headers for a request sent from here, by the propagators of this
    program; none unless it has loaded OpenTelemetry."""
    injected: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(injected)
    return injected


def enter(span: TraceContext) -> None:
    """Make this span the current one of this task, until the task ends."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import context

        context.attach(sdk_context(span.headers()))


@contextmanager
def current(headers: Mapping[str, str]) -> Iterator[None]:
    """Make the span that these headers are of the current one, and their baggage its."""
    from opentelemetry import context

    token = context.attach(sdk_context(headers))
    try:
        yield
    finally:
        context.detach(token)


def sdk_context(headers: Mapping[str, str]) -> Context:
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract(headers)
    return W3CBaggagePropagator().extract(headers, found)
