"""Is one request followed from its client through queue, batch and worker, over real OTLP?"""

import json
import os
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from tests.otlp import Collector, Span, collector, free_port, grpc_collector
from wherry.testing.servers import ServerProcess

pytestmark = pytest.mark.slow

APP = """
import json
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
PLAIN = """
import wherry

@wherry.model
def upper(text: str) -> str:
    return text.upper()
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


def test_a_call_over_grpc_is_followed_into_the_worker_and_sent_over_grpc(tmp_path: Path) -> None:
    headers, trace, parent = client_span()
    with (
        grpc_collector() as collected,
        serving(
            tmp_path, collected, "--grpc-port", str(port := free_port()),
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        ),
        InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):  # fmt: skip
        text = InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"a"], object))
        client.infer("upper", [text], headers=headers)
        with pytest.raises(InferenceServerException):
            client.infer("nothing", [text], headers=headers)
    done, failed = collected.named("inference.GRPCInferenceService/ModelInfer")
    assert (done.trace, done.parent, done.raw.kind) == (trace, parent, 2)
    assert done.attributes["rpc.grpc.status_code"] == 0
    assert {span.name for span in collected.below(done)} == {"encode", "execute", "queue"}
    batch, inside = collected.one("batch upper"), collected.one("inside")
    assert (inside.trace, inside.parent) == (trace, batch.id)
    assert failed.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert failed.attributes["error.type"] == "NOT_FOUND"
    assert not failed.has_failed  # its client has asked for what is not there


def test_a_request_is_followed_from_a_front_to_the_owner_of_its_model(tmp_path: Path) -> None:
    headers, trace, parent = client_span()
    with collector() as collected:
        with serving(tmp_path, collected, "--fronts", "1") as server:
            httpx.post(f"{server.url}/v2/models/upper/infer", json=BODY, headers=headers)
        request = collected.one("POST /v2/models/{model}/infer")
        assert (request.trace, request.parent) == (trace, parent)
        owned = collected.one("infer upper")
        assert (owned.trace, owned.parent) == (trace, request.id)
        assert sorted(span.name for span in collected.below(owned)) == ["execute", "queue"]
        assert collected.one("inside").trace == trace


def test_an_unsampled_parent_has_no_spans_here_nor_in_the_worker(tmp_path: Path) -> None:
    headers, _, _ = client_span()
    headers["traceparent"] = headers["traceparent"][:-2] + "00"
    with collector() as collected, serving(tmp_path, collected) as server:
        for _ in range(3):
            httpx.post(f"{server.url}/v2/models/upper/infer", json=BODY, headers=headers)
    assert collected.spans == []


@pytest.mark.parametrize("wrong", ["down", "500", "garbage"])
def test_a_collector_that_fails_harms_no_request_and_no_end(tmp_path: Path, wrong: str) -> None:
    def misbehave(handler: BaseHTTPRequestHandler) -> None:
        if wrong == "garbage":
            handler.wfile.write(b"\0" * 100)
        else:
            handler.send_error(500)
        handler.close_connection = True

    with collector() as collected:
        collected.misbehaves = misbehave
        if wrong == "down":
            collected.url = "http://127.0.0.1:9"
        with serving(tmp_path, collected, OTEL_BSP_SCHEDULE_DELAY="10") as server:
            for _ in range(20):
                answer = httpx.post(f"{server.url}/v2/models/upper/infer", json=BODY)
                assert answer.status_code == 200
        assert server.process.returncode == 0


def test_without_the_extra_the_server_says_how_to_get_it_and_serves(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PLAIN)
    (tmp_path / "opentelemetry.py").write_text("")  # no package
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": _path(tmp_path)}
    with ServerProcess("app.py", cwd=str(tmp_path), env=env) as server:
        assert httpx.post(f"{server.url}/v2/models/upper/infer", json=BODY).status_code == 200
        assert "pip install 'wherry[otel]'" in server.log


def _path(first: Path) -> str:
    return os.pathsep.join([str(first), os.environ.get("PYTHONPATH", "")])


CALLING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "CONTEXT", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        for traced in ({"trace": request.trace()}, {}):
            call = pb_utils.InferenceRequest(
                model_name="called", inputs=request.inputs(), requested_output_names=["Y"], **traced
            )
            response = call.exec()
        context = request.trace().get_context()
        told = pb_utils.Tensor("CONTEXT", np.array([str(context)], object))
        return pb_utils.InferenceResponse([*response.output_tensors(), told])
"""
CALLED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def execute(self, requests):
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in tensors]
"""


def test_a_python_models_call_is_below_its_request_if_it_passes_the_trace_on(
    tmp_path: Path,
) -> None:
    for name, code in (("calling", CALLING), ("called", CALLED)):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.py").write_text(code)
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [2]}]}
    headers, trace, _ = client_span()
    written = tmp_path / "trace.json"
    options = ["--trace-config", f"triton,file={written}", "--trace-config", "level=TIMESTAMPS"]
    with collector() as collected:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        rate = ["--trace-config", "rate=1"]
        with ServerProcess(str(tmp_path / "models"), *options, *rate, env=env) as server:
            url = f"{server.url}/v2/models/calling/infer"
            answer = httpx.post(url, json=body, headers=headers).json()
    told = {one["name"]: one["data"] for one in answer["outputs"]}
    request, call = collected.one("POST /v2/models/{model}/infer"), collected.one("infer called")
    execute = next(span for span in collected.below(request) if span.name == "execute")
    assert told["Y"] == [2]
    assert json.loads(told["CONTEXT"][0]) == {"traceparent": f"00-{trace}-{execute.id}-01"}
    assert (call.trace, call.parent) == (trace, execute.id)
    assert {span.name for span in collected.below(call)} == {"queue", "execute"}
    heads = [one for one in json.loads(written.read_text()) if "model_name" in one]
    assert [(one["model_name"], one.get("parent_id")) for one in heads] == [
        ("calling", None),
        ("called", 1),
    ]
