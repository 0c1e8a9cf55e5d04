"""Which trace does something belong to, as the W3C's headers say it?

A context that is not what the standard says is none: no request is refused for it, and nothing is
logged. https://www.w3.org/TR/trace-context/ and https://www.w3.org/TR/baggage/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

#: The version in front may be a later one, with more behind what is known.
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
    """One span, as others refer to it, with what travels beside it."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED
    #: The headers `tracestate` and `baggage` as they came; "": none that may be passed on.
    state: str = ""
    baggage: str = ""

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def headers(self) -> dict[str, str]:
        """What the next process is told."""
        carrier = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"}
        if self.state:
            carrier["tracestate"] = self.state
        if self.baggage:
            carrier["baggage"] = self.baggage
        return carrier

    def of_span(self, span_id: int) -> TraceContext:
        """Another span of the same trace."""
        return TraceContext(self.trace_id, span_id, self.flags, self.state, self.baggage)


def context_of(headers: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, whose names are in lower case; None: none that is right."""
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
    """The header `tracestate` if it is right, else "": one wrong member spoils all."""
    if not state or len(state) > _MOST_STATE or state.count(",") >= _MOST_MEMBERS:
        return ""
    members = state.split(",")
    keys = [member.partition("=")[0].strip() for member in members if member.strip()]
    if len(set(keys)) < len(keys) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    return state


def _checked(baggage: str) -> str:
    return baggage if len(baggage) <= _MOST_BAGGAGE and _BAGGAGE.fullmatch(baggage) else ""
