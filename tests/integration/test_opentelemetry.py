"""Is one request followed from its client through queue, batch and worker, over real OTLP?"""

from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.otlp import Collector, Span, collector
from wherry.testing.servers import ServerProcess

pytestmark = pytest.mark.slow

APP = """
import os

import wherry
from opentelemetry import trace

tracer = trace.get_tracer("mine")

@wherry.model(max_batch_size=8)
def upper(text: list[str]) -> list[str]:
    with tracer.start_as_current_span("inside") as span:
        span.set_attribute("pid", os.getpid())
        return [one.upper() for one in text]
"""
BODY = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}


def serving(folder: Path, collected: Collector, *arguments: str, **variables: str) -> ServerProcess:
    (folder / "app.py").write_text(APP)
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url, "OTEL_SERVICE_NAME": "greeter"}
    env = {**told, **variables}
    return ServerProcess("app.py", *arguments, cwd=str(folder), env=env)


def client_span() -> tuple[dict[str, str], str, str]:
    """The headers of a foreign client, and the ids of its trace and span."""
    with TracerProvider().get_tracer("client").start_as_current_span("client") as span:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        context = span.get_span_context()
    return headers, f"{context.trace_id:032x}", f"{context.span_id:016x}"


def test_a_request_over_http_is_followed_into_the_worker(tmp_path: Path) -> None:
    headers, trace, parent = client_span()
    with collector() as collected:
        with serving(tmp_path, collected) as server:
            answer = httpx.post(f"{server.url}/v2/models/upper/infer", json=BODY, headers=headers)
            assert answer.json()["outputs"][0]["data"] == ["A"]
        assert server.process.returncode == 0
        request = collected.one("POST /v2/models/{model}/infer")
        assert (request.trace, request.parent) == (trace, parent)
        assert request.resource["service.name"] == "greeter"
        assert request.attributes["http.response.status_code"] == 200
        assert request.attributes["wherry.model"] == "upper"
        below = {span.name: span for span in collected.below(request)}
        assert sorted(below) == ["encode", "execute", "queue"]
        batch = collected.one("batch upper")
        assert below["execute"].links == [batch.id]
        assert batch.links == [request.id]
        assert batch.parent == below["execute"].id
        assert batch.attributes["wherry.batch.rows"] == 1
        inside = collected.one("inside")
        assert (inside.trace, inside.parent) == (trace, batch.id)
        assert inside.attributes["pid"] == batch.attributes["wherry.worker.pid"]
        in_order(request, below["queue"], below["execute"], below["encode"])
        in_order(batch, inside)


def in_order(around: Span, *within: Span) -> None:
    """One after the other, and all within the first."""
    moments = [around.started]
    for span in within:
        moments += [span.started, span.ended]
    moments.append(around.ended)
    assert moments == sorted(moments)
