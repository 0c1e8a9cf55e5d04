"""What receives the spans of a test, over real OTLP?

A collector of a few lines, built from opentelemetry-proto: over HTTP, and over gRPC.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.fakes import until


class Span:
    """One span that has arrived."""

    def __init__(self, span: Any, scope: str, resource: dict[str, Any]) -> None:
        self.raw = span
        self.name: str = span.name
        self.scope = scope
        self.resource = resource
        self.trace: str = span.trace_id.hex()
        self.id: str = span.span_id.hex()
        self.parent: str = span.parent_span_id.hex()
        self.attributes = attributes_of(span.attributes)
        self.events = [(event.name, attributes_of(event.attributes)) for event in span.events]
        self.links = [link.span_id.hex() for link in span.links]
        self.has_failed = span.status.code == 2
        self.message: str = span.status.message
        self.started: int = span.start_time_unix_nano
        self.ended: int = span.end_time_unix_nano

    def __repr__(self) -> str:
        return f"<{self.name} {self.id[:6]} below {self.parent[:6]}: {self.attributes}>"


class Collector:
    """What has arrived so far. Any thread."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0
        #: What is done with a request instead of a good answer.
        self.misbehaves: Callable[[BaseHTTPRequestHandler], None] | None = None

    def take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            about = attributes_of(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [Span(one, scope.scope.name, about) for one in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        """The only span of this name, once it has arrived."""
        until(lambda: bool(self.named(name)))
        (span,) = self.named(name)
        return span

    def below(self, span: Span) -> list[Span]:
        return [one for one in self.spans if one.parent == span.id]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector for OTLP over HTTP."""
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collected.requests += 1
            if collected.misbehaves is not None:
                collected.misbehaves(self)
                return
            body = self.rfile.read(int(self.headers["content-length"]))
            collected.headers.append({name.lower(): text for name, text in self.headers.items()})
            assert self.path == "/v1/traces"
            collected.take_spans(ExportTraceServiceRequest.FromString(body))
            said = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    collected.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=lambda: server.serve_forever(0.01))
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """A collector for OTLP over gRPC."""
    collected = Collector()

    class Traces(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            collected.take_spans(request)
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Traces(), server)
    collected.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collected
    finally:
        server.stop(None).wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def attributes_of(given: Sequence[Any]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in given}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
