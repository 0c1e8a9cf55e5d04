"""What is noted of a span while its request is on its way?

Plain values: what the SDK wants of a span costs ten times as much, and is made of these later, in
another thread. Times are seconds of the runtime's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from wherry.core.observability.otel.context import TraceContext


class SpanKind(Enum):
    """What a span is to the spans around it, by OpenTelemetry's names."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


class SpanEvent(msgspec.Struct, gc=False):
    """A moment within a span."""

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

    def failed(self, error: BaseException, at: float) -> None:
        """Note the error that it ended with: its class and text, never a traceback."""
        kind, text = type(error).__name__, str(error)
        self.error = text
        self.attributes["error.type"] = kind
        self.events.append(
            SpanEvent("exception", at, {"exception.type": kind, "exception.message": text})
        )
