"""How does a gRPC call get the span that it is followed by?"""

from __future__ import annotations

from typing import Final

from wherry.core.api import SpanKind, Tracing
from wherry.server.grpc.call import Call
from wherry.server.grpc.rpc import Application, CallMetadata, Rpc

#: The codes whose number is not their place here are none.
_CODES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
#: Those for which the server is to blame, by the semantic conventions.
_SERVER_ERRORS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)


class TracedCalls:
    """A gRPC application, with a span for each call that is traced: `ended` is told the end."""

    def __init__(self, application: Application, tracing: Tracing) -> None:
        self._application = application
        self._tracing = tracing
        self._passes_by = tracing.passes_by
        self.methods = application.methods
        self.vital = application.vital
        self.drain = application.drain
        self.end_streams = application.end_streams

    def __call__(self, rpc: Rpc) -> None:
        if not self._passes_by(rpc.metadata) and rpc.path not in self.vital:
            service, _, method = rpc.path[1:].rpartition("/")
            trace = self._tracing.begin(
                rpc.path[1:],
                SpanKind.SERVER,
                rpc.metadata,
                {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            )
            if trace is not None:
                rpc.metadata = CallMetadata(rpc.metadata)
                rpc.metadata.trace = trace
        self._application(rpc)

    def ended(self, peer: str, call: Call) -> None:
        """End the span of a call, if it has one."""
        trace, status = call.metadata.trace, call.status
        if trace is None:
            return
        call.metadata.trace = None
        draft, error = trace.draft, trace.error
        attributes = draft.attributes
        if peer:
            attributes["client.address"] = peer
        attributes["rpc.response.status_code"] = status
        if status in _CODES:
            attributes["rpc.grpc.status_code"] = _CODES.index(status)
        if status != "OK":
            if error is not None:
                trace.note(error)
            attributes.setdefault("error.type", status)
            if status in _SERVER_ERRORS:
                draft.error = str(error) if error is not None else status
        trace.end()
