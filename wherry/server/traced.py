"""How does a request over HTTP, or a call over gRPC, get the span that it is followed by?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wherry.core.api import RequestTrace, SpanKind, Tracing
from wherry.server.access_log import QUIET
from wherry.server.grpc.heads import CODES
from wherry.server.grpc.rpc import Application as GrpcApplication
from wherry.server.grpc.rpc import CallMetadata, Rpc
from wherry.server.http.exchange import (
    LEFT,
    Application,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    PassedOn,
)

if TYPE_CHECKING:
    from wherry.server.grpc.call import Call

#: What differs between models in a path, and is not part of a route's name.
_NAMED: Final = re.compile(r"(?<=/models/)([^/]+)|(?<=/versions/)([^/]+)")
#: Bytes of an error's body that are searched for its text.
_MOST_ERROR_BYTES: Final = 2**16
_METHODS: Final = frozenset(
    ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE")
)


class TracedHttp:
    """Another application, with a span for each request that is traced."""

    def __init__(self, application: Application, tracing: Tracing, scheme: str = "http") -> None:
        self._application = application
        self._tracing = tracing
        self._passes_by = tracing.passes_by
        self._scheme = scheme

    def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        if self._passes_by(request.head.headers) or request.path.startswith(QUIET):
            self._application(exchange)
            return
        trace = self._tracing.begin(
            request.method if request.method in _METHODS else "HTTP",
            SpanKind.SERVER,
            request.headers,
            _attributes(request, self._scheme),
        )
        if trace is None:
            self._application(exchange)
            return
        # A head of its own: others may share this one, and what is noted in it.
        request.head = msgspec.structs.replace(request.head, notes=None, trace=trace)
        self._application(TracedExchange(exchange, trace))


class TracedExchange(PassedOn):
    __slots__ = ("_responses", "_status", "_trace")

    def __init__(self, inner: Exchange, trace: RequestTrace) -> None:
        super().__init__(inner)
        self._trace = trace
        self._status = 0
        self._responses = 0

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:  # fmt: skip
        self._inner.respond(status, body, content_type=content_type, headers=headers)
        if status >= 400 and self._trace.error is None:
            self._note_text(status, body)
        self._end(status)

    def start(
        self, status: int, *, content_type: str = "application/json", headers: Headers = ()
    ) -> None:
        self._status = status
        self._inner.start(status, content_type=content_type, headers=headers)

    def send(self, chunk: bytes) -> None:
        self._inner.send(chunk)
        if not self._responses:
            self._trace.event("first response")
        self._responses += 1

    def finish(self) -> None:
        self._inner.finish()
        self._end(self._status)

    def _left(self) -> None:
        super()._left()
        self._end(None)

    def _note_text(self, status: int, body: Body) -> None:
        """Note the text of the answer: it was refused before it became a request of a model."""
        text = _error_text(body)
        span_attributes = {"exception.message": text} if text else {}
        self._trace.event("exception", **{"exception.type": str(status), **span_attributes})
        if status >= 500:
            self._trace.draft.error = text

    def _end(self, status: int | None) -> None:
        """The answer is written; None: its client has left."""
        if self._phase is LEFT:
            return  # the model has answered after the client left
        self._phase = LEFT
        trace, request = self._trace, self.request
        draft, error = trace.draft, trace.error
        attributes = draft.attributes
        route = request.head.route
        if route is not None:
            template = attributes["http.route"] = _NAMED.sub(_placeholder, request.path)
            draft.name = f"{draft.name} {template}"
        if error is not None:
            trace.note(error)
        if status is None:
            attributes["error.type"] = "client left"
            draft.error = "the client left before the answer"
        else:
            attributes["http.response.status_code"] = status
            if status >= 500:
                attributes.setdefault("error.type", str(status))
                draft.error = draft.error or (str(error) if error is not None else "")
            elif status >= 400:
                attributes.setdefault("error.type", str(status))
            elif error is not None:  # within a stream that had begun
                draft.error = str(error)
        if self._responses:
            attributes["wherry.responses"] = self._responses
        trace.end()


def _attributes(request: HttpRequest, scheme: str) -> dict[str, Any]:
    head = request.head
    attributes: dict[str, Any] = {
        "http.request.method": head.method if head.method in _METHODS else "_OTHER",
        "url.path": head.path,
        "url.scheme": scheme,
        "http.request.body.size": head.body_bytes,
    }
    if head.method not in _METHODS:
        attributes["http.request.method_original"] = head.method
    if request.peer:
        _address(attributes, "client", request.peer)
    if agent := head.headers.get("user-agent"):
        attributes["user_agent.original"] = agent[:256]
    if host := head.headers.get("host"):
        _address(attributes, "server", host[:256])
    return attributes


def _address(attributes: dict[str, Any], whose: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and len(port) < 6:
        attributes[f"{whose}.port"] = int(port)
        address = host
    attributes[f"{whose}.address"] = address


def _placeholder(found: re.Match[str]) -> str:
    return "{model}" if found[1] is not None else "{version}"


def _error_text(body: Body) -> str:
    whole = body if isinstance(body, bytes) else b"".join(body)
    if len(whole) > _MOST_ERROR_BYTES:
        return ""
    try:
        span_attributes = msgspec.json.decode(whole)["error"]
        return str(
            span_attributes["message"] if isinstance(span_attributes, dict) else span_attributes
        )
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return ""


#: Codes for which the server is to blame, by the semantic conventions.
_SERVER_ERRORS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)


class TracedCalls:
    """A gRPC application, with a span for each traced call; `ended` is called at its end."""

    def __init__(self, application: GrpcApplication, tracing: Tracing) -> None:
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
        trace, status = call.metadata.trace, call.status
        if trace is None:
            return
        call.metadata.trace = None
        draft, error = trace.draft, trace.error
        attributes = draft.attributes
        if peer:
            attributes["client.address"] = peer
        attributes["rpc.response.status_code"] = status
        if status in CODES:
            attributes["rpc.grpc.status_code"] = CODES[status]
        if status != "OK":
            if error is not None:
                trace.note(error)
            attributes.setdefault("error.type", status)
            if status in _SERVER_ERRORS:
                draft.error = str(error) if error is not None else status
        trace.end()
