"""server/v2/http/kserve.py, infer_codec.py, generate.py: V2 over the application."""

import dataclasses
import gzip
import json
import math
import random
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Gate, gated
from tests.http_exchange import Client, MemoryExchange, served
from tests.properties import seeds
from wherry.core.values.request import Columns, InferRequest, SequenceStep
from wherry.server.calls.parameters import Forwarding, HeaderForwarding
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.http.generate_codec import GenerateCodec
from wherry.server.v2.http.infer_codec import ModelCodec
from wherry.server.v2.model_tensors import ModelTensors, RequestedOutput

FP32 = Annotated[np.ndarray, wherry.FP32[2]]
FP16 = Annotated[np.ndarray, wherry.FP16[2]]
BF16 = Annotated[np.ndarray, wherry.BF16[2]]
BARE = Annotated[np.ndarray, wherry.FP32[2, -1]]


@wherry.model(max_batch_size=4)
def echo(text: list[str]) -> list[str]:
    return text


class Sums(TypedDict):
    total: FP32
    names: list[bytes]


@wherry.model(max_batch_size=8)
def add(a: FP32, b: FP32, name: list[bytes] | None = None) -> Sums:
    return {"total": a + b, "names": name or [b""] * len(a)}


@wherry.model(max_batch_size=8)
def square(n: list[int]) -> list[int]:
    return [i * i for i in n]


@wherry.model(max_batch_size=8)
def halves(x: FP16, y: BF16) -> Annotated[np.ndarray, wherry.BF16[2]]:
    total: np.ndarray = np.add(x, y, dtype=np.float32)
    return total


@wherry.model(max_batch_size=0)
def transpose(x: BARE) -> Annotated[np.ndarray, wherry.FP32[-1, 2]]:
    return x.T


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0


@wherry.model(max_batch_size=8)
def older(person: list[Person]) -> list[dict[str, Any]]:
    return [{"name": p.name, "age": p.age + 1} for p in person]


@wherry.model
def words(text: str) -> list[str]:
    return text.split()


@wherry.model
def turns(messages: Sequence[dict[str, Any]]) -> int:
    return len(messages)


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@wherry.model(max_batch_size=4)
def broken(text: list[str]) -> list[str]:
    if "mine" in text:
        raise wherry.InvalidRequest("say something else")
    raise ZeroDivisionError("of the model")


MODELS = (echo, add, square, halves, transpose, older, words, turns, count, broken)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(*MODELS, name="test", version="9") as client:
        yield client


def tensor(name: str, datatype: str, shape: list[int], data: Any, **extra: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **extra}


def text_of(*texts: str) -> dict[str, Any]:
    return {"inputs": [tensor("text", "BYTES", [len(texts)], list(texts))]}


def with_binary(
    request: dict[str, Any], *data: bytes, length: str | None = None
) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(request).encode()
    headers = {"inference-header-content-length": length or str(len(head))}
    return head + b"".join(data), headers


def split(answer: MemoryExchange) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON part, and the data of each binary output."""
    size = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.body[:size])
    position, parts = size, []
    for output in head["outputs"]:
        length = output.get("parameters", {}).get("binary_data_size", 0)
        parts.append(answer.body[position : position + length])
        position += length
    assert position == len(answer.body)
    return head, parts


# What is there


def test_the_servers_metadata(client: Client) -> None:
    answer = client.get("/v2").json
    assert (answer["name"], answer["version"]) == ("test", "9")
    assert "binary_tensor_data" in answer["extensions"]


@pytest.mark.parametrize("path", ["/v2/models/add", "/v2/models/add/versions/1"])
def test_a_models_metadata(client: Client, path: str) -> None:
    assert client.get(path).json == {
        "name": "add",
        "versions": ["1"],
        "platform": "python",
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "b", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "name", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [
            {"name": "total", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "names", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def test_a_model_without_a_batch_dimension_shows_its_own_shapes(client: Client) -> None:
    answer = client.get("/v2/models/transpose").json
    assert answer["inputs"][0]["shape"] == [2, -1]
    assert answer["outputs"][0]["shape"] == [-1, 2]


def test_a_models_configuration_is_tritons(client: Client) -> None:
    config = client.get("/v2/models/add/config").json
    assert config["name"] == "add"
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 8
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    a, _, name = config["input"]
    assert (a["name"], a["data_type"], a["dims"], a["optional"]) == ("a", "TYPE_FP32", [2], False)
    assert (name["data_type"], name["dims"], name["optional"]) == ("TYPE_STRING", [1], True)
    assert config["output"][0]["dims"] == [2]
    assert config["instance_group"][0]["count"] == 1
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["wherry"]["isolate_errors"] is True
    assert "dynamic_batching" not in client.get("/v2/models/words/config").json


STATISTICS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def test_statistics_have_all_their_fields_from_the_start_and_only_grow() -> None:
    duration = {"count": 0, "ns": 0}
    with served(echo) as client:
        (before,) = client.get("/v2/models/echo/stats").json["model_stats"]
        client.post("/v2/models/echo/infer", text_of("a", "b"))
        client.post("/v2/models/echo/infer", {"inputs": []})
        (after,) = client.get("/v2/models/stats").json["model_stats"]

    assert before == {
        "name": "echo",
        "version": "1",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(STATISTICS, duration),
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
    assert after["inference_count"] == 2
    assert after["execution_count"] == 1
    assert after["last_inference"] > 1_600_000_000_000
    assert after["inference_stats"]["success"]["count"] == 1
    assert after["inference_stats"]["success"]["ns"] > 0
    assert [batch["batch_size"] for batch in after["batch_stats"]] == [2]


@pytest.mark.parametrize("path", ["/v2/models/echo/ready", "/v2/models/echo/versions/1/ready"])
def test_a_model_that_is_ready_says_so(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status, answer.body) == (200, b"")
    answer = client.get(path, headers={"accept": "application/json, text/html;q=0.5"})
    assert (answer.status, answer.json) == (200, {"name": "echo", "ready": True})


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html, application/*;q=0.1"])
def test_kserves_client_reads_the_health_as_json(client: Client, accept: str) -> None:
    for path, told in (("live", {"live": True}), ("ready", {"ready": True})):
        answer = client.get(f"/v2/health/{path}", headers={"accept": accept})
        assert (answer.status, answer.json) == (200, told)


def test_a_client_without_json_gets_the_health_as_triton_tells_it(client: Client) -> None:
    for headers in ({}, {"accept": "text/plain"}):
        answer = client.get("/v2/health/ready", headers=headers)
        assert (answer.status, answer.body, answer.content_type) == (
            200, b"", "text/plain",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/models/nobody", 404, "Request for unknown model: 'nobody' is not found"),
        ("/v2/models/echo/versions/7", 404, "'echo' version 7 is not found"),
        ("/v2/models/nobody/config", 404, "'nobody' is not found"),
        ("/v2/models/nobody/ready", 404, "'nobody' is not found"),
        ("/v2/models/nobody/stats", 400, "requested model 'nobody' is not available"),
        ("/v2/models/echo/versions/one", 404, "Not Found"),
        ("/v2/models/echo/versions", 404, "Not Found"),
        ("/v2/models/echo/what", 404, "Not Found"),
        ("/v2/models/echo/", 404, "Not Found"),
        ("/v2/models/", 404, "Not Found"),
        ("/v2/", 404, "Not Found"),
        ("/v3/models/echo", 404, "Not Found"),
    ],
)
def test_what_is_not_there(client: Client, path: str, status: int, text: str) -> None:
    answer = client.get(path)
    assert answer.status == status
    assert text in answer.error


# infer


def test_infer_with_json(client: Client) -> None:
    answer = client.post("/v2/models/echo/infer", {"id": "7", **text_of("a", "ü")})
    assert answer.status == 200
    assert answer.content_type == "application/json"
    assert answer.body.decode() == (
        '{"id":"7","model_name":"echo","model_version":"1","outputs":[{"name":"output",'
        '"datatype":"BYTES","shape":[2],"data":["a","ü"]}]}'
    )


def test_no_id_is_answered_with_no_id(client: Client) -> None:
    assert "id" not in client.post("/v2/models/echo/infer", text_of("a")).json
    assert "id" not in client.post("/v2/models/echo/infer", {"id": "", **text_of("a")}).json


def test_one_element_rows_may_have_a_second_dimension(client: Client) -> None:
    request = {"inputs": [tensor("text", "BYTES", [2, 1], [["a"], ["b"]])]}
    answer = client.post("/v2/models/echo/infer", request).json
    assert answer["outputs"][0]["data"] == ["a", "b"]


def test_more_rows_than_a_batch_are_split_and_joined(client: Client) -> None:
    texts = [str(i) for i in range(11)]
    answer = client.post("/v2/models/echo/infer", text_of(*texts)).json
    assert answer["outputs"][0]["data"] == texts


def test_a_request_that_is_split_is_one_request_in_statistics_and_metrics() -> None:
    with served(echo) as client:
        client.post("/v2/models/echo/infer", text_of(*map(str, range(11))))
        (counted,) = client.get("/v2/models/echo/stats").json["model_stats"]
        metrics = client.get("/metrics").body.decode()
    most = echo.config().max_batch_size
    batches = -(-11 // most)
    assert (counted["inference_count"], counted["execution_count"]) == (11, batches)
    counts = {name: value["count"] for name, value in counted["inference_stats"].items()}
    once = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert counts == {**dict.fromkeys(counts, 0), **dict.fromkeys(once, 1)}
    assert 'nv_inference_request_success{model="echo",version="1"} 1' in metrics
    assert 'nv_inference_count{model="echo",version="1"} 11' in metrics
    assert f'nv_inference_exec_count{{model="echo",version="1"}} {batches}' in metrics
    assert 'wherry_requests_total{model="echo",outcome="success",version="1"} 1' in metrics
    assert 'wherry_request_seconds_count{model="echo",version="1"} 1' in metrics


def test_several_inputs_in_any_order_and_an_optional_one(client: Client) -> None:
    a, b = tensor("a", "FP32", [1, 2], [1, 2]), tensor("b", "FP32", [1, 2], [[10, 20.5]])
    answer = client.post("/v2/models/add/infer", {"inputs": [b, a]}).json
    assert [output["data"] for output in answer["outputs"]] == [[11.0, 22.5], [""]]

    name = tensor("name", "BYTES", [1], ["x"])
    answer = client.post("/v2/models/add/infer", {"inputs": [name, a, b]}).json
    assert answer["outputs"][1]["data"] == ["x"]


def test_outputs_come_in_the_models_order_and_once(client: Client) -> None:
    a, b = tensor("a", "FP32", [1, 2], [1, 2]), tensor("b", "FP32", [1, 2], [1, 2])
    wanted = [{"name": "names"}, {"name": "total"}, {"name": "names"}]
    answer = client.post("/v2/models/add/infer", {"inputs": [a, b], "outputs": wanted}).json
    assert [output["name"] for output in answer["outputs"]] == ["total", "names"]
    answer = client.post("/v2/models/add/infer", {"inputs": [a, b], "outputs": wanted[:1]}).json
    assert [output["name"] for output in answer["outputs"]] == ["names"]


def test_a_model_without_a_batch_dimension_gets_its_array_as_it_is(client: Client) -> None:
    request = {"inputs": [tensor("x", "FP32", [2, 3], [1, 2, 3, 4, 5, 6])]}
    (output,) = client.post("/v2/models/transpose/infer", request).json["outputs"]
    assert output["shape"] == [3, 2]
    assert output["data"] == [1, 4, 2, 5, 3, 6]


def test_json_rows_are_strings_that_hold_json(client: Client) -> None:
    for row in ({"name": "Ada", "age": 35}, '{"name":"Ada","age":35}'):
        request = {"inputs": [tensor("person", "BYTES", [1], [row])]}
        (output,) = client.post("/v2/models/older/infer", request).json["outputs"]
        assert output["datatype"] == "BYTES"
        assert json.loads(output["data"][0]) == {"name": "Ada", "age": 36}


def test_a_row_that_is_a_list_has_a_dimension_of_its_own(client: Client) -> None:
    (output,) = client.post("/v2/models/words/infer", text_of("a b c")).json["outputs"]
    assert (output["shape"], output["data"]) == ([1, 3], ["a", "b", "c"])


def test_unknown_members_are_ignored(client: Client) -> None:
    request = {**text_of("a"), "whatever": [1, {"x": None}]}
    assert client.post("/v2/models/echo/infer", request).status == 200


def test_an_empty_list_of_outputs_means_all(client: Client) -> None:
    answer = client.post("/v2/models/echo/infer", {**text_of("a"), "outputs": []})
    assert len(answer.json["outputs"]) == 1


def test_the_answer_to_an_unloaded_models_path_and_its_successors() -> None:
    with served(echo) as client:
        path = "/v2/models/echo/infer"
        assert client.post(path, text_of("a")).status == 200
        client.runtime.unload("echo")
        assert client.post(path, text_of("a")).status == 404

        @wherry.model(name="echo")
        def other(number: int) -> int:
            return number

        client.runtime.load(other)
        assert client.post(path, text_of("a")).status == 400
        request = {"inputs": [tensor("number", "INT64", [1], [5])]}
        assert client.post(path, request).json["outputs"][0]["data"] == [5]


# infer, binary


def test_binary_in_and_binary_out(client: Client) -> None:
    a, b = np.array([[1, 2]], np.float32), np.array([[3, 4]], np.float32)
    inputs = [
        {"name": n, "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
        for n in "ab"
    ]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    body, headers = with_binary(request, a.tobytes(), b.tobytes())
    answer = client.post("/v2/models/add/infer", body, headers)

    assert answer.status == 200
    assert answer.content_type == "application/octet-stream"
    head, (total, names) = split(answer)
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert "data" not in head["outputs"][0]
    np.testing.assert_array_equal(np.frombuffer(total, np.float32), [4, 6])
    assert names == pack_bytes([b""])


def test_binary_and_json_may_be_mixed_both_ways(client: Client) -> None:
    a = {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    request = {
        "inputs": [a, tensor("b", "FP32", [1, 2], [1, 1])],
        "outputs": [{"name": "total"}, {"name": "names", "parameters": {"binary_data": True}}],
    }
    body, headers = with_binary(request, struct.pack("<2f", 5, 6))
    head, parts = split(client.post("/v2/models/add/infer", body, headers))
    assert head["outputs"][0]["data"] == [6, 7]
    assert parts == [b"", pack_bytes([b""])]


def test_a_listed_output_decides_for_itself_and_not_the_request(client: Client) -> None:
    request = {
        **text_of("a"),
        "outputs": [{"name": "output"}],
        "parameters": {"binary_data_output": True},
    }
    answer = client.post("/v2/models/echo/infer", request)
    assert answer.content_type == "application/json"
    assert answer.json["outputs"][0]["data"] == ["a"]


def test_half_floats_travel_as_binary(client: Client) -> None:
    x = np.array([[1.5, -2]], np.float16)
    inputs = [
        {"name": n, "datatype": d, "shape": [1, 2], "parameters": {"binary_data_size": 4}}
        for n, d in (("x", "FP16"), ("y", "BF16"))
    ]
    request = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    one = struct.pack("<2H", 0x3F80, 0x3F80)
    body, headers = with_binary(request, x.tobytes(), one)
    _, (total,) = split(client.post("/v2/models/halves/infer", body, headers))
    assert struct.unpack("<2H", total) == (0x4020, 0xBF80)  # 2.5 and -1

    body, headers = with_binary({"inputs": inputs}, x.tobytes(), one)
    answer = client.post("/v2/models/halves/infer", body, headers)
    assert answer.status == 400
    assert "binary data format for output output" in answer.error


def test_a_raw_request_is_nothing_but_the_data(client: Client) -> None:
    headers = {"inference-header-content-length": "0"}
    head, parts = split(client.post("/v2/models/echo/infer", b"plain text", headers))
    assert head["outputs"][0]["shape"] == [1]
    assert parts == [pack_bytes([b"plain text"])]


def test_with_compression_the_header_length_counts_unpacked_bytes(client: Client) -> None:
    request = {"inputs": [{**tensor("text", "BYTES", [1], None)}]}
    request["inputs"][0].pop("data")
    request["inputs"][0]["parameters"] = {"binary_data_size": 5}
    body, headers = with_binary(request, pack_bytes([b"a"]))
    headers["content-encoding"] = "gzip"
    answer = client.post("/v2/models/echo/infer", gzip.compress(body), headers)
    assert answer.json["outputs"][0]["data"] == ["a"]


def submitted(client: Client, model: str) -> list[InferRequest]:
    """The requests that reach the model's runner from now on."""
    seen: list[InferRequest] = []
    runner = client.runtime.model(model).runner
    submit = runner.submit

    def watch(requests: Sequence[InferRequest]) -> None:
        seen.extend(requests)
        submit(requests)

    runner.submit = watch  # type: ignore[method-assign]
    return seen


def test_the_core_is_told_the_sequence_the_outputs_and_the_model_s_parameters() -> None:
    with served(add, words) as client:
        seen = submitted(client, "add")
        own = {"a": 1, "b": "x"}
        for_the_server = {
            "sequence_id": 7,
            "sequence_start": True,
            "priority": 3,
            "timeout": 10**7,
            "binary_data_output": False,
        }
        body = {
            "inputs": [ADD_A, ADD_B],
            "parameters": {**own, **for_the_server},
            "outputs": [{"name": "names"}, {"name": "names"}],
        }
        assert client.post("/v2/models/add/infer", body).status == 200
        assert client.post("/v2/models/add/infer", {"inputs": [ADD_A, ADD_B]}).status == 200
        body = {"inputs": [ADD_A, ADD_B], "parameters": {"binary_data_output": True}}
        assert client.post("/v2/models/add/infer", body).status == 200
        generated = {"text": "a", "x": 1, "sequence_id": "s", "sequence_end": True}
        of_generate = submitted(client, "words")
        assert client.post("/v2/models/words/generate", generated).status == 200
    first, plain, binary = seen
    assert first.parameters == own
    assert first.sequence == SequenceStep(7, start=True)
    assert first.requested_outputs == ["names"]
    for request in (plain, binary):
        assert (request.parameters, request.sequence, request.requested_outputs) == (
            None,
            None,
            None,
        )
    assert of_generate[0].parameters == {"x": 1}
    assert of_generate[0].sequence == SequenceStep("s", end=True)


def test_headers_that_the_operator_forwards_are_parameters() -> None:
    with served(echo, forwarding=Forwarding(http=HeaderForwarding("^x-user-|priority"))) as client:
        seen = submitted(client, "echo")
        headers = {"x-user-id": "u", "priority": "high", "x-other": "o"}
        client.post("/v2/models/echo/infer", {**text_of("a"), "parameters": {"n": 1}}, headers)
        client.post("/v2/models/echo/infer", text_of("a"), {"x-other": "o"})
        of_the_body = {**text_of("a"), "parameters": {"x-user-id": "b"}}
        client.post("/v2/models/echo/infer", of_the_body, {"x-user-id": "u"})
    assert seen[0].parameters == {"x-user-id": "u", "priority": "high", "n": 1}
    assert seen[0].priority == 5
    assert seen[1].parameters is None
    assert seen[2].parameters == {"x-user-id": "b"}  # what the body says wins


def test_what_a_model_says_beside_its_outputs_is_in_the_answer() -> None:
    codec = ModelCodec(ModelTensors(add.config(), add.signature("add")))
    columns: Columns = {"total": np.zeros((1, 2), np.float32), "names": [b"n"]}
    answer = json.loads(bytes(codec.encode(columns, None, "7", {"stop": "length"}).body))  # type: ignore[arg-type]
    assert list(answer) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert answer["parameters"] == {"stop": "length"}
    generated = json.loads(codec.generate.encode(columns, "7", {"stop": "length"}))
    assert generated["stop"] == "length"
    with pytest.raises(wherry.BadModelOutput, match="response parameter is not JSON"):
        codec.encode(columns, None, "", {"stop": object()})


def test_an_output_that_the_model_did_not_give_is_left_out() -> None:
    codec = ModelCodec(ModelTensors(add.config(), add.signature("add")))
    columns: Columns = {"names": [b"n"]}
    wanted = [RequestedOutput(output, binary=True, classes=0) for output in codec.outputs.values()]
    for body in (codec.encode(columns).body, codec.encode(columns, wanted[:1]).body):
        assert b"total" not in bytes(body)  # type: ignore[arg-type]
    assert b"total" not in codec.generate.encode(columns)


def test_a_class_has_its_label() -> None:
    labels = {"total": ["left", "right"]}
    codec = ModelCodec(ModelTensors(add.config(), add.signature("add"), labels))
    wanted = [RequestedOutput(codec.outputs["total"], binary=False, classes=1)]
    body = codec.encode({"total": np.array([[1, 2]], np.float32)}, wanted).body
    assert json.loads(bytes(body))["outputs"][0]["data"] == ["2.000000:1:right"]  # type: ignore[arg-type]


def test_classification(client: Client) -> None:
    request = {
        "inputs": [tensor("a", "FP32", [1, 2], [0, 5]), tensor("b", "FP32", [1, 2], [0, 0])],
        "outputs": [{"name": "total", "parameters": {"classification": 1}}],
    }
    (output,) = client.post("/v2/models/add/infer", request).json["outputs"]
    assert output == {
        "name": "total",
        "datatype": "BYTES",
        "shape": [1, 1],
        "data": ["5.000000:1"],
    }


# What a client may get wrong


def bad(**changes: Any) -> dict[str, Any]:
    """A request for `echo` whose only input is changed."""
    return {"inputs": [{**tensor("text", "BYTES", [1], ["a"]), **changes}]}


def without(member: str) -> dict[str, Any]:
    request = bad()
    del request["inputs"][0][member]
    return request


ADD_A = tensor("a", "FP32", [1, 2], [1, 2])
ADD_B = tensor("b", "FP32", [1, 2], [1, 2])

MALFORMED: list[tuple[str, Any, int, str]] = [
    # The envelope
    ("echo", b"", 400, "failed to parse the request JSON"),
    ("echo", b"{", 400, "failed to parse the request JSON"),
    ("echo", b"[]", 400, "expected object, got array"),
    ("echo", b"null", 400, "expected object, got null"),
    ("echo", b"\xff\xfe", 400, "failed to parse the request JSON"),
    ("echo", b'{"inputs":[]} x', 400, "must not be followed by other values. at 1"),
    ("echo", b'{"id":"\xff","inputs":[]}', 400, "UTF-8"),
    ("echo", b'{"id":"\\ud800","inputs":[]}', 400, "failed to parse the request JSON"),
    ("echo", b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "inputs[0]"),
    (
        "echo",
        b'{"inputs":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        400,
        "nesting depth exceeds maximum allowed limit (100)",
    ),
    ("echo", {}, 400, "inputs"),
    ("echo", {"inputs": None}, 400, "inputs: expected array, got null"),
    ("echo", {"inputs": {}}, 400, "inputs: expected array, got object"),
    ("echo", {"inputs": []}, 400, "missing required input(s) ['text']"),
    ("echo", {"inputs": [5]}, 400, "inputs[0]: expected object, got int"),
    ("echo", {**text_of("a"), "id": 7}, 400, "id: expected str, got int"),
    ("echo", {**text_of("a"), "outputs": None}, 400, "outputs: expected array, got null"),
    ("echo", {**text_of("a"), "outputs": ["output"]}, 400, "outputs[0]: expected object"),
    ("echo", {**text_of("a"), "outputs": [{}]}, 400, "outputs[0]"),
    ("echo", {**text_of("a"), "outputs": [{"name": "x"}]}, 400, "inference output 'x'"),
    ("echo", {**text_of("a"), "parameters": []}, 400, "parameters: expected object"),
    ("echo", {**text_of("a"), "parameters": None}, 400, "parameters: expected object"),
    # An input
    ("echo", without("name"), 400, "name"),
    ("echo", without("datatype"), 400, "datatype"),
    ("echo", without("shape"), 400, "shape"),
    ("echo", without("data"), 400, "But no field is set (input 'text')"),
    ("echo", bad(name=1), 400, "inputs[0].name: expected str, got int"),
    ("echo", bad(name="other"), 400, "unexpected inference input 'other' for model 'echo'"),
    ("echo", bad(datatype="FP32"), 400, "input 'text' data-type is 'FP32'"),
    ("echo", bad(datatype="STRING"), 400, "data-type is 'STRING'"),
    ("echo", bad(shape=1), 400, "inputs[0].shape: expected array, got int"),
    ("echo", bad(shape=[]), 400, "unexpected shape for input 'text'"),
    ("echo", bad(shape=[0], data=[]), 400, "0 rows"),
    ("echo", bad(shape=[-1]), 400, "inputs[0].shape[0]: expected int >= 0"),
    ("echo", bad(shape=[1.5]), 400, "inputs[0].shape[0]: expected int, got float"),
    ("echo", bad(shape=["1"]), 400, "inputs[0].shape[0]: expected int, got str"),
    ("echo", bad(shape=[2]), 400, "expected 2 string elements"),
    ("echo", bad(shape=[1, 2]), 400, "Expected [-1], got [1,2]"),
    ("echo", bad(shape=[2**70]), 400, "input 'text' has"),
    ("echo", bad(data=5), 400, "expected array, got number"),
    ("echo", bad(data=None), 400, "expected array, got null"),
    ("echo", bad(data=[5]), 400, "data[0]: expected str, got int"),
    ("echo", bad(data=["a", "b"]), 400, "unexpected number of string elements 2"),
    ("echo", bad(parameters=[]), 400, "inputs[0].parameters: expected object"),
    ("echo", bad(parameters={"binary_data_size": 5}), 400, "set 'data' 'binary_data_size'"),
    ("echo", bad(parameters={"shared_memory_region": "r"}), 400, "'shared_memory_region' ("),
    ("echo", {"inputs": [*bad()["inputs"], *bad()["inputs"]]}, 400, "'text' already exists"),
    (
        "add",
        {"inputs": [ADD_A]},
        400,
        "expected number of inputs between 2 and 3 but got 1 inputs for model 'add'. Got input(s)"
        " ['a'], but missing required input(s) ['b']. Please provide all required input(s).",
    ),
    ("add", {"inputs": [ADD_A, {**ADD_B, "shape": [1, 3]}]}, 400, "Expected [-1,2], got [1,3]"),
    (
        "add",
        {"inputs": [ADD_A, {**ADD_B, "shape": [2, 2], "data": [1, 2, 3, 4]}]},
        400,
        "input 'b' batch size does not match",
    ),
    ("square", {"inputs": [tensor("n", "INT64", [1], [1.5])]}, 400, "data[0]: expected int"),
    ("square", {"inputs": [tensor("n", "INT64", [1], [2**63])]}, 400, "input 'n'"),
    ("older", {"inputs": [tensor("person", "BYTES", [1], ["{"])]}, 400, "does not hold JSON"),
    ("older", {"inputs": [tensor("person", "BYTES", [1], [{"age": 1}])]}, 400, "name"),
    ("halves", {"inputs": [tensor("x", "FP16", [1, 2], [1, 2])]}, 400, "receiving FP16 data"),
    ("count", {"inputs": [tensor("n", "INT64", [1], [1])]}, 501, "generate_stream"),
    # Parameters
    ("echo", {**text_of("a"), "parameters": {"x": None}}, 400, "'x' has invalid type"),
    ("echo", {**text_of("a"), "parameters": {"x": [1]}}, 400, "'x' has invalid type"),
    ("echo", {**text_of("a"), "parameters": {"x": {}}}, 400, "'x' has invalid type"),
    ("echo", {**text_of("a"), "parameters": {"triton_x": 1}}, 400, "are reserved for Triton"),
    ("echo", {**text_of("a"), "parameters": {"priority": "1"}}, 400, "'priority'"),
    ("echo", {**text_of("a"), "parameters": {"priority": -1}}, 400, "'priority'"),
    ("echo", {**text_of("a"), "parameters": {"priority": True}}, 400, "'priority'"),
    ("echo", {**text_of("a"), "parameters": {"priority": 99}}, 400, "priority 99"),
    ("echo", {**text_of("a"), "parameters": {"timeout": -1}}, 400, "'timeout'"),
    ("echo", {**text_of("a"), "parameters": {"timeout": 1.5}}, 400, "'timeout'"),
    ("echo", {**text_of("a"), "parameters": {"timeout": "1"}}, 400, "'timeout'"),
    ("echo", {**text_of("a"), "parameters": {"sequence_id": 1.5}}, 400, "'sequence_id'"),
    ("echo", {**text_of("a"), "parameters": {"sequence_start": 1}}, 400, "'sequence_start'"),
    (
        "echo",
        {**text_of("a"), "parameters": {"binary_data_output": 1}},
        400,
        "'binary_data_output' must be a bool",
    ),
    (
        "echo",
        {**text_of("a"), "outputs": [{"name": "output", "parameters": {"binary_data": 1}}]},
        400,
        "output 'output': parameter 'binary_data'",
    ),
    (
        "echo",
        {**text_of("a"), "outputs": [{"name": "output", "parameters": {"classification": 1}}]},
        400,
        "due to unsupported type 'BYTES'",
    ),
    (
        "echo",
        {**text_of("a"), "outputs": [{"name": "output", "parameters": {"classification": "1"}}]},
        400,
        "output 'output': parameter 'classification'",
    ),
    # The model's own
    ("broken", text_of("mine"), 400, "say something else"),
    ("broken", text_of("x"), 500, "ZeroDivisionError: of the model"),
]


@pytest.mark.parametrize(("model", "body", "status", "text"), MALFORMED)
def test_a_malformed_request_is_refused_with_the_name_of_what_is_wrong(
    client: Client, model: str, body: Any, status: int, text: str
) -> None:
    answer = client.post(f"/v2/models/{model}/infer", body)
    assert answer.status == status, answer.body
    assert text in answer.error
    assert "Traceback" not in answer.error


BINARY_TEXT = {"name": "text", "datatype": "BYTES", "shape": [1]}


@pytest.mark.parametrize(
    ("size", "data", "length", "text"),
    [
        (5, pack_bytes([b"a"]), "ten", "Unable to parse Inference-Header-Content-Length, got: ten"),
        (5, pack_bytes([b"a"]), "-1", "Unable to parse"),
        (5, pack_bytes([b"a"]), "99999", "inference header size should be in range (0, "),
        (5, pack_bytes([b"a"]), "9" * 30, "Unable to parse"),
        (5, b"\x01\x00", None, "size for input 'text', expecting 3 additional bytes"),
        (5, b"", None, "expecting 5 additional bytes for model 'echo'"),
        (5, pack_bytes([b"a"]) + b"more", None, "additional input data for model 'echo'"),
        (
            6,
            pack_bytes([b"a"]) + b"x",
            None,
            "incomplete string length indicator for inference input 'text'",
        ),
        (5, struct.pack("<I", 9) + b"a", None, "expecting string of length 9 but only 1"),
        (5, pack_bytes([b"\xff"]), None, "input 'text' of model 'echo': an element is not UTF-8"),
        (-5, b"", None, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned"),
        ("5", b"", None, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned"),
        (
            True,
            b"",
            None,
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned",
        ),
        (2**70, b"", None, "additional bytes"),
    ],
)
def test_malformed_binary_data_is_refused(
    client: Client, size: Any, data: bytes, length: str | None, text: str
) -> None:
    request = {"inputs": [{**BINARY_TEXT, "parameters": {"binary_data_size": size}}]}
    body, headers = with_binary(request, data, length=length)
    answer = client.post("/v2/models/echo/infer", body, headers)
    assert answer.status == 400, answer.body
    assert text in answer.error


def test_binary_data_without_the_header_that_says_where_it_begins(client: Client) -> None:
    request = {"inputs": [{**BINARY_TEXT, "parameters": {"binary_data_size": 5}}]}
    answer = client.post("/v2/models/echo/infer", request)
    assert answer.status == 400
    assert "expecting 5 additional bytes" in answer.error


def test_a_raw_request_needs_a_model_with_one_input(client: Client) -> None:
    headers = {"inference-header-content-length": "0"}
    answer = client.post("/v2/models/add/infer", b"1234", headers)
    assert answer.status == 400
    assert "must only have 1 input (found 1) to be deduced but got 3 inputs" in answer.error


def test_a_request_without_inputs_is_one_row_of_a_model_whose_inputs_are_all_optional() -> None:
    @wherry.model(max_batch_size=4)
    def greet(name: list[str] | None = None) -> list[str]:
        return [f"hello {name or 'you'}"]

    with served(greet) as client:
        answer = client.post("/v2/models/greet/infer", {"inputs": []})
        assert answer.json["outputs"][0]["data"] == ["hello you"]
        assert client.post("/v2/models/greet/generate", {}).json["output"] == "hello you"


# generate


@pytest.mark.parametrize(
    ("model", "request_", "output"),
    [
        ("echo", {"text": "a"}, "a"),
        ("echo", {"text": ["a", "b"]}, ["a", "b"]),
        ("echo", {"parameters": {"text": "a"}}, "a"),
        ("square", {"n": 4}, 16),
        ("older", {"person": {"name": "Ada"}}, {"name": "Ada", "age": 1}),
        ("older", {"person": [{"name": "A"}, {"name": "B"}]}, None),
        ("words", {"text": "a b"}, ["a", "b"]),
        ("turns", {"messages": [{"role": "user"}]}, 1),
        ("turns", {"messages": [{"role": "user"}, {"role": "assistant"}]}, 2),
        ("turns", {"messages": []}, 0),
        ("turns", {"messages": [[{"role": "user"}], []]}, [1, 0]),
        ("count", {"n": 1}, 0),
    ],
)
def test_generate_takes_and_gives_plain_json(
    client: Client, model: str, request_: dict[str, Any], output: Any
) -> None:
    answer = client.post(f"/v2/models/{model}/generate", request_)
    assert answer.status == 200, answer.body
    members = answer.json
    assert (members["model_name"], members["model_version"]) == (model, "1")
    if output is not None:
        assert members["output"] == output


def test_generate_with_several_tensors_an_id_and_parameters(client: Client) -> None:
    request = {"id": "x1", "a": [1, 2], "b": [[1], [1]], "seed": 3, "note": "n"}
    answer = client.post("/v2/models/add/generate", request).json
    assert answer == {
        "id": "x1",
        "model_name": "add",
        "model_version": "1",
        "total": [2.0, 3.0],
        "names": "",
    }


@pytest.mark.parametrize(
    ("model", "body", "status", "text"),
    [
        ("echo", b"[]", 400, "expected object, got array"),
        ("echo", b"{", 400, "failed to parse"),
        ("echo", {}, 400, "missing required input(s) ['text']"),
        ("echo", {"text": 5}, 400, "data[0]: expected str, got int"),
        ("echo", {"text": None}, 400, "missing required input(s) ['text']"),
        ("echo", {"texts": "a"}, 400, "input(s). 'texts' is not an input."),
        ("echo", {"text": []}, 400, "0 rows"),
        ("add", {"b": ["x", 1], "a": True}, 400, "data[0]: expected float, got str"),
        ("echo", {"text": {"a": 1}}, 400, "attempt to access JSON non-string as string"),
        ("echo", {"text": "a", "x": [1]}, 400, "'x' has invalid type"),
        ("echo", {"text": "a", "id": 5}, 400, "id: expected str"),
        ("echo", {"text": "a", "triton_x": 5}, 400, "are reserved for Triton"),
        ("add", {"a": [1, 2, 3], "b": [1, 2]}, 400, "3 elements do not fill the shape [-1,2]"),
        ("add", {"a": [1, 2], "b": [1, 2, 3, 4]}, 400, "input 'b'"),
        ("square", {"n": "4"}, 400, "expected int, got str"),
        ("count", {"n": 2}, 400, "exactly 1 response"),
        ("count", {"n": 0}, 400, "exactly 1 response"),
        ("broken", {"text": "x"}, 500, "ZeroDivisionError"),
        ("nobody", {"text": "x"}, 404, "'nobody'"),
    ],
)
def test_a_malformed_generate_is_refused(
    client: Client, model: str, body: Any, status: int, text: str
) -> None:
    answer = client.post(f"/v2/models/{model}/generate", body)
    assert answer.status == status, answer.body
    assert text in answer.error


# On the way


def test_priority_timeout_and_other_parameters_reach_the_core() -> None:
    gate = Gate()
    with served(gated(gate, max_batch_size=1)) as client:
        path = "/v2/models/gated/infer"
        first = client.begin("POST", path, text_of("first"))
        gate.started()
        late = client.begin("POST", path, {**text_of("late"), "parameters": {"timeout": 1000}})
        last = client.begin("POST", path, {**text_of("last"), "parameters": {"priority": 9}})
        soon = client.begin("POST", path, {**text_of("soon"), "parameters": {"priority": 1}})
        late.answered.result(TIMEOUT)
        assert late.status == 504
        assert client.get("/v2/health/live").status == 200  # by now both of them are queued
        gate.open(3)
        for exchange in (first, soon, last):
            exchange.answered.result(TIMEOUT)
            assert exchange.status == 200
    assert gate.batches == [["first"], ["soon"], ["last"]]


@pytest.mark.parametrize(
    ("greedy", "polite"),
    [
        ({"x-tenant-id": "greedy"}, {"x-tenant-id": "polite"}),
        ({}, {"x-tenant-id": "polite"}),
        ({}, {"x-gateway-inference-fairness-id": "polite"}),
        ({"authorization": "Bearer one"}, {"authorization": "Bearer two"}),
        ({"x-api-key": "one"}, {"x-api-key": "two"}),
        ({"x-api-key": "one"}, {"x-api-key": "one", "x-tenant-id": "polite"}),
    ],
)
@pytest.mark.parametrize("parameters", [{}, {"priority": 5}])
def test_tenants_are_told_apart_by_their_header_or_their_key_and_served_in_turns(
    greedy: dict[str, str], polite: dict[str, str], parameters: dict[str, int]
) -> None:
    gate = Gate()
    with served(gated(gate, max_batch_size=1)) as client:
        path = "/v2/models/gated/infer"

        def begin(text: str, headers: dict[str, str]) -> MemoryExchange:
            return client.begin("POST", path, {**text_of(text), "parameters": parameters}, headers)

        exchanges = [begin("first", greedy)]
        gate.started()
        exchanges += [begin(f"greedy {n}", greedy) for n in range(3)]
        exchanges.append(begin("polite", polite))
        assert client.get("/v2/health/live").status == 200  # by now all of them are queued
        gate.open(5)
        for exchange in exchanges:
            exchange.answered.result(TIMEOUT)
            assert exchange.status == 200
    assert gate.batches == [["first"], ["polite"], ["greedy 0"], ["greedy 1"], ["greedy 2"]]


def test_a_header_may_set_the_timeout() -> None:
    gate = Gate()
    with served(gated(gate, max_batch_size=1)) as client:
        path = "/v2/models/gated/infer"
        first = client.begin("POST", path, text_of("first"))
        gate.started()
        assert client.post(path, text_of("late"), {"x-request-timeout": "0.001"}).status == 504
        refused = client.post(path, text_of("x"), {"x-request-timeout": "soon"})
        assert (refused.status, "X-Request-Timeout" in refused.error) == (400, True)
        gate.open()
        first.answered.result(TIMEOUT)


def test_a_client_that_leaves_cancels_its_request_and_nobody_elses() -> None:
    gate = Gate()
    with served(gated(gate, max_batch_size=1)) as client:
        path = "/v2/models/gated/infer"
        running = client.begin("POST", path, text_of("running"))
        gate.started()
        gone = client.begin("POST", path, text_of("gone"))
        stays = client.begin("POST", path, text_of("stays"))
        client.call(gone.leave)
        gate.open(2)
        running.answered.result(TIMEOUT)
        stays.answered.result(TIMEOUT)
        (counted,) = client.get("/v2/models/stats").json["model_stats"]
        assert client.app.admission.in_flight == 0
    assert gate.batches == [["running"], ["stays"]]
    assert counted["inference_stats"]["fail"]["count"] == 1


def test_a_full_queue_says_when_to_come_back() -> None:
    gate = Gate()
    with served(gated(gate, max_batch_size=1, max_queue_size=1)) as client:
        path = "/v2/models/gated/infer"
        running = client.begin("POST", path, text_of("running"))
        gate.started()
        queued = client.begin("POST", path, text_of("queued"))
        refused = client.post(path, text_of("refused"))
        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert "queue is full" in refused.error
        gate.open(2)
        for exchange in (running, queued):
            exchange.answered.result(TIMEOUT)
            assert exchange.status == 200


# Fuzzing


def valid_requests() -> list[tuple[str, bytes, dict[str, str]]]:
    """Of every kind: what a mutation starts from."""
    binary, headers = with_binary(
        {
            "inputs": [
                {**ADD_A, "parameters": {"binary_data_size": 8}, "data": None},
                ADD_B,
                {"name": "name", "datatype": "BYTES", "shape": [1], "data": ["n"]},
            ],
            "outputs": [{"name": "total", "parameters": {"binary_data": True}}],
        },
        bytes(8),
    )
    binary = binary.replace(b', "data": null', b"")
    headers = {"inference-header-content-length": str(len(binary) - 8)}
    texts, text_headers = with_binary(
        {
            "inputs": [{**BINARY_TEXT, "shape": [2], "parameters": {"binary_data_size": 15}}],
            "parameters": {"binary_data_output": True, "priority": 1, "timeout": 10_000_000},
        },
        pack_bytes([b"hello", b"ab"]),
    )
    plain = [
        ("echo/infer", text_of("a", "b")),
        ("add/infer", {"id": "1", "inputs": [ADD_A, ADD_B], "outputs": [{"name": "total"}]}),
        ("square/infer", {"inputs": [tensor("n", "INT64", [2], [1, -9])]}),
        ("older/infer", {"inputs": [tensor("person", "BYTES", [1], [{"name": "A", "age": 3}])]}),
        ("transpose/infer", {"inputs": [tensor("x", "FP32", [2, 1], [1.5, 2])]}),
        ("add/generate", {"a": [1, 2], "b": [3, 4], "name": "n", "x": 1}),
        ("count/generate_stream", {"n": 3}),
    ]
    return [
        ("add/infer", binary, headers),
        ("echo/infer", texts, text_headers),
        *((path, json.dumps(body).encode(), {}) for path, body in plain),
    ]


INTERESTING = (
    *(b'0 -1 1e999 null true {} [] [[]] "" 18446744073709551616 9223372036854775808'.split()),
    *(b'NaN -Infinity "\\ud800" \xff \x00 { } [ ] , : " \\'.split(b" ")),
)


def mutated(body: bytes, chance: random.Random) -> bytes:
    """A few small changes: bytes, tokens, pieces left out or doubled."""
    changed = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        to = min(len(changed), at + chance.randint(0, 8))
        kind = chance.randrange(5)
        if kind == 0:
            changed[at:to] = b""
        elif kind == 1:
            changed[at:at] = changed[at:to]
        elif kind == 2 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif kind == 3:
            changed[at:to] = chance.choice(INTERESTING)
        else:
            numbers = [i for i, byte in enumerate(changed) if byte in b"0123456789"]
            if numbers:
                index = chance.choice(numbers)
                changed[index : index + 1] = chance.choice(INTERESTING[:10])
    return bytes(changed)


@pytest.mark.parametrize("seed", seeds(4))
def test_no_mutation_of_a_request_breaks_the_server(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    sources = valid_requests()
    for path, body, headers in sources:
        answer = client.post(f"/v2/models/{path}", body, headers)
        assert answer.status == 200, (path, answer.body)

    for _ in range(250):
        path, body, headers = chance.choice(sources)
        body = mutated(body, chance)
        if headers and chance.random() < 0.3:
            headers = {"inference-header-content-length": str(chance.randint(0, len(body) + 2))}
        answer = client.post(f"/v2/models/{path}", body, headers)
        fine = answer.status < 500 or answer.status in (501, 503, 504)
        assert fine, (path, body, headers, answer.body)
        if answer.status >= 400 and "stream" not in path:
            assert answer.error


# Large requests

MANY = 40_000  # elements: far more than a slice holds


@wherry.model(max_batch_size=2**20)
def many_texts(x: list[str]) -> list[str]:
    return x


@wherry.model(max_batch_size=2**20)
def many_bytes(x: list[bytes]) -> list[bytes]:
    return x


@wherry.model(max_batch_size=2)
def many_numbers(
    x: Annotated[np.ndarray, wherry.FP32[-1]],
) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x


def large_inputs(datatype: str, shape: list[int], data: object) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}


def decoding_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that decode and encode from now on."""
    names: list[str] = []
    methods = [(ModelCodec, name) for name in ("decode", "encode")]
    for codec, method in [*methods, (GenerateCodec, "decode")]:
        original = getattr(codec, method)

        def noted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            names.append(threading.current_thread().name)
            return original(*args, **kwargs)

        monkeypatch.setattr(codec, method, noted)
    return names


@pytest.mark.parametrize("nested", [False, True])
def test_many_strings_as_json_come_back_and_never_touch_the_loop(
    nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f'{i},"\\[é' for i in range(MANY)]
    data = [[text] for text in texts] if nested else texts
    with served(many_texts) as client:
        names = decoding_threads(monkeypatch)
        body = large_inputs("BYTES", [MANY, 1], data)
        answer = client.post("/v2/models/many_texts/infer", body)
    assert answer.json["outputs"][0]["data"] == texts
    assert names == ["wherry-offload"] * 2


def test_many_strings_as_binary_data_come_back_and_never_touch_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [b"%d" % i for i in range(MANY)] + [b"x" * 300_000, b""]
    data = pack_bytes(texts)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "BYTES",
                    "shape": [len(texts)],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    with served(many_bytes) as client:
        names = decoding_threads(monkeypatch)
        answer = client.post(
            "/v2/models/many_bytes/infer",
            head + data,
            headers={"inference-header-content-length": str(len(head))},
        )
    length = int(answer.headers["inference-header-content-length"])
    assert answer.body[length:] == data
    assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [len(texts)]
    assert names == ["wherry-offload"] * 2


def test_many_numbers_as_json_come_back_with_what_json_has_no_number_for() -> None:
    numbers = [float(i) for i in range(MANY)]
    text = json.dumps(large_inputs("FP32", [1, MANY], [[math.nan, *numbers[1:]]])).encode()
    with served(many_numbers) as client:
        answer = client.post("/v2/models/many_numbers/infer", text)
    data = answer.json["outputs"][0]["data"]
    assert math.isnan(data[0])
    assert data[1:] == numbers[1:]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([*range(MANY), "x"], f"data[{MANY}]: expected float, got str"),
        ([*range(MANY)], f"needs {MANY + 1} elements, data has {MANY}"),
        ([*range(MANY), 1e300], "out of the range of FP32"),
    ],
)
def test_what_is_wrong_in_a_long_array_is_said_with_its_place(data: list[Any], said: str) -> None:
    with served(many_numbers) as client:
        body = large_inputs("FP32", [1, MANY + 1], data)
        answer = client.post("/v2/models/many_numbers/infer", body)
    assert answer.status == 400
    assert said in answer.error


def test_a_small_body_that_inflates_to_a_large_one_is_read_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = gzip.compress(json.dumps(large_inputs("FP32", [1, MANY], [0] * MANY)).encode())
    assert len(packed) < 1000
    with served(many_numbers) as client:
        names = decoding_threads(monkeypatch)
        answer = client.post(
            "/v2/models/many_numbers/infer", packed, headers={"content-encoding": "gzip"}
        )
    assert answer.json["outputs"][0]["data"] == [0.0] * MANY
    assert names == ["wherry-offload"] * 2


def test_a_large_answer_is_compressed_beside_the_loop() -> None:
    with served(many_numbers) as client:
        body = large_inputs("FP32", [1, MANY], [0] * MANY)
        answer = client.post(
            "/v2/models/many_numbers/infer", body, headers={"accept-encoding": "gzip"}
        )
    assert answer.headers["content-encoding"] == "gzip"
    data = json.loads(gzip.decompress(answer.body))["outputs"][0]["data"]
    assert data == [0.0] * MANY


def test_a_long_text_is_generated_from_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word, " * 20_000
    with served(many_texts) as client:
        names = decoding_threads(monkeypatch)
        answer = client.post("/v2/models/many_texts/generate", {"x": text})
    assert answer.json["many_texts" if "many_texts" in answer.json else "output"] == text
    assert names == ["wherry-offload"]


@pytest.mark.parametrize("member", ["unknown", "x", "parameters"])
def test_a_generate_request_of_too_many_values_is_refused_before_they_are_built(
    member: str,
) -> None:
    body = b'{"%b":[' % member.encode() + b"{}," * 2**19 + b"{}]}"
    with served(many_texts) as client:
        answer = client.post("/v2/models/many_texts/generate", body)
    assert answer.status == 413
    assert "values, names and brackets" in answer.error


def test_a_command_may_not_inflate_to_a_large_body() -> None:
    body = gzip.compress(b" " * 2**21)
    with served(echo) as client:
        answer = client.post("/v2/logging", body, {"content-encoding": "gzip"})
    assert answer.status == 413
