"""What Triton's documentation and its own answers say of the wire, against a real server.

Each row is a request and what must come back; where we differ from Triton on purpose, the page
docs/reference/http.md says so.
"""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.testing import local_server, running_server

ROW = Annotated[np.ndarray, wherry.INT32[4]]
FLOATS = Annotated[np.ndarray, wherry.FP32[-1]]
HALVES = Annotated[np.ndarray, wherry.FP16[-1]]
OCTETS = Annotated[np.ndarray, wherry.UINT8[-1]]
SWITCHES = Annotated[np.ndarray, wherry.BOOL[-1]]


class Sums(TypedDict):
    SUM: ROW
    DIFFERENCE: ROW


@wherry.model(max_batch_size=8)
def simple(A: ROW, B: ROW) -> Sums:
    return {"SUM": A + B, "DIFFERENCE": A - B}


@wherry.model(max_batch_size=4)
def floats(x: FLOATS) -> FLOATS:
    return x


@wherry.model(max_batch_size=4)
def halves(x: HALVES) -> HALVES:
    return x


@wherry.model(max_batch_size=4)
def octets(x: OCTETS) -> OCTETS:
    return x


@wherry.model(max_batch_size=4)
def switches(x: SWITCHES) -> SWITCHES:
    return x


@wherry.model(max_batch_size=4)
def text(x: list[str]) -> list[str]:
    return x


@wherry.model(max_batch_size=0)
def bare(x: FLOATS) -> FLOATS:
    return x * 2


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with local_server(simple, floats, halves, octets, switches, text, bare, count) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        yield host, int(port)


class Answer:
    """An answer as it came over a socket."""

    def __init__(self, raw: bytes) -> None:
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in lines)
        if self.headers.get("transfer-encoding") == "chunked":
            body = _unchunked(body)
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return whole
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]


def ask(
    address: tuple[str, int], method: str, path: str, body: Any = b"", **headers: str
) -> Answer:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    with socket.create_connection(address, TIMEOUT) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    return Answer(b"".join(pieces))


# Paths and methods

NO_MODEL = "Request for unknown model: 'nobody' is not found"


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/", 404, "Not Found"),
        ("GET", "/v2/models/", 404, "Not Found"),
        ("GET", "/v2/models/simple/", 404, "Not Found"),
        ("GET", "/v2/models/simple/versions/one", 404, "Not Found"),
        ("GET", "/v2/models/simple/infer/more", 404, "Not Found"),
        ("GET", "/v2/models/simple/versions/1/trace/setting", 404, "Not Found"),
        ("GET", "/v3/models", 404, "Not Found"),
        ("GET", "/v2/models/nobody", 404, NO_MODEL),
        ("GET", "/v2/models/nobody/config", 404, NO_MODEL),
        ("POST", "/v2/models/nobody/infer", 404, NO_MODEL),
        ("POST", "/v2/models/nobody/generate", 404, NO_MODEL),
        ("POST", "/v2/models/nobody/generate_stream", 404, NO_MODEL),
        (
            "GET",
            "/v2/models/simple/versions/7",
            404,
            "Request for unknown model: 'simple' version 7 is not found",
        ),
        ("GET", "/v2/models/nobody/stats", 400, "requested model 'nobody' is not available"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("POST", "/v2/health/ready", 405, "Method Not Allowed"),
        ("POST", "/v2", 405, "Method Not Allowed"),
        ("POST", "/v2/models/simple", 405, "Method Not Allowed"),
        ("POST", "/v2/models/simple/config", 405, "Method Not Allowed"),
        ("POST", "/v2/models/stats", 405, "Method Not Allowed"),
        ("GET", "/v2/models/simple/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/simple/generate", 405, "Method Not Allowed"),
        ("PUT", "/v2/models/simple/infer", 405, "Method Not Allowed"),
        ("DELETE", "/v2/models/simple/infer", 405, "Method Not Allowed"),
        ("PUT", "/v2/logging", 405, "Method Not Allowed"),
        ("DELETE", "/v2/trace/setting", 405, "Method Not Allowed"),
    ],
)
def test_a_path_or_method_that_is_not_there(
    address: tuple[str, int], method: str, path: str, status: int, error: str
) -> None:
    answer = ask(address, method, path)
    assert (answer.status, answer.json) == (status, {"error": error})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path",
    ["/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready", "/v2/health/live?x=1"],
)
def test_health_answers_with_nothing_but_its_status(address: tuple[str, int], path: str) -> None:
    answer = ask(address, "GET", path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "text/plain"


# infer: JSON


def tensor(name: str, datatype: str, shape: Any, data: Any = None, **more: Any) -> dict[str, Any]:
    given = {} if data is None else {"data": data}
    return {"name": name, "datatype": datatype, "shape": shape, **given, **more}


A = tensor("A", "INT32", [1, 4], [1, 2, 3, 4])
B = tensor("B", "INT32", [1, 4], [4, 3, 2, 1])


def one(model: str, datatype: str, *data: Any) -> tuple[str, dict[str, Any]]:
    return model, {"inputs": [tensor("x", datatype, [1, len(data)], list(data))]}


def simply(**more: Any) -> tuple[str, dict[str, Any]]:
    return "simple", {"inputs": [A, B], **more}


def with_b(*args: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "simple", {"inputs": [A, tensor("B", *args, **more)]}


SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
    " 'shared_memory_region' in 'parameters'"
)
TYPES = "has invalid type. It should be either 'int', 'bool', 'string' or 'double'."


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        (("simple", b""), "failed to parse the request JSON"),
        (("simple", b"{"), "failed to parse the request JSON"),
        (("simple", b"[]"), "attempt to get members for non-object"),
        (("simple", b'{"inputs": [' + b"[" * 100_000), "JSON"),
        (("simple", b'{"inputs": [], "id": "\xff"}'), "failed to parse the request JSON"),
        (("simple", {}), "missing required field inputs"),
        (("simple", {"inputs": None}), "inputs: expected array, got null"),
        (("simple", {"inputs": {}}), "inputs: expected array, got object"),
        (("simple", {"inputs": []}), "expected 2 inputs but got 0 inputs for model 'simple'"),
        (
            ("simple", {"inputs": [A]}),
            "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['A'], but missing"
            " required input(s) ['B']. Please provide all required input(s).",
        ),
        (
            ("simple", {"inputs": [A, {**B, "name": "C"}]}),
            "unexpected inference input 'C' for model 'simple'",
        ),
        (simply(id=5), "id: expected str, got int"),
        (simply(outputs=None), "outputs: expected array, got null"),
        (simply(outputs=[{}]), "outputs[0]: object missing required field name"),
        (simply(outputs=[{"name": "C"}]), "unexpected inference output 'C' for model 'simple'"),
        (simply(parameters={"x": [1]}), f"parameter 'x' {TYPES}"),
        (simply(parameters={"x": None}), f"parameter 'x' {TYPES}"),
        (simply(parameters={"x": {}}), f"parameter 'x' {TYPES}"),
        (simply(parameters={"triton_x": 1}), "parameter keys starting with 'triton_' are reserved"),
        (with_b("FP32", [1, 4], [1, 2, 3, 4]), "input 'B' data-type is 'FP32', but model 'simple'"),
        (with_b("INT32", [1, 3], [1, 2, 3]), "'B' for model 'simple'. Expected [-1,4], got [1,3]"),
        (with_b("INT32", [4], [1, 2, 3, 4]), "Expected [-1,4], got [4]"),
        (with_b("INT32", [1, -4], [1, 2, 3, 4]), "inputs[1].shape[1]: expected int >= 0"),
        (with_b("INT32", [-1, -4], [1, 2, 3, 4]), "Unable to parse 'shape': attempt to"),
        (with_b("INT32", [2**62, 4], [1]), "input 'B'"),
        (with_b("INT32", [2, 4], [0] * 8), "batch size does not match other inputs"),
        (with_b("INT32", [1, 4], [1, 2, 3]), "needs 4 elements, data has 3"),
        (with_b("INT32", [1, 4], [1, 2, 3, 4.5]), "data[3]: expected int, got float"),
        (with_b("INT32", [1, 4], [1, 2, 3, "a"]), "data[3]: expected int, got str"),
        (with_b("INT32", [1, 4], [1, 2, 3, 2**31]), "data[3]: expected int <= 2147483647"),
        (with_b("INT32", [1, 4]), f"{SOURCES}. But no field is set"),
        (
            with_b("INT32", [1, 4], [1, 2, 3, 4], parameters={"binary_data_size": 16}),
            f"{SOURCES}. But set 'data' 'binary_data_size'",
        ),
        (
            with_b("INT32", [1, 4], parameters={"binary_data_size": 16}),
            "unexpected size for input 'B', expecting 16 additional bytes for model 'simple'",
        ),
        (one("octets", "UINT8", 256), "data[0]: expected int <= 255"),
        (one("octets", "UINT8", -1), "data[0]: expected int >= 0"),
        (one("switches", "BOOL", 1), "data[0]: expected bool, got int"),
        (one("floats", "FP32", 1e39), "out of the range of FP32"),
        (one("floats", "FP32", "1"), "data[0]: expected float, got str"),
        (one("halves", "FP16", 1), "receiving FP16 data via JSON is not supported"),
        (("text", {"inputs": [tensor("x", "BYTES", [1], [5])]}), "data[0]: expected str, got int"),
        (
            (
                "text",
                {
                    "inputs": [tensor("x", "BYTES", [1], ["a"])],
                    "outputs": [{"name": "output", "parameters": {"classification": 1}}],
                },
            ),
            "class result not available for output due to unsupported type 'BYTES'",
        ),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    address: tuple[str, int], request_of: tuple[str, Any], error: str
) -> None:
    model, body = request_of
    answer = ask(address, "POST", f"/v2/models/{model}/infer", body)
    assert answer.status == 400, answer.body
    assert error in answer.json["error"]
    assert answer.headers["content-type"] == "application/json"
    assert ask(address, "GET", "/v2/health/live").status == 200


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ({}, ["SUM", "DIFFERENCE"]),
        ({"outputs": []}, ["SUM", "DIFFERENCE"]),
        ({"outputs": [{"name": "DIFFERENCE"}, {"name": "SUM"}]}, ["SUM", "DIFFERENCE"]),
        ({"outputs": [{"name": "SUM"}, {"name": "SUM"}]}, ["SUM"]),
        ({"something": {"else": 1}}, ["SUM", "DIFFERENCE"]),
        ({"parameters": {"a": 1, "b": "x", "c": True, "d": 0.5}}, ["SUM", "DIFFERENCE"]),
        # As soon as an output is listed, its own binary_data decides.
        (
            {"parameters": {"binary_data_output": True}, "outputs": [{"name": "SUM"}]},
            ["SUM"],
        ),
    ],
)
def test_outputs_come_once_in_the_model_s_order_flat_and_as_json(
    address: tuple[str, int], more: dict[str, Any], outputs: list[str]
) -> None:
    given = {"inputs": [{**A, "data": [[1, 2], [[3, 4]]]}, B], **more}
    answer = ask(address, "POST", "/v2/models/simple/infer", given)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["model_name", "model_version", "outputs"]
    got = {output["name"]: output["data"] for output in answer.json["outputs"]}
    expected = {"SUM": [5, 5, 5, 5], "DIFFERENCE": [-3, -1, 1, 3]}
    assert list(got.items()) == [(name, expected[name]) for name in outputs]


@pytest.mark.parametrize("given", ["r-1", "", None])
def test_an_id_comes_back_first_if_it_is_one(address: tuple[str, int], given: str | None) -> None:
    more = {} if given is None else {"id": given}
    answer = ask(address, "POST", "/v2/models/simple/infer", {"inputs": [A, B], **more}).json
    assert answer.get("id", "") == (given or "")
    assert next(iter(answer)) == ("id" if given else "model_name")


def test_floats_that_json_does_not_know_are_taken_and_given(address: tuple[str, int]) -> None:
    body = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],'
        b'"data":[NaN,Infinity,-Infinity,1]}]}'
    )
    answer = ask(address, "POST", "/v2/models/floats/infer", body)
    assert b'"data":[NaN,Infinity,-Infinity,1.0]' in answer.body


# infer: binary

LENGTH = "Inference_Header_Content_Length"


def binary(size: int, data: bytes, length: str | None = None) -> tuple[bytes, dict[str, str]]:
    given = tensor("x", "FP32", [1, 2], parameters={"binary_data_size": size})
    head = json.dumps({"inputs": [given]}).encode()
    return head + data, {LENGTH: length or str(len(head))}


@pytest.mark.parametrize(
    ("size", "data", "length", "error"),
    [
        (8, bytes(7), None, "unexpected size for input 'x', expecting 1 additional bytes"),
        (8, bytes(9), None, "unexpected additional input data for model 'floats'"),
        (
            7,
            bytes(7),
            None,
            "input byte size mismatch for input 'x' for model 'floats'. Expected 8, got 7",
        ),
        (8, b"", "ten", "Unable to parse Inference-Header-Content-Length, got: ten"),
        (8, b"", "-5", "Unable to parse Inference-Header-Content-Length, got: -5"),
        (8, b"", "1e2", "Unable to parse"),
        (8, b"", "9999", "inference header size should be in range (0, "),
        (8, b"", "9" * 40, "Unable to parse"),
        (8, b"", "5", "failed to parse the request JSON"),
    ],
)
def test_a_binary_request_whose_sizes_do_not_add_up(
    address: tuple[str, int], size: int, data: bytes, length: str | None, error: str
) -> None:
    body, headers = binary(size, data, length)
    answer = ask(address, "POST", "/v2/models/floats/infer", body, **headers)
    assert answer.status == 400
    assert error in answer.json["error"]


def test_a_raw_request_is_nothing_but_its_data(address: tuple[str, int]) -> None:
    data = struct.pack("<3f", 1, 2, 3)
    answer = ask(address, "POST", "/v2/models/bare/infer", data, **{LENGTH: "0"})
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": 12}
    assert struct.unpack("<3f", answer.body[size:]) == (2, 4, 6)

    refused = ask(address, "POST", "/v2/models/simple/infer", data, **{LENGTH: "0"})
    assert refused.status == 400
    assert "must only have 1 input (found 1) to be deduced but got 2" in refused.json["error"]


def test_an_unknown_compression_names_those_that_are_known(address: tuple[str, int]) -> None:
    answer = ask(address, "POST", "/v2/models/text/infer", b"x", Content_Encoding="br")
    assert answer.status == 501
    assert answer.json["error"].startswith("Unsupported compression type '")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_a_stream_has_no_infer(address: tuple[str, int]) -> None:
    body = {"inputs": [tensor("n", "INT64", [1], [1])]}
    assert ask(address, "POST", "/v2/models/count/infer", body).status == 501


# generate


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        ("count", {"n": 1}, {"output": 0}),
        ("count", {"n": [1]}, {"output": 0}),
        ("count", {"parameters": {"n": 1}}, {"output": 0}),
        ("count", {"n": 1, "parameters": {"x": 1.5, "y": "z"}}, {"output": 0}),
        ("count", {"n": 1, "id": "r"}, {"id": "r", "output": 0}),
        ("text", {"x": "a"}, {"output": "a"}),
        ("text", {"x": ["a", "b"]}, {"output": ["a", "b"]}),
        ("floats", {"x": 1}, {"output": 1.0}),
        ("floats", {"x": [1, 2.5]}, {"output": [1.0, 2.5]}),
        ("simple", {"A": [1, 2, 3, 4], "B": [0] * 4},
         {"SUM": [1, 2, 3, 4], "DIFFERENCE": [1, 2, 3, 4]}),
    ],
)  # fmt: skip
def test_generate_takes_and_gives_plain_values(
    address: tuple[str, int], model: str, body: Any, expected: dict[str, Any]
) -> None:
    answer = ask(address, "POST", f"/v2/models/{model}/generate", body)
    assert answer.status == 200, answer.body
    assert answer.json == {"model_name": model, "model_version": "1", **expected}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "failed to parse the request JSON"),
        (b"[1]", "expected object, got array"),
        ({}, "missing required input(s) ['n']"),
        ({"n": None}, "missing required input(s) ['n']"),
        ({"n": "1"}, "input 'n' of model 'count': data[0]: expected int, got str"),
        ({"n": 1.5}, "expected int, got float"),
        ({"n": True}, "expected int, got bool"),
        ({"n": 1, "x": [1]}, f"parameter 'x' {TYPES}"),
        ({"n": 1, "parameters": {"x": None}}, f"parameter 'x' {TYPES}"),
        ({"n": 1, "triton_x": 1}, "parameter keys starting with 'triton_' are reserved"),
        ({"n": 1, "id": 5}, "id: expected str"),
        ({"n": 2}, "generate expects model to produce exactly 1 response"),
        ({"n": 0}, "generate expects model to produce exactly 1 response"),
    ],
)
def test_generate_says_what_is_wrong(address: tuple[str, int], body: Any, error: str) -> None:
    answer = ask(address, "POST", "/v2/models/count/generate", body)
    assert answer.status == 400, answer.body
    assert error in answer.json["error"]


@pytest.mark.parametrize("responses", [0, 1, 3])
def test_generate_stream_sends_each_response_as_an_event(
    address: tuple[str, int], responses: int
) -> None:
    answer = ask(address, "POST", "/v2/models/count/generate_stream", {"n": responses})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.body.decode() == "".join(
        f'data: {{"model_name":"count","model_version":"1","output":{i}}}\n\n'
        for i in range(responses)
    )


# Statistics


def test_perf_tools_may_subtract_two_snapshots(address: tuple[str, int]) -> None:
    def snapshot(model: str) -> Any:
        (counted,) = ask(address, "GET", f"/v2/models/{model}/stats").json["model_stats"]
        return counted

    before = snapshot("simple")
    ask(address, "POST", "/v2/models/simple/infer", {"inputs": [A, B]})
    after = snapshot("simple")
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        was, now = before["inference_stats"][name], after["inference_stats"][name]
        assert now["count"] == was["count"] + 1, name
        assert now["ns"] >= was["ns"], name
    assert after["inference_stats"]["cache_hit"] == {"count": 0, "ns": 0}
    assert after["response_stats"] == {}
    assert after["memory_usage"] == []

    ask(address, "POST", "/v2/models/count/generate_stream", {"n": 2})
    stats = snapshot("count")["response_stats"]
    assert set(stats["0"]) == {
        "compute_infer",
        "compute_output",
        "success",
        "fail",
        "empty_response",
        "cancel",
    }
    assert stats["0"]["success"]["count"] >= stats["1"]["success"]["count"] >= 1
    assert stats["2"]["empty_response"]["count"] >= 1


# What a model of a repository is told, and says


CONFIG = """
name: "told"
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [
  { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" },
  { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] }
]
"""

MODEL = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        told = {
            "id": request.request_id(),
            "sequence": request.correlation_id(),
            "starts": request.flags() == pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            "parameters": json.loads(request.parameters()),
        }
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        outputs = [
            pb_utils.Tensor("SCORES", x),
            pb_utils.Tensor("TOLD", np.array([[json.dumps(told)]], object)),
        ]
        return pb_utils.InferenceResponse(outputs, parameters={"note": "said"})
"""


@pytest.mark.slow
def test_a_model_of_a_repository_is_told_what_the_request_says_and_answers_with_labels(
    tmp_path: Path,
) -> None:
    (tmp_path / "told" / "1").mkdir(parents=True)
    (tmp_path / "told" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "told" / "labels.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "told" / "1" / "model.py").write_text(MODEL)
    given = {"inputs": [tensor("X", "FP32", [1, 3], [0.1, 0.7, 0.2])], "id": "r"}
    parameters = {"sequence_id": 7, "sequence_start": True, "own": 1, "priority": 1}
    with running_server(str(tmp_path), "--http-header-forward-pattern", "^x-user") as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        path, address = "/v2/models/told/infer", (host, int(port))
        plain = ask(
            address,
            "POST",
            path,
            {**given, "parameters": parameters, "outputs": [{"name": "TOLD"}]},
            X_User="ann",
        ).json
        best = {"name": "SCORES", "parameters": {"classification": 2}}
        classified = ask(address, "POST", path, {**given, "outputs": [best]}).json
        (stats,) = ask(address, "GET", "/v2/models/told/stats").json["model_stats"]
    assert plain["parameters"] == classified["parameters"] == {"note": "said"}
    (told,) = plain["outputs"]
    assert json.loads(told["data"][0]) == {
        "id": "r",
        "sequence": 7,
        "starts": True,
        "parameters": {"own": 1, "X-User": "ann"},
    }
    (scores,) = classified["outputs"]
    assert scores["data"] == ["0.700000:1:green", "0.200000:2:blue"]
    (memory,) = stats["memory_usage"]
    assert memory["type"] == "CPU"
    assert memory["byte_size"] > 2**20
