"""server/strict_http.py, server/strict_calls.py: Triton's answers over the wire."""

from __future__ import annotations

import gzip
import http.client
import json
import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import wherry
from tests.unit.server.asking import upper
from wherry.frontends.grpc.wire import Message
from wherry.server.server import Server
from wherry.server.strict_http import StrictExchange
from wherry.testing import local_server

pytestmark = pytest.mark.slow


@wherry.model
def double(
    number: Annotated[np.ndarray, wherry.UINT8[1]],
) -> Annotated[np.ndarray, wherry.UINT8[1]]:
    return number * 2


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    with local_server(upper, double, triton_strict=True, grpc_port=0) as server:
        yield server


def asked(
    server: Server, method: str, path: str, body: str | bytes | None = None, **headers: str
) -> tuple[int, str | None, Any]:
    """Status, Content-Type and what the JSON says."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, answer.headers["Content-Type"], json.loads(text) if text else None
    finally:
        connection.close()


def texts(*words: str, **more: Any) -> str:
    tensor = {"name": "text", "shape": [len(words), 1], "datatype": "BYTES", "data": words}
    return json.dumps({"inputs": [tensor], **more})


INFER = "/v2/models/upper/infer"
GENERATE = "/v2/models/upper/generate"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind", "error"),
    [
        ("HEAD", "/v2/health/live", None, 405, "text/plain", None),
        ("GET", "/v2/models", None, 404, "text/plain", "Not Found"),
        ("GET", "/", None, 404, "text/plain", "Not Found"),
        ("GET", "/v3", None, 404, "text/plain", "Not Found"),
        (
            "GET",
            "/v2/models/upper/versions/99999999999999999999/config",
            None,
            400,
            "application/json",
            "failed to get model version from specified version string '99999999999999999999'"
            " (details: stol), version should be an integral value > 0",
        ),
        (
            "POST",
            "/v2/systemsharedmemory/register",
            "{}",
            400,
            "application/json",
            "'region name' is necessary to register system shared memory region",
        ),
        ("GET", "/v2/models/none/ready", None, 400, "text/plain", "Model version not ready"),
        ("GET", "/v2/models/upper/what", None, 404, "text/plain", "Not Found"),
        (
            "POST",
            "/v2/models/none/infer",
            texts("a"),
            404,
            "text/plain",
            "Request for unknown model: 'none' is not found",
        ),
        (
            "POST",
            INFER,
            '{"inputs": [1',
            500,
            "application/json",
            "failed to parse the request JSON buffer: Missing a comma or ']' after an array"
            " element. at 13",
        ),
        (
            "POST",
            INFER,
            texts(*"abcdefghi", id="mine"),
            400,
            "application/json",
            "[request id: mine] inference request batch-size must be <= 8 for 'upper'",
        ),
        (
            "POST",
            INFER,
            "[]",
            500,
            "application/json",
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
        ),
    ],
)
def test_refusals_are_tritons(
    strict: Server,
    method: str,
    path: str,
    body: str | None,
    status: int,
    kind: str,
    error: str | None,
) -> None:
    told = asked(strict, method, path, body)
    assert told == (status, kind, error if error is None else {"error": error})


def test_health_is_told_without_json(strict: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/upper/ready"):
        assert asked(strict, "GET", path, Accept="*/*") == (200, "text/plain", None)


def test_members_of_generate_stand_in_order(strict: Server) -> None:
    _, _, answer = asked(strict, "POST", GENERATE, json.dumps({"text": "a", "id": "x"}))
    assert list(answer) == sorted(answer)
    assert answer["id"] == "x"


def test_a_compressed_generate_is_refused(strict: Server) -> None:
    told = asked(strict, "POST", GENERATE, "{}", **{"Content-Encoding": "gzip"})
    assert told[0] == 400
    assert "only 'identity'" in told[2]["error"]


def test_other_paths_are_as_ever(strict: Server) -> None:
    assert asked(strict, "HEAD", "/healthz")[0] == 200
    status, _, answer = asked(strict, "POST", "/v1/chat/completions", "{")
    assert status == 404  # no model of that protocol is served
    assert "message" in answer["error"]


def test_without_the_option_nothing_changes() -> None:
    with local_server(upper) as server:
        assert asked(server, "HEAD", "/v2/health/live")[0] == 200
        assert asked(server, "POST", INFER, texts(*"abcdefghi"))[0] == 200


def test_a_call_of_grpc_is_refused_with_its_id(strict: Server) -> None:
    address = strict.grpc_url
    with tritonclient.grpc.InferenceServerClient(address) as client:
        tensor = tritonclient.grpc.InferInput("text", [9, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"a"] * 9, object).reshape(9, 1))
        with pytest.raises(InferenceServerException, match=r"\[request id: mine\] inference req"):
            client.infer("upper", [tensor], request_id="mine")


def test_a_large_call_is_not_read_again_to_be_refused(
    strict: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    decode = Message.decode

    def counted(self: Message, data: Any) -> Any:
        read.append(len(data))
        return decode(self, data)

    monkeypatch.setattr(Message, "decode", counted)
    request = service_pb2.ModelInferRequest(model_name="upper", id="mine")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[500_000, 1])
    tensor.contents.bytes_contents.extend([b"a"] * 500_000)
    with (
        grpc.insecure_channel(strict.grpc_url) as channel,
        pytest.raises(grpc.RpcError, match=r"\[request id: mine\] inference request batch-size"),
    ):
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert len([size for size in read if size > 2**20]) == 1


def test_an_error_within_a_stream_is_told_in_the_same_words(strict: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(strict.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error))
        tensor = tritonclient.grpc.InferInput("text", [9, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([b"a"] * 9, object).reshape(9, 1))
        client.async_stream_infer("upper", [tensor], request_id="mine")
        error = answers.get(timeout=60)
    assert str(error).startswith("[request id: mine] inference request batch-size must be <= ")


@pytest.mark.parametrize("header", [" {}", "+{}", "{}abc", "{}.5"])
def test_the_length_of_a_header_is_read_by_atoi(strict: Server, header: str) -> None:
    body = texts("a")
    length = {"Inference-Header-Content-Length": header.format(len(body))}
    assert asked(strict, "POST", INFER, body, **length)[0] == 200


def test_a_version_is_read_by_stol(strict: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(strict.grpc_url) as client:
        for version in ("01", " 1", "+1", "1.0", "1x"):
            assert client.is_model_ready("upper", version)
        with pytest.raises(InferenceServerException, match="failed to get model version"):
            client.is_model_ready("upper", "x")


def test_a_setting_that_is_not_known_is_not_looked_at(strict: Server) -> None:
    assert asked(strict, "POST", "/v2/logging", '{"nope": 1}')[0] == 200


def test_what_triton_ignores_and_refuses_over_grpc(strict: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(strict.grpc_url) as client:
        assert client.update_log_settings({"nope": True}) is not None
        with pytest.raises(
            InferenceServerException, match="invalid argument for log_format, got: x"
        ):
            client.update_log_settings({"log_format": "x"})
        tensor = tritonclient.grpc.InferInput("text", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"a"]], object))
        assert client.infer("upper", [tensor], timeout=-1).as_numpy("output")[0] == b"A"


@pytest.mark.parametrize("binary", [False, True])
def test_a_number_wraps_around(strict: Server, binary: bool) -> None:
    tensor = {"name": "number", "shape": [1, 1], "datatype": "UINT8", "data": [257]}
    body = json.dumps({"inputs": [tensor]})
    length = {"Inference-Header-Content-Length": str(len(body))} if binary else {}
    status, _, told = asked(strict, "POST", "/v2/models/double/infer", body, **length)
    assert (status, told["outputs"][0]["data"]) == (200, [2])


def test_generate_looks_for_the_model_before_the_coding(strict: Server) -> None:
    coded = {"Content-Encoding": "gzip"}
    told = asked(strict, "POST", "/v2/models/none/generate", "x", **coded)
    assert told[0] == 404
    status, _, said = asked(strict, "POST", GENERATE, "x", **coded)
    assert (status, said["error"][:28]) == (400, "Unsupported content-encoding")


def test_generate_says_where_a_parameter_was(strict: Server) -> None:
    body = json.dumps({"text": "a", "parameters": {"x": [1]}})
    status, _, said = asked(strict, "POST", GENERATE, body)
    assert status == 400
    assert said["error"] == (
        "Converting keyword: 'parameters': parameter 'x' has invalid type. It should be either"
        " 'int', 'bool', or 'string'."
    )


def test_codings_are_known_in_small_letters_only(strict: Server) -> None:
    told = asked(strict, "POST", INFER, texts("a"), **{"Content-Encoding": "IDENTITY"})
    assert told == (501, "text/plain", {"error": "Unsupported compression type"})
    status, _, answer = asked(strict, "POST", INFER, texts("a"), **{"Accept-Encoding": "GZIP, *"})
    assert (status, answer["model_name"]) == (200, "upper")  # it is no gzip


@pytest.mark.parametrize("name", ["%75pper", "upper%2F", "%20", "it's"])
def test_a_models_name_is_not_decoded(strict: Server, name: str) -> None:
    told = asked(strict, "GET", f"/v2/models/{name}")
    text = f"Request for unknown model: '{name}' is not found"
    assert told == (404, "application/json", {"error": text})


def test_data_of_a_wrong_size_without_json_is_told_with_the_size(strict: Server) -> None:
    path, length = "/v2/models/double/infer", {"Inference-Header-Content-Length": "0"}
    told = asked(strict, "POST", path, "abc", **length)
    text = (
        "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model"
        " 'double'. Expected 1, got 3"
    )
    assert told == (400, "application/json", {"error": text})


def test_generate_acts_on_no_parameter(strict: Server) -> None:
    for given in ({"priority": "x"}, {"timeout": -1}, {"sequence_id": 1.5}, {"triton_x": 1}):
        status, _, answer = asked(strict, "POST", GENERATE, json.dumps({"text": "a", **given}))
        assert (status, answer["output"]) == (200, "A"), given


def test_a_method_that_there_is_not_is_told_without_a_text(strict: Server) -> None:
    with grpc.insecure_channel(strict.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/Nope")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"", timeout=60)
    assert (raised.value.code().name, raised.value.details()) == ("UNIMPLEMENTED", "")


def test_of_an_output_that_is_asked_for_twice_the_first_holds(strict: Server) -> None:
    outputs = [{"name": "output"}, {"name": "output", "parameters": {"binary_data": True}}]
    status, kind, answer = asked(strict, "POST", INFER, texts("a", outputs=outputs))
    assert (status, kind) == (200, "application/json")
    assert answer["outputs"][0]["data"] == ["A"]


def test_parameters_of_tensors_are_not_looked_at_but_for_tritons_own(strict: Server) -> None:
    for of_input, of_output in (("x", []), ({"classification": []}, {"x": {}}), (None, 1)):
        outputs: list[Any] = [{"name": "output", "parameters": of_output}]
        tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
        body = {"inputs": [{**tensor, "parameters": of_input}], "outputs": outputs}
        status, _, answer = asked(strict, "POST", INFER, json.dumps(body))
        assert (status, answer["outputs"][0]["data"]) == (200, ["A"])


@pytest.mark.parametrize("body", [gzip.compress(b'{"inputs": [', mtime=0), b"no gzip"])
def test_faults_of_a_packed_body_are_told_as_those_of_another(strict: Server, body: bytes) -> None:
    path, coding = "/v2/models/double/infer", {"Content-Encoding": "gzip"}
    status, kind, answer = asked(strict, "POST", path, body, **coding)
    told = {
        500: "failed to parse the request JSON buffer: Invalid value. at 12",
        400: "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for",
    }
    assert kind == "application/json"
    assert answer["error"].startswith(told[status])


def test_json_ends_where_a_zero_is(strict: Server) -> None:
    body, header = texts("a", id="x") + "\0\0\0\0", "Inference-Header-Content-Length"
    told = asked(strict, "POST", INFER, body, **{header: str(len(body) - 2)})
    text = "unexpected additional input data for model 'upper'"
    assert told == (400, "application/json", {"error": text})


def test_generate_takes_nothing_but_json(strict: Server) -> None:
    status, _, answer = asked(strict, "POST", GENERATE, "a", **{"Content-Type": "text/plain"})
    assert (status, answer["error"][:30]) == (500, "failed to parse the request JS")


def test_the_length_of_a_header_is_told_as_it_was_given(strict: Server) -> None:
    told = asked(strict, "POST", INFER, "{}", **{"Inference-Header-Content-Length": "+78.5"})
    assert told[2]["error"] == "inference header size should be in range (0, 2), got: +78.5"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (INFER, b"\xef\xbb\xbf" + texts("a").encode()),
        (INFER, texts("a").encode() + b"\0more"),
        (GENERATE, b'\xef\xbb\xbf{"text": "a"}'),
        (GENERATE, b'{"text": "a"}\0'),
        ("/v2/repository/index", b"\xef\xbb\xbf{}"),
    ],
)
def test_a_mark_before_json_is_passed_over_and_a_zero_ends_it(
    strict: Server, path: str, body: bytes
) -> None:
    assert asked(strict, "POST", path, body)[0] == 200


def test_numbers_of_generate_wrap_around(strict: Server) -> None:
    status, _, told = asked(strict, "POST", "/v2/models/double/generate", '{"number": 257}')
    assert (status, [*told.values()][-1]) == (200, 2)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ({"text": None}, 500, "Unable to parse JSON bytes array"),
        ({"text": [["a", "b"]]}, 400, "[request id: <id_unknown>] unexpected number of string"),
        ({"id": 5, "text": "a"}, 500, "Unable to parse 'id'"),
    ],
)
def test_faults_of_generate_are_told_in_tritons_order(
    strict: Server, body: Any, status: int, error: str
) -> None:
    told = asked(strict, "POST", GENERATE, json.dumps(body))
    assert (told[0], told[2]["error"][: len(error)]) == (status, error)


@pytest.mark.parametrize("coding", ["x", "GZIP", "gzip, deflate", ""])
def test_a_coding_counts_where_a_model_is_asked_only(strict: Server, coding: str) -> None:
    headers = {"Content-Encoding": coding}
    assert asked(strict, "POST", "/v2/repository/index", "{}", **headers)[0] == 200
    assert asked(strict, "POST", INFER, texts("a"), **headers)[0] == 501


def test_no_rows_of_binary_data_are_one(strict: Server) -> None:
    size = {"binary_data_size": 1}
    given = {"name": "number", "shape": [0, 1], "datatype": "UINT8", "parameters": size}
    head = json.dumps({"inputs": [given]})
    headers = {"Inference-Header-Content-Length": str(len(head))}
    body = head.encode() + b"\3"
    status, _, told = asked(strict, "POST", "/v2/models/double/infer", body, **headers)
    assert (status, told["outputs"][0]["data"]) == (200, [6])


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_head_is_refused_whether_there_is_the_region_or_not(strict: Server, kind: str) -> None:
    assert asked(strict, "HEAD", f"/v2/{kind}sharedmemory/region/x/status")[0] == 405


@pytest.mark.parametrize("code", [400, 404, 500, 503])
def test_a_stream_that_a_model_fails_at_once_is_400_whatever_it_says(code: int) -> None:
    begun: list[int] = []
    inner: Any = SimpleNamespace(
        request=SimpleNamespace(body=b"", path="/v2/models/m/generate_stream"),
        start=lambda status, **more: begun.append(status),
    )
    exchange = StrictExchange(inner, lambda exchange: None, lambda name, version: None)
    exchange.start(code)
    exchange.start(200)
    assert begun == [400, 200]
