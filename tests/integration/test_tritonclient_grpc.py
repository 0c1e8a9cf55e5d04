"""Triton's own gRPC clients against a real server: HTTP/2, listener, application, models."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from grpc import StatusCode
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

import wherry
from tests.every_datatype import NUMBERS, echo_of, shout
from tests.fakes import TIMEOUT, Gate, gated
from wherry.server.connections.limits import Limits
from wherry.server.server import Server
from wherry.testing.servers import local_server

IMAGE = Annotated[np.ndarray, wherry.FP32[-1]]


@wherry.model(max_batch_size=8)
def double(image: IMAGE) -> IMAGE:
    image *= 2  # a model may write into its input
    return image


class Scores(TypedDict):
    scores: Annotated[np.ndarray, wherry.FP32[3]]
    name: list[str]


@wherry.model(max_batch_size=8)
def classify(text: list[str]) -> Scores:
    return {"scores": np.array([[0.1, 0.7, 0.2]] * len(text), np.float32), "name": text}


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.fixture(scope="session", autouse=True)
def _what_is_made_once_for_the_process() -> None:
    """libuv's pipe for signals, gRPC's pollers: no leak of the first test."""

    async def ask(url: str) -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            assert await client.is_server_live()

    with serving(shout) as (server, client):
        assert client.is_server_live()
        asyncio.run(ask(server.grpc_url))
        port = int(server.grpc_url.rpartition(":")[2])
        with pytest.raises(OSError, match="taken"):
            Server(shout, port=0, grpc_port=port).start()


@contextmanager
def serving(
    *models: wherry.Model, **options: Any
) -> Iterator[tuple[Server, triton.InferenceServerClient]]:
    with (
        local_server(*models, grpc_port=0, **options) as server,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        yield server, client


@contextmanager
def calling(*models: wherry.Model, **options: Any) -> Iterator[triton.InferenceServerClient]:
    with serving(*models, **options) as (_, client):
        yield client


def tensor(name: str, values: Any, datatype: str) -> triton.InferInput:
    array = np.array(values, dtype=object) if datatype == "BYTES" else np.asarray(values)
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def words(*texts: str) -> list[triton.InferInput]:
    return [tensor("text", list(texts), "BYTES")]


def test_a_client_asks_all_there_is_to_ask() -> None:
    with calling(shout, count) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("shout")
        assert client.is_model_ready("shout", "1")
        assert not client.is_model_ready("nope")
        assert not client.is_model_ready("shout", "7")
        assert client.get_server_metadata().name == "wherry"
        metadata = client.get_model_metadata("shout")
        assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
            ("text", "BYTES", [-1])
        ]
        config = client.get_model_config("shout").config
        assert (config.name, config.backend, config.max_batch_size) == ("shout", "python", 8)
        assert config.input[0].data_type == 13  # TYPE_STRING
        assert config.HasField("dynamic_batching")
        assert client.get_model_config("count").config.model_transaction_policy.decoupled
        index = client.get_model_repository_index().models
        assert [(m.name, m.version, m.state) for m in index] == [
            ("count", "1", "READY"),
            ("shout", "1", "READY"),
        ]
        assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
        assert client.get_log_settings().settings["log_error"].bool_param
        assert not client.get_system_shared_memory_status().regions
        assert not client.get_cuda_shared_memory_status().regions


def test_texts_come_back_in_the_shape_they_were_sent_in() -> None:
    with calling(shout) as client:
        result = client.infer("shout", words("a", "é", ""), request_id="7")
        assert result.as_numpy("output").tolist() == [b"A", "É".encode(), b""]
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("7", "shout", "1")


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("answers", ["none", "gzip"])
def test_messages_may_be_compressed_both_ways(compression: str | None, answers: str) -> None:
    values = np.zeros((4, 50_000), np.float32)
    with calling(double, grpc_compression=answers) as client:
        given = [tensor("image", values, "FP32")]
        result = client.infer("double", given, compression_algorithm=compression)
        assert np.array_equal(result.as_numpy("output"), values)


def test_every_datatype_passes_unchanged() -> None:
    with calling(*(echo_of(datatype) for datatype in NUMBERS)) as client:
        for datatype, values in NUMBERS.items():
            given = np.array([values, values], triton_to_np_dtype(datatype))
            result = client.infer(f"echo_{datatype}", [tensor("x", given, datatype)])
            assert result.as_numpy("output").tolist() == given.tolist()


def test_typed_contents_are_taken_and_answered_as_raw_contents() -> None:
    request = service_pb2.ModelInferRequest(model_name="shout")
    given = request.inputs.add(name="text", datatype="BYTES", shape=[2])
    given.contents.bytes_contents[:] = [b"a", b"b"]
    with calling(shout) as client:
        response = client._client_stub.ModelInfer(request)
    assert response.raw_output_contents == [b"\x01\0\0\0A\x01\0\0\0B"]


def test_outputs_are_chosen_and_classified() -> None:
    with calling(classify) as client:
        wanted = [triton.InferRequestedOutput("scores", class_count=2)]
        result = client.infer("classify", words("x", "y"), outputs=wanted)
        assert result.as_numpy("scores").tolist() == [[b"0.700000:1", b"0.200000:2"]] * 2
        assert result.as_numpy("name") is None


def test_a_message_of_many_megabytes_passes_up_to_the_limit() -> None:
    values = np.zeros((1, 6_000_000), np.float32)  # gRPC's own default limit is 4 MiB
    with calling(double, limits=Limits(max_body_bytes=25_000_000)) as client:
        result = client.infer("double", [tensor("image", values, "FP32")])
        assert result.as_numpy("output").shape == values.shape
        with pytest.raises(InferenceServerException, match="larger than max") as caught:
            client.infer("double", [tensor("image", np.zeros((2, 6_000_000), np.float32), "FP32")])
        assert caught.value.status() == str(StatusCode.RESOURCE_EXHAUSTED)
        bomb = [tensor("image", np.zeros((4, 6_000_000), np.float32), "FP32")]  # 100 KB on the wire
        with pytest.raises(InferenceServerException, match="larger than max") as caught:
            client.infer("double", bomb, compression_algorithm="gzip")
        assert caught.value.status() == str(StatusCode.RESOURCE_EXHAUSTED)
        assert client.infer("double", [tensor("image", values, "FP32")]) is not None


@pytest.mark.parametrize(
    ("model", "version", "text", "code", "message"),
    [
        ("shout", "", "bad", StatusCode.INVALID_ARGUMENT, "that is a bad word"),
        ("nope", "", "x", StatusCode.NOT_FOUND, "unknown model: 'nope' is not found"),
        ("shout", "7", "x", StatusCode.NOT_FOUND, "'shout' version 7 is not found"),
        ("shout", "one", "x", StatusCode.INVALID_ARGUMENT, "failed to get model version from"),
        ("count", "", "x", StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with"),
        ("n" * 100_000, "", "x", StatusCode.NOT_FOUND, "unknown model: 'nnnn"),
        ("caf\u00e9\n\u20ac", "", "x", StatusCode.NOT_FOUND, "caf\u00e9"),
    ],
)
def test_errors_carry_their_code_and_text(
    model: str, version: str, text: str, code: StatusCode, message: str
) -> None:
    with calling(shout, count) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, words(text), model_version=version)
        assert caught.value.status() == str(code)
        assert message in caught.value.message()
        assert client.is_server_live()


# Streams


class Stream:
    """The answers of one stream, as they come."""

    def __init__(self, client: triton.InferenceServerClient, **options: Any) -> None:
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put((result, error)), **options)

    def next(self) -> Any:
        result, error = self._answers.get(timeout=TIMEOUT)
        return error if result is None else result.get_response()


def final(response: Any) -> bool:
    flag: bool = response.parameters["triton_final_response"].bool_param
    return flag


def numbers(response: Any) -> list[int]:
    raw = b"".join(response.raw_output_contents)
    return [int(n) for n in np.frombuffer(raw, np.int64)]


def test_a_generator_model_streams_its_answers_in_order() -> None:
    with calling(count) as client:
        stream = Stream(client)
        client.async_stream_infer(
            "count", [tensor("n", [3], "INT64")], request_id="a", enable_empty_final_response=True
        )
        answers = [stream.next() for _ in range(4)]
        assert [numbers(a) for a in answers] == [[0], [1], [2], []]
        assert [final(a) for a in answers] == [False, False, False, True]
        assert {a.id for a in answers} == {"a"}
        client.stop_stream()


def test_an_empty_end_is_told_only_to_who_wants_it() -> None:
    with calling(count) as client:
        stream = Stream(client)
        client.async_stream_infer("count", [tensor("n", [1], "INT64")], request_id="a")
        assert numbers(stream.next()) == [0]
        client.async_stream_infer("count", [tensor("n", [2], "INT64")], request_id="b")
        assert [stream.next().id for _ in range(2)] == ["b", "b"]
        client.stop_stream()


def test_an_error_is_a_message_and_the_stream_goes_on() -> None:
    with calling(shout, count) as client:
        stream = Stream(client)
        client.async_stream_infer("shout", words("bad"), request_id="1")
        error = stream.next()
        assert "that is a bad word" in str(error)
        client.async_stream_infer("shout", words("good"), request_id="2")
        answer = stream.next()
        assert (answer.id, final(answer)) == ("2", True)
        client.stop_stream()


def test_a_client_may_ask_that_the_first_error_ends_the_stream() -> None:
    with calling(shout) as client:
        stream = Stream(client, headers={"triton_grpc_error": "true"})
        client.async_stream_infer("nope", words("x"))
        error = stream.next()
        assert error.status() == str(StatusCode.NOT_FOUND)
        client.stop_stream()


def test_requests_of_one_stream_run_at_once() -> None:
    gate = Gate()
    with calling(gated(gate, max_batch_size=1, instances=2)) as client:
        stream = Stream(client)
        client.async_stream_infer("gated", words("a"), request_id="a")
        client.async_stream_infer("gated", words("b"), request_id="b")
        gate.started()
        gate.started()  # both before either is answered
        gate.open(2)
        assert {stream.next().id, stream.next().id} == {"a", "b"}
        client.stop_stream()


def test_a_slow_reader_holds_its_generator_and_nobody_else() -> None:
    """It stops at the reply's window, and goes on when the client reads."""
    yielded = threading.Semaphore(0)

    @wherry.model
    def endless(n: int) -> Iterator[IMAGE]:
        for _ in range(n):
            yielded.release()
            yield np.zeros(250_000, np.float32)

    reading = threading.Event()
    seen = 0

    def slow(result: Any, error: Any) -> None:
        nonlocal seen
        assert reading.wait(TIMEOUT)
        seen += 1
        if seen == 200:
            done.set()

    done = threading.Event()
    with calling(endless, shout) as client:
        client.start_stream(slow)
        client.async_stream_infer("endless", [tensor("n", [200], "INT64")])
        for _ in range(4):  # 4 MiB of responses may be unread
            assert yielded.acquire(timeout=TIMEOUT)
        assert client.infer("shout", words("x")).as_numpy("output").tolist() == [b"X"]
        reading.set()
        assert done.wait(TIMEOUT)
        client.stop_stream()


# Clients that leave, deadlines, the end


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open(1000)


def test_a_request_whose_client_has_left_is_not_computed(gate: Gate) -> None:
    with serving(gated(gate, max_batch_size=1)) as (server, client):
        results: queue.Queue[Any] = queue.Queue()

        def done(result: Any, error: Any) -> None:
            results.put(error)

        client.async_infer("gated", words("first"), done)
        gate.started()
        leaving = client.async_infer("gated", words("second"), done)
        until(client, lambda: server._applications.common.admission.in_flight == 2)
        leaving.cancel()
        assert "Locally cancelled" in str(results.get(timeout=TIMEOUT))
        until(client, lambda: server._applications.common.admission.in_flight == 1)
        gate.open(1000)
        assert results.get(timeout=TIMEOUT) is None
        assert client.infer("gated", words("third")).as_numpy("output").tolist() == [b"THIRD"]
        assert gate.batches == [["first"], ["third"]]


def test_a_stream_whose_client_has_left_ends_its_requests(gate: Gate) -> None:
    with serving(gated(gate, max_batch_size=1)) as (server, client):
        Stream(client)
        for text in ("running", "waiting", "waiting too"):
            client.async_stream_infer("gated", words(text))
        gate.started()
        until(client, lambda: server._applications.common.admission.in_flight == 3)
        stream = client._stream
        client.stop_stream(cancel_requests=True)
        stream._request_queue.put(None)  # else tritonclient's thread waits for a request for ever
        until(client, lambda: server._applications.common.admission.in_flight == 0)
        gate.open(1000)
        assert client.infer("gated", words("after")).as_numpy("output").tolist() == [b"AFTER"]
        assert gate.batches == [["running"], ["after"]]


def until(client: triton.InferenceServerClient, condition: Callable[[], bool]) -> None:
    """What a client does travels on its own; ask the server something else until it is there. A
    wait in vain is pytest-timeout's to end."""
    while not condition():
        assert client.is_server_live()


def test_a_deadline_is_the_requests_timeout(gate: Gate) -> None:
    with calling(gated(gate, max_batch_size=1)) as client:
        client.async_infer("gated", words("first"), lambda result, error: None)
        gate.started()
        with pytest.raises(InferenceServerException) as caught:
            client.infer("gated", words("late"), client_timeout=0.05)
        assert caught.value.status() == str(StatusCode.DEADLINE_EXCEEDED)
        with pytest.raises(InferenceServerException, match="gated") as caught:
            client.infer("gated", words("late"), timeout=50_000)  # microseconds
        assert caught.value.status() == str(StatusCode.DEADLINE_EXCEEDED)
        gate.open(1000)
        assert client.infer("gated", words("next")) is not None
        assert gate.batches == [["first"], ["next"]]


def test_what_has_begun_is_answered_when_the_server_stops(gate: Gate) -> None:
    results: queue.Queue[Any] = queue.Queue()
    with serving(gated(gate, max_batch_size=8), drain_timeout=TIMEOUT) as (server, client):
        stream = Stream(client)
        client.async_stream_infer("gated", words("streamed"), request_id="s")
        gate.started()
        for number in range(64):
            client.async_infer(
                "gated", words(str(number)), lambda result, error: results.put(error)
            )
        until(client, lambda: server._applications.common.admission.in_flight == 65)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        gate.open(1000)
        assert [results.get(timeout=TIMEOUT) for _ in range(64)] == [None] * 64
        assert stream.next().id == "s"
        end = stream.next()
        assert end.status() == str(StatusCode.UNAVAILABLE)
        assert "draining" in end.message()
        client.stop_stream()
        stopping.join(TIMEOUT)
        assert server._drained


def test_two_servers_cannot_share_a_port() -> None:
    with serving(shout) as (server, _):
        port = int(server.grpc_url.rpartition(":")[2])
        second = Server(shout, port=0, grpc_port=port)
        with pytest.raises(OSError, match="taken, or not there"):
            second.start()


def test_keys_are_wanted_for_everything_but_health() -> None:
    with calling(shout, api_keys=["secret"]) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="a valid API key is needed") as caught:
            client.infer("shout", words("x"))
        assert caught.value.status() == str(StatusCode.UNAUTHENTICATED)
        key = {"authorization": "Bearer secret"}
        assert client.infer("shout", words("x"), headers=key) is not None


def test_the_access_log_has_a_line_for_each_call_but_health(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "wherry.access")
    with calling(shout, count, access_log=True) as client:
        client.is_server_ready()
        client.infer("shout", words("x"))
        with pytest.raises(InferenceServerException):
            client.infer("nope", words("x"))
        stream = Stream(client)
        client.async_stream_infer("count", [tensor("n", [1], "INT64")])
        stream.next()
        client.stop_stream()
    lines = [r for r in caplog.records if r.name == "wherry.access"]
    assert [(r.getMessage().rpartition("/")[2], r.__dict__["status"]) for r in lines] == [
        ("ModelInfer", "OK"),
        ("ModelInfer", "NOT_FOUND"),
        ("ModelStreamInfer", "OK"),
    ]
    assert all(r.__dict__["peer"].startswith("ipv4:127.0.0.1:") for r in lines)


def test_a_client_that_pings_often_keeps_its_connection(gate: Gate) -> None:
    options = triton.KeepAliveOptions(
        keepalive_time_ms=1000, keepalive_timeout_ms=5000, keepalive_permit_without_calls=True
    )
    with (
        local_server(shout, grpc_port=0) as server,
        triton.InferenceServerClient(server.grpc_url, keepalive_options=options) as client,
    ):
        assert client.infer("shout", words("x")) is not None


# asyncio


def test_the_asyncio_client_infers_and_streams() -> None:
    async def run(url: str) -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            results = await asyncio.gather(
                *(client.infer("shout", words(str(n))) for n in range(20))
            )
            assert [r.as_numpy("output")[0] for r in results] == [b"%d" % n for n in range(20)]

            async def requests() -> Any:
                yield {
                    "model_name": "count",
                    "inputs": [tensor("n", [3], "INT64")],
                    "request_id": "1",
                }

            seen = [
                (numbers(result.get_response()), error)
                async for result, error in client.stream_infer(requests())
            ]
            assert seen == [([0], None), ([1], None), ([2], None)]

    with local_server(shout, count, grpc_port=0) as server:
        asyncio.run(run(server.grpc_url))
