"""server/v2/shared_memory.py, http/infer_codec.py: tensors that do not travel."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Gate, gated
from tests.http_exchange import Client, served
from wherry.server.v2.common import Common
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.shared_memory import SharedMemory

SHM = Path("/dev/shm")
ROW = Annotated[np.ndarray, wherry.FP32[4]]

pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="POSIX shared memory has no folder here")


@wherry.model(max_batch_size=8)
def double(x: ROW) -> ROW:
    x *= 2  # its own copy: not the client's memory
    return x


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    return [t.upper() for t in text]


@pytest.fixture
def shared() -> Iterator[Path]:
    path = SHM / f"wherry-test-http-{os.getpid()}"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def client(shared: Path) -> Iterator[Client]:
    common = Common(shared_memory=SharedMemory(allowed=True))
    with served(double, shout, common=common) as client:
        body = {"key": f"/{shared.name}", "byte_size": 4096}
        assert client.post("/v2/systemsharedmemory/region/r/register", body).body == b""
        yield client
        common.shared_memory.unregister()


def where(offset: int, size: int, region: str = "r") -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }


def doubling(rows: int = 2, **source: Any) -> dict[str, Any]:
    given = source or {"parameters": where(16, rows * 16)}
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 4], **given}]}


def write(shared: Path, offset: int, data: bytes) -> None:
    with shared.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_an_input_and_an_output_stay_in_shared_memory(client: Client, shared: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    write(shared, 16, x.tobytes())
    body = {**doubling(), "outputs": [{"name": "output", "parameters": where(100, 32)}]}
    answer = client.post("/v2/models/double/infer", body)
    assert answer.json["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [2, 4]}]
    assert answer.content_type == "application/json"
    memory = shared.read_bytes()
    assert memory[100:132] == (x * 2).tobytes()
    assert memory[16:48] == x.tobytes()


def test_only_the_input_may(client: Client, shared: Path) -> None:
    write(shared, 16, np.ones(4, np.float32).tobytes())
    answer = client.post("/v2/models/double/infer", doubling(1))
    assert answer.json["outputs"][0]["data"] == [2, 2, 2, 2]


def test_only_the_output_may_and_wins_over_binary_data(client: Client, shared: Path) -> None:
    body = doubling(1, data=[1, 2, 3, 4])
    parameters = {**where(0, 64), "binary_data": True}
    body["outputs"] = [{"name": "output", "parameters": parameters}]
    answer = client.post("/v2/models/double/infer", body)
    assert "inference-header-content-length" not in answer.headers
    assert np.frombuffer(shared.read_bytes()[:16], np.float32).tolist() == [2, 4, 6, 8]


def test_texts_are_shared_with_their_lengths(client: Client, shared: Path) -> None:
    data = pack_bytes([b"ab", b"c"])
    write(shared, 1, data)  # at no multiple of anything
    given = {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": where(1, len(data))}
    outputs = [{"name": "output", "parameters": where(500, 100)}]
    answer = client.post("/v2/models/shout/infer", {"inputs": [given], "outputs": outputs})
    assert answer.status == 200
    assert shared.read_bytes()[500 : 500 + len(data)] == pack_bytes([b"AB", b"C"])


def test_classes_go_to_shared_memory_too(client: Client, shared: Path) -> None:
    body = doubling(1, data=[1, 4, 3, 2])
    parameters = {**where(0, 64), "classification": 1}
    body["outputs"] = [{"name": "output", "parameters": parameters}]
    (output,) = client.post("/v2/models/double/infer", body).json["outputs"]
    assert output == {"name": "output", "datatype": "BYTES", "shape": [1, 1]}
    assert shared.read_bytes()[:14] == pack_bytes([b"8.000000:1"])


def test_an_unaligned_array_is_read_as_well(client: Client, shared: Path) -> None:
    write(shared, 3, np.ones(4, np.float32).tobytes())
    body = doubling(1, parameters=where(3, 16))
    assert client.post("/v2/models/double/infer", body).json["outputs"][0]["data"] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (doubling(parameters=where(0, 32, "nobody")), 404, "region: 'nobody'"),
        (doubling(parameters=where(0, 31)), 400, "Expected 32, got 31"),
        (doubling(parameters=where(4096, 32)), 400, "input 'x': Invalid offset for shared"),
        (doubling(parameters=where(-1, 32)), 400, "Invalid offset + byte size"),
        (doubling(parameters={"shared_memory_region": "r"}), 400, "'shared_memory_byte_size'"),
        (doubling(parameters={**where(0, 32), "shared_memory_offset": "0"}), 400, "must be whole"),
        (doubling(parameters={**where(0, 32), "shared_memory_region": 1}), 400, "must be a string"),
        (doubling(parameters={**where(0, 32), "binary_data_size": 32}), 400, "But set 'bin"),
        (doubling(parameters=where(0, 32), data=[1]), 400, "But set 'data' 'sha"),
        (
            {**doubling(), "outputs": [{"name": "output", "parameters": where(0, 31)}]},
            400,
            "output 'output': the tensor has 32 bytes, shared_memory_byte_size is 31",
        ),
        (
            {**doubling(), "outputs": [{"name": "output", "parameters": where(0, 5000)}]},
            400,
            "output 'output': Invalid offset",
        ),
        (
            {**doubling(), "outputs": [{"name": "output", "parameters": where(0, 1, "x")}]},
            404,
            "output 'output': Unable to find shared memory region: 'x'",
        ),
    ],
)
def test_a_wrong_use_of_shared_memory_is_refused(
    client: Client, body: Any, status: int, text: str
) -> None:
    answer = client.post("/v2/models/double/infer", body)
    assert answer.status == status, answer.body
    assert text in answer.error


def test_a_region_may_be_unregistered_while_a_request_uses_it(shared: Path) -> None:
    gate = Gate()
    common = Common(shared_memory=SharedMemory(allowed=True))
    with served(gated(gate), common=common) as client:
        common.shared_memory.register("r", shared.name, 4096)
        write(shared, 0, pack_bytes([b"a"]))
        body = {
            "inputs": [
                {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": where(0, 5)}
            ],
            "outputs": [{"name": "output", "parameters": where(8, 100)}],
        }
        running = client.begin("POST", "/v2/models/gated/infer", body)
        gate.started()
        assert client.post("/v2/systemsharedmemory/unregister").status == 200
        shared.unlink()
        gate.open()
        running.answered.result(TIMEOUT)
        assert running.status == 200
        assert client.get("/v2/systemsharedmemory/status").json == []


REGION = "/v2/systemsharedmemory/region/other"


def test_regions_are_registered_told_and_forgotten(client: Client, shared: Path) -> None:
    body = {"key": shared.name, "byte_size": 8, "offset": 4}
    assert client.post(f"{REGION}/register", body).status == 200
    told = {"name": "other", "key": shared.name, "offset": 4, "byte_size": 8}
    assert client.get(f"{REGION}/status").json == [told]
    assert told in client.get("/v2/systemsharedmemory/status").json
    again = client.post(f"{REGION}/register", body)
    assert (again.status, again.error) == (400, "shared memory region 'other' already in manager")
    for _ in range(2):
        assert client.post(f"{REGION}/unregister").body == b""
    answer = client.get(f"{REGION}/status")
    assert answer.status == 404
    assert answer.error == "Unable to find system shared memory region: 'other'"
    assert len(client.get("/v2/systemsharedmemory/status").json) == 1
    client.post("/v2/systemsharedmemory/unregister")
    assert client.get("/v2/systemsharedmemory/status").json == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "'key' is missing"),
        (b"[]", "expected object"),
        ({}, "'key' is missing"),
        ({"key": "k"}, "'byte_size' is missing"),
        ({"key": 1, "byte_size": 1}, "'key' must be a string"),
        ({"key": "k", "byte_size": "1"}, "'byte_size' must be a whole number"),
        ({"key": "k", "byte_size": True}, "'byte_size' must be a whole number"),
        ({"key": "k", "byte_size": 1, "offset": None}, "'offset' must be a whole number"),
        ({"key": "../x", "byte_size": 1}, "not a name of a shared memory object"),
        ({"key": "wherry-nobody", "byte_size": 1}, "Unable to open shared memory region"),
    ],
)
def test_a_region_that_cannot_be_registered(client: Client, body: Any, text: str) -> None:
    answer = client.post(f"{REGION}/register", body)
    assert answer.status == 400
    assert text in answer.error


def test_cuda_memory_is_refused_and_forgotten_without_fuss(client: Client) -> None:
    cuda = "/v2/cudasharedmemory"
    assert client.get(f"{cuda}/status").json == []
    assert client.get(f"{cuda}/region/r/status").status == 404
    assert client.post(f"{cuda}/unregister").status == 200
    assert client.post(f"{cuda}/region/r/unregister").status == 200
    body = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4}
    answer = client.post(f"{cuda}/region/r/register", body)
    assert answer.status == 501
    assert "use system shared memory" in answer.error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/systemsharedmemory/status", 405),
        ("GET", "/v2/systemsharedmemory/unregister", 405),
        ("GET", "/v2/systemsharedmemory/region/r/register", 405),
        ("POST", "/v2/systemsharedmemory/register", 400),
        ("GET", "/v2/systemsharedmemory", 404),
        ("GET", "/v2/systemsharedmemory/region/r", 404),
        ("GET", "/v2/systemsharedmemory/region//status", 404),
        ("GET", "/v2/systemsharedmemory/region/a/b/status", 404),
        ("GET", "/v2/systemsharedmemory/region/r/other", 404),
        ("GET", "/v2/othersharedmemory/region/r/status", 404),
    ],
)
def test_other_paths_and_methods_are_not_there(
    client: Client, method: str, path: str, status: int
) -> None:
    assert client.ask(method, path).status == status


def test_it_is_off_unless_allowed(shared: Path) -> None:
    with served(double) as client:
        assert client.get("/v2/systemsharedmemory/status").json == []
        body = {"key": shared.name, "byte_size": 1}
        answer = client.post(f"{REGION}/register", body)
        assert answer.status == 501
        assert "--allow-client-shm" in answer.error
        assert client.post("/v2/models/double/infer", doubling()).status == 501
        assert "system_shared_memory" not in client.get("/v2").json["extensions"]
