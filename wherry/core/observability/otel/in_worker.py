"""Where do the spans go that a model's own code makes in a worker process?

To the provider that its code has set; else to one of the variables that the server has, too, which
is made once that code has loaded OpenTelemetry. A model without spans pays for none of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from wherry.core.observability.otel.providers import (
    exporters_of,
    own_provider,
    provider_of,
    shut_down,
    start,
)
from wherry.core.observability.otel.user_code import current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

#: Seconds to send what waits, at the end.
FLUSH: Final = 3.0


class WorkerSpans:
    """The spans of one worker process. For its main thread."""

    def __init__(self) -> None:
        #: The provider that was made here.
        self._provider: TracerProvider | None = None
        self._is_set_up = False

    def set_up(self) -> None:
        """Make the provider, if it is wanted and there is none."""
        if self._is_set_up or "opentelemetry.trace" not in sys.modules:
            return
        self._is_set_up = True
        names = exporters_of("traces", os.environ)
        if not names or own_provider() is not None:
            return
        from opentelemetry import context, trace

        from wherry.core.observability.otel.context import TraceContext
        from wherry.core.observability.otel.spans import context_with

        self._provider = provider_of(names)
        start(self._provider, names)
        trace.set_tracer_provider(self._provider)
        # A batch that is not traced has no spans: without this each would begin a trace of its own.
        context.attach(context_with(TraceContext(1, 1, flags=0), is_remote=True))

    def run(self, headers: Mapping[str, str], call: Callable[..., None], *arguments: Any) -> None:
        """Call, with the span of these headers as the current one."""
        self.set_up()
        if not self._is_set_up:
            call(*arguments)
            return
        with current(headers):
            call(*arguments)

    def close(self) -> None:
        """Send what waits. Blocks for FLUSH seconds at most."""
        if self._provider is not None:
            shut_down(self._provider, FLUSH)
