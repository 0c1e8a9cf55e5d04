"""What does the log record of each HTTP request?"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from wherry.core.api import RequestTrace
from wherry.server.calls.terms import client_request_id
from wherry.server.http.exchange import LEFT, Exchange, PassedOn

#: Health and metrics are left out: probes would drown the rest.
QUIET: Final = ("/v2/health", "/metrics", "/health", "/livez", "/readyz", "/healthz", "/ping")

_TRACEPARENT: Final = re.compile(
    r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,64})?"
)


class AccessLog:
    """Another application, with a line in the log `wherry.access` for the end of each request."""

    def __init__(self, application: Callable[[Exchange], None]) -> None:
        self._application = application
        self._log = logging.getLogger("wherry.access")

    def __call__(self, exchange: Exchange) -> None:
        if exchange.request.path.startswith(QUIET):
            self._application(exchange)
        else:
            self._application(_LoggedExchange(exchange, self._log))


class _LoggedExchange(PassedOn):
    __slots__ = ("_log", "_started", "_status")

    def __init__(self, inner: Exchange, log: logging.Logger) -> None:
        super().__init__(inner)
        self._log = log
        self._started = time.monotonic()
        self._status = 0

    def respond(self, status: int, *args: Any, **kwargs: Any) -> None:
        self._inner.respond(status, *args, **kwargs)
        self._end(status)

    def start(self, status: int, **kwargs: Any) -> None:
        self._status = status
        self._inner.start(status, **kwargs)

    def finish(self) -> None:
        self._inner.finish()
        self._end(self._status)

    def _left(self) -> None:
        super()._left()
        self._end(499)

    def _end(self, status: int) -> None:
        if self._phase is LEFT:
            return  # the model has answered after the client left
        self._phase = LEFT
        request = self.request
        self._log.info(
            f"{request.method} {request.path}",
            extra={
                "status": status,
                "seconds": round(time.monotonic() - self._started, 6),
                "peer": request.peer,
                **({"key": request.caller} if request.caller else {}),
                **(
                    {"request_id": header} if (header := client_request_id(request.headers)) else {}
                ),
                **_trace_context(request.headers),
                **_own_span(request.head.trace),
            },
        )


def _trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """The W3C trace that a request belongs to, if its header is valid."""
    header = headers.get("traceparent", "")
    return {"traceparent": header} if _TRACEPARENT.fullmatch(header) else {}


def _own_span(trace: RequestTrace | None) -> dict[str, str]:
    """The span of this very request, if it is traced."""
    if trace is None:
        return {}
    return {
        "trace_id": f"{trace.context.trace_id:032x}",
        "span_id": f"{trace.context.span_id:016x}",
    }
