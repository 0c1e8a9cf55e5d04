"""Triton's own HTTP clients against a real server: sockets, listener, application, models."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Annotated, Any, TypedDict

import gevent
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as triton_shm
from tritonclient.utils import InferenceServerException

import wherry
from tests.every_datatype import NUMBERS, echo_of, shout
from tests.fakes import TIMEOUT
from wherry.server.access.api_keys import ApiKeys
from wherry.server.http.listener import Listener
from wherry.server.http_app import HttpApp
from wherry.server.v2.common import Common
from wherry.server.v2.shared_memory import SharedMemory
from wherry.testing import running_server

NEVER_AS_JSON = ("FP16", "BF16")


@wherry.model(max_batch_size=8)
def reverse(data: list[bytes]) -> list[bytes]:
    return [d[::-1] for d in data]


IMAGE = Annotated[np.ndarray, wherry.FP32[3, 224, 224]]


@wherry.model(max_batch_size=8)
def double(image: IMAGE) -> IMAGE:
    image *= 2  # a model may write into its input
    return image


class Sums(TypedDict):
    sum: Annotated[np.ndarray, wherry.INT32[2]]
    difference: Annotated[np.ndarray, wherry.INT32[2]]


@wherry.model(max_batch_size=8)
def simple(
    a: Annotated[np.ndarray, wherry.INT32[2]], b: Annotated[np.ndarray, wherry.INT32[2]]
) -> Sums:
    return {"sum": a + b, "difference": a - b}


@contextmanager
def listening(runtime: wherry.Runtime, **options: Any) -> Iterator[str]:
    """The application behind a listener, in a thread: host and port."""
    address: Future[str] = Future()
    stop = asyncio.Event()

    async def live() -> None:
        listener = Listener(HttpApp(runtime, **options))
        await listener.start(port=0)
        address.set_result(listener.addresses[0])
        await stop.wait()
        await listener.drain(1.0)

    with asyncio.Runner() as runner:
        thread = threading.Thread(target=lambda: runner.run(live()), name="test-server")
        thread.start()
        try:
            yield address.result(TIMEOUT)
        finally:
            runner.get_loop().call_soon_threadsafe(stop.set)
            thread.join()


@pytest.fixture(scope="module", autouse=True)
def _one_for_the_process() -> None:
    """What Triton's client makes once is not a leak of the test that is the first."""
    gevent.get_hub()
    resource_tracker.ensure_running()  # multiprocessing's, of shared memory


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    models: list[wherry.Model] = [shout, reverse, simple, double]
    models += [echo_of(datatype) for datatype in NUMBERS]
    with wherry.Runtime(*models) as runtime, listening(runtime) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as client:
        yield client


def given(name: str, datatype: str, array: Any, *, binary: bool) -> Any:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def texts(*values: str, binary: bool = True) -> list[Any]:
    return [given("text", "BYTES", np.array(values, object), binary=binary)]


def test_health_and_descriptions(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("shout")
    assert client.is_model_ready("shout", "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "wherry"
    assert client.get_model_metadata("simple")["inputs"][0] == {
        "name": "a",
        "datatype": "INT32",
        "shape": [-1, 2],
    }
    assert client.get_model_config("simple")["max_batch_size"] == 8
    client.infer("shout", texts("a"))
    (counted,) = client.get_inference_statistics("shout")["model_stats"]
    assert counted["inference_stats"]["success"]["count"] >= 1


@pytest.mark.parametrize(
    ("datatype", "binary"),
    [
        *((datatype, True) for datatype in NUMBERS),
        *((datatype, False) for datatype in NUMBERS if datatype not in NEVER_AS_JSON),
    ],
)
def test_every_numeric_datatype_both_ways(client: Any, datatype: str, binary: bool) -> None:
    kind = getattr(wherry, datatype).dtype
    if datatype == "BF16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    array = np.array([NUMBERS[datatype]], kind)
    inputs = [given("x", datatype, array, binary=binary)]
    outputs = [triton.InferRequestedOutput("output", binary_data=binary)]
    result = client.infer(f"echo_{datatype}", inputs, outputs=outputs)
    got = result.as_numpy("output")
    assert result.get_output("output")["datatype"] == datatype
    np.testing.assert_array_equal(got, array)
    assert got.shape == (1, 3)


@pytest.mark.parametrize("into", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("out", [True, False], ids=["binary-out", "json-out"])
def test_text_both_ways(client: Any, into: bool, out: bool) -> None:
    outputs = [triton.InferRequestedOutput("output", binary_data=out)]
    result = client.infer("shout", texts("straße", "", "x" * 5000, binary=into), outputs=outputs)
    got = [v.decode() if isinstance(v, bytes) else v for v in result.as_numpy("output")]
    assert got == ["STRASSE", "", "X" * 5000]


def test_bytes_that_are_no_text(client: Any) -> None:
    data = np.array([b"\xff\x00\x01", b""], object)
    result = client.infer("reverse", [given("data", "BYTES", data, binary=True)])
    assert list(result.as_numpy("output")) == [b"\x01\x00\xff", b""]


def test_several_tensors_an_id_and_chosen_outputs(client: Any) -> None:
    a, b = np.array([[5, 6]], np.int32), np.array([[1, 2]], np.int32)
    inputs = [given("b", "INT32", b, binary=True), given("a", "INT32", a, binary=False)]
    result = client.infer("simple", inputs, request_id="r1")
    assert result.get_response()["id"] == "r1"
    assert result.as_numpy("sum").tolist() == [[6, 8]]
    assert result.as_numpy("difference").tolist() == [[4, 4]]

    outputs = [triton.InferRequestedOutput("difference", class_count=1)]
    result = client.infer("simple", inputs, outputs=outputs)
    assert result.as_numpy("sum") is None
    assert result.as_numpy("difference").tolist() == [[b"4:0"]]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression_both_ways(client: Any, coding: str) -> None:
    long = "a" * 10_000
    result = client.infer(
        "shout",
        texts(long),
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert result.as_numpy("output").tolist() == [long.upper().encode()]


def test_many_asynchronous_requests(address: str) -> None:
    with triton.InferenceServerClient(address, concurrency=8) as client:
        pending = [client.async_infer("shout", texts(f"text {i}")) for i in range(40)]
        got = [request.get_result().as_numpy("output")[0].decode() for request in pending]
    assert got == [f"TEXT {i}" for i in range(40)]


def test_priority_timeout_and_parameters(client: Any) -> None:
    result = client.infer(
        "shout", texts("a"), priority=1, timeout=10_000_000, parameters={"mine": "x"}
    )
    assert result.as_numpy("output").tolist() == [b"A"]


@pytest.mark.parametrize(
    ("model", "inputs", "status", "text"),
    [
        ("nobody", texts("a"), "404", "Request for unknown model: 'nobody' is not found"),
        ("shout", texts("bad"), "400", "that is a bad word"),
        ("shout", [], "400", "missing required input"),
        (
            "shout",
            [given("text", "INT32", np.zeros(1, np.int32), binary=True)],
            "400",
            "input 'text' data-type is 'INT32'",
        ),
        (
            "simple",
            [given("a", "INT32", np.zeros((1, 3), np.int32), binary=True)],
            "400",
            "unexpected shape for input 'a' for model 'simple'. Expected [-1,2], got [1,3]",
        ),
    ],
)
def test_errors_are_what_the_client_raises(
    client: Any, model: str, inputs: list[Any], status: str, text: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs)
    assert caught.value.status() == status
    assert text in caught.value.message()


def test_an_unwanted_priority_is_an_error(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="priority 99"):
        client.infer("shout", texts("a"), priority=99)


def test_a_large_tensor(client: Any) -> None:
    rng = np.random.default_rng(0)
    array = rng.random((4, 3, 224, 224), np.float32)
    result = client.infer("double", [given("image", "FP32", array, binary=True)])
    np.testing.assert_array_equal(result.as_numpy("output"), array * 2)


def test_system_shared_memory_both_ways() -> None:
    x = np.arange(4 * 3 * 224 * 224, dtype=np.float32).reshape(4, 3, 224, 224)
    common = Common(shared_memory=SharedMemory(allowed=True))
    into = triton_shm.create_shared_memory_region("in", f"/wherry-in-{os.getpid()}", x.nbytes)
    out = triton_shm.create_shared_memory_region("out", f"/wherry-out-{os.getpid()}", x.nbytes)
    try:
        with (
            wherry.Runtime(double) as runtime,
            listening(runtime, common=common) as address,
            triton.InferenceServerClient(address) as client,
        ):
            for name in ("in", "out"):
                key = f"/wherry-{name}-{os.getpid()}"
                client.register_system_shared_memory(name, key, x.nbytes)
            told = client.get_system_shared_memory_status()
            assert {region["name"]: region["byte_size"] for region in told} == {
                "in": x.nbytes,
                "out": x.nbytes,
            }
            triton_shm.set_shared_memory_region(into, [x])
            image = triton.InferInput("image", list(x.shape), "FP32")
            image.set_shared_memory("in", x.nbytes)
            wanted = triton.InferRequestedOutput("output")
            wanted.set_shared_memory("out", x.nbytes)
            for _ in range(3):
                result = client.infer("double", [image], outputs=[wanted])
                output = result.get_output("output")
                got = triton_shm.get_contents_as_numpy(out, np.float32, output["shape"])
                np.testing.assert_array_equal(got, x * 2)
            del got  # a view of it: else it could not be unmapped
            still = triton_shm.get_contents_as_numpy(into, np.float32, list(x.shape))
            np.testing.assert_array_equal(still, x)
            del still
            with pytest.raises(InferenceServerException, match="already in manager"):
                client.register_system_shared_memory("in", f"/wherry-in-{os.getpid()}", 1)
            client.unregister_system_shared_memory("in")
            with pytest.raises(InferenceServerException, match="region: 'in'"):
                client.infer("double", [image])
            client.unregister_system_shared_memory()
            assert client.get_system_shared_memory_status() == []
            assert client.get_cuda_shared_memory_status() == []
            with pytest.raises(InferenceServerException, match="no CUDA shared memory"):
                client.register_cuda_shared_memory("c", b"AAAA", 0, 64)
            client.unregister_cuda_shared_memory()
    finally:
        triton_shm.destroy_shared_memory_region(into)
        triton_shm.destroy_shared_memory_region(out)


DOUBLE = """
from typing import Annotated

import numpy as np

import wherry

ROW = Annotated[np.ndarray, wherry.FP32[100_000]]


@wherry.model(max_batch_size=4)
def double(x: ROW) -> ROW:
    x *= 2
    return x
"""


@pytest.mark.slow
@pytest.mark.parametrize("fronts", ["0", "2"])
def test_shared_memory_reaches_a_worker_process_and_flags_reach_the_server(
    fronts: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(DOUBLE)
    x = np.ones((1, 100_000), np.float32)
    key = f"/wherry-both-{fronts}-{os.getpid()}"
    region = triton_shm.create_shared_memory_region("both", key, 2 * x.nbytes)
    flags = ["--allow-client-shm", "--http-restricted-api", "logging:admin-key=secret"]
    flags += ["--fronts", fronts]
    try:
        with (
            running_server("app.py", *flags, cwd=str(tmp_path)) as url,
            triton.InferenceServerClient(url.removeprefix("http://")) as client,
        ):
            client.register_system_shared_memory("both", key, 2 * x.nbytes)
            triton_shm.set_shared_memory_region(region, [x])
            given = triton.InferInput("x", list(x.shape), "FP32")
            given.set_shared_memory("both", x.nbytes)
            wanted = triton.InferRequestedOutput("output")
            wanted.set_shared_memory("both", x.nbytes, x.nbytes)
            for _ in range(3):
                client.infer("double", [given], outputs=[wanted])
            got = triton_shm.get_contents_as_numpy(region, np.float32, [2, 100_000])
            assert (got[0] == 1).all()
            assert (got[1] == 2).all()
            del got
            with pytest.raises(InferenceServerException, match="expecting header 'admin-key'"):
                client.get_log_settings()
            assert client.get_log_settings({"admin-key": "secret"})["log_info"]
    finally:
        triton_shm.destroy_shared_memory_region(region)


def test_sequences_trace_and_log_settings(client: Any) -> None:
    for id, start, end in ((7, True, False), ("seven", False, True)):
        result = client.infer(
            "shout", texts("a"), sequence_id=id, sequence_start=start, sequence_end=end
        )
        assert result.as_numpy("output").tolist() == [b"A"]
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    changed = client.update_trace_settings("shout", {"trace_rate": "7", "trace_count": None})
    assert changed["trace_rate"] == client.get_trace_settings("shout")["trace_rate"] == "7"
    with pytest.raises(InferenceServerException, match="unknown model"):
        client.get_trace_settings("nobody")
    before = client.get_log_settings()
    client.update_log_settings({"log_info": before["log_info"]})
    assert client.get_log_settings() == before


def test_keys_are_sent_as_a_header() -> None:
    with (
        wherry.Runtime(shout) as runtime,
        listening(runtime, common=Common(keys=ApiKeys(["k"]))) as address,
        triton.InferenceServerClient(address) as client,
    ):
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="API key"):
            client.infer("shout", texts("a"))
        headers = {"Authorization": "Bearer k"}
        assert client.infer("shout", texts("a"), headers=headers).as_numpy("output") == [b"A"]


def test_the_asyncio_client(address: str) -> None:
    async def ask() -> list[bytes]:
        async with triton_aio.InferenceServerClient(address) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_config("shout"))["max_batch_size"] == 8
            results = await asyncio.gather(
                *(client.infer("shout", texts(f"text {i}", binary=i % 2 == 0)) for i in range(30))
            )
            with pytest.raises(InferenceServerException, match="bad word"):
                await client.infer("shout", texts("bad"))
            return [result.as_numpy("output")[0] for result in results]

    assert asyncio.run(ask()) == [f"TEXT {i}".encode() for i in range(30)]
