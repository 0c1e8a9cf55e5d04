"""Large requests and answers over calls in memory: read and written beside the event loop."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, until
from tests.grpc_calls import Client, served
from wherry.server.calls import offload as offload_module
from wherry.server.calls.offload import LARGE_BYTES, SLICE_BYTES, Job, Offload, Port
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.grpc.infer_codec import COPIED_BYTES, InferCodec

MANY = 40_000  # elements: far more than a slice holds
BESIDE = "wherry-offload"


@wherry.model(max_batch_size=2**20)
def texts(x: list[str]) -> list[str]:
    return x


@wherry.model(max_batch_size=2**20)
def blobs(x: list[bytes]) -> list[bytes]:
    return x


@wherry.model(max_batch_size=2)
def numbers(
    x: Annotated[np.ndarray, wherry.FP32[-1]],
) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x


@wherry.model(max_batch_size=2)
def reversed_numbers(
    x: Annotated[np.ndarray, wherry.FP32[-1]],
) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return (x + 0)[:, ::-1]


@wherry.model(max_batch_size=2)
def flags(
    x: Annotated[np.ndarray, wherry.BOOL[-1]],
) -> Annotated[np.ndarray, wherry.BOOL[-1]]:
    return x


@wherry.model
def chatter(x: str) -> Iterator[str]:
    yield x * MANY * 10
    yield x


@pytest.fixture
def client() -> Iterator[Client]:
    with served(texts, blobs, numbers, reversed_numbers, flags, chatter) as client:
        yield client
        until(lambda: offload_of(client).bytes_in_work == 0)
        assert client.call(lambda: client.app._entry.admission.in_flight) == 0


def offload_of(client: Client) -> Offload:
    return client.app._entry.offload


class HeldOffload(Offload):
    """Its work says when it has begun, and waits for the test."""

    def __init__(self, max_bytes: int = 2**40) -> None:
        super().__init__(max_bytes)
        self.begun = threading.Event()
        self.may_go_on = threading.Event()

    def submit(
        self, work: Callable[[], Any], nbytes: int, port: Port, done: Callable[[Any], None]
    ) -> Job:
        def held() -> Any:
            self.begun.set()
            assert self.may_go_on.wait(TIMEOUT)
            return work()

        return super().submit(held, nbytes, port, done)


@pytest.fixture
def held(client: Client) -> Iterator[HeldOffload]:
    held = client.app._entry.offload = HeldOffload()
    yield held
    held.may_go_on.set()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that decode and encode tensors."""
    names: list[str] = []
    for method in ("decode", "encode"):
        original = getattr(InferCodec, method)

        def noted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            names.append(threading.current_thread().name)
            return original(*args, **kwargs)

        monkeypatch.setattr(InferCodec, method, noted)
    return names


def request(
    datatype: str, shape: list[int], contents: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": shape}
    if contents is not None:
        given["contents"] = contents
    return {"inputs": [given], **more}


LONG = b"a" * (2 * LARGE_BYTES)
STRINGS = [b"%d" % i for i in range(MANY)] + [b"x" * 300_000, b""]
FLOATS = np.arange(MANY, dtype=np.float32)


def strings(where: str, **more: Any) -> dict[str, Any]:
    if where == "contents":
        return request("BYTES", [len(STRINGS)], {"bytes_contents": STRINGS}, **more)
    return request("BYTES", [len(STRINGS)], raw_input_contents=[pack_bytes(STRINGS)], **more)


@pytest.mark.parametrize("model", ["texts", "blobs"])
@pytest.mark.parametrize("where", ["contents", "raw"])
def test_many_strings_come_back_and_never_touch_the_loop(
    client: Client, threads: list[str], model: str, where: str
) -> None:
    answer = client.ask("ModelInfer", strings(where, model_name=model, id="7")).answer
    assert answer["raw_output_contents"] == [pack_bytes(STRINGS)]
    assert answer["id"] == "7"
    assert threads == [BESIDE, BESIDE]


def test_many_numbers_in_contents_are_read_beside_the_loop(
    client: Client, threads: list[str]
) -> None:
    message = request("FP32", [1, MANY], {"fp32_contents": FLOATS.tolist()}, model_name="numbers")
    assert client.ask("ModelInfer", message).answer["raw_output_contents"] == [FLOATS.tobytes()]
    assert threads[0] == BESIDE


def test_raw_numbers_are_read_where_they_are_and_others_beside_the_loop(
    client: Client, threads: list[str]
) -> None:
    message = request(
        "FP32", [1, MANY], raw_input_contents=[FLOATS.tobytes()], model_name="numbers"
    )
    assert client.ask("ModelInfer", message).answer["raw_output_contents"] == [FLOATS.tobytes()]
    assert BESIDE not in threads
    threads.clear()
    truth = np.ones(LARGE_BYTES, np.bool_)
    message = request(
        "BOOL", [1, LARGE_BYTES], raw_input_contents=[truth.tobytes()], model_name="flags"
    )
    assert client.ask("ModelInfer", message).answer["raw_output_contents"] == [truth.tobytes()]
    assert threads[0] == BESIDE


@pytest.mark.parametrize(("model", "step"), [("numbers", 1), ("reversed_numbers", -1)])
def test_a_large_array_that_must_be_copied_is_encoded_beside_the_loop(
    client: Client, threads: list[str], model: str, step: int
) -> None:
    array = np.arange(COPIED_BYTES, dtype=np.float32)
    message = request("FP32", [1, array.size], raw_input_contents=[array.tobytes()])
    answer = client.ask("ModelInfer", {**message, "model_name": model}).answer
    assert answer["raw_output_contents"] == [array[::step].tobytes()]
    assert [name == BESIDE for name in threads] == [False, step < 0]


def test_others_are_answered_while_a_large_request_is_read_and_its_answer_written(
    client: Client, held: HeldOffload
) -> None:
    rpc = client.begin("ModelInfer", strings("contents", model_name="texts"))
    assert held.begun.wait(TIMEOUT)
    assert client.ask("ServerLive").answer == {"live": True}
    assert client.app._entry.admission.in_flight == 1
    held.may_go_on.set()
    assert rpc.wait().answer["raw_output_contents"] == [pack_bytes(STRINGS)]


@pytest.mark.slow
def test_large_messages_are_read_and_written_in_slices(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(offload_module, "time", SimpleNamespace(sleep=pauses.append))
    short = [b"xy"] * 500_000
    size = len(pack_bytes(short))
    slices = size // SLICE_BYTES
    message = request("BYTES", [len(short)], raw_input_contents=[pack_bytes(short)])
    client.ask("ModelInfer", {**message, "model_name": "blobs"})
    raw = len(pauses)
    assert raw >= 2 * slices  # split, and packed again
    message = request("BYTES", [len(short)], {"bytes_contents": short})
    client.ask("ModelInfer", {**message, "model_name": "blobs"})
    assert len(pauses) - raw >= slices + 4 * len(short) // SLICE_BYTES - 1


@pytest.mark.parametrize("where", ["contents", "raw"])
def test_a_client_that_leaves_takes_along_what_is_being_read(
    client: Client, held: HeldOffload, where: str
) -> None:
    rpc = client.begin("ModelInfer", strings(where, model_name="texts"))
    assert held.begun.wait(TIMEOUT)
    client.call(rpc.leave)
    assert client.call(lambda: client.app._entry.admission.in_flight) == 0
    held.may_go_on.set()
    until(lambda: held.bytes_in_work == 0)
    assert rpc.answers == []


def test_a_client_that_leaves_takes_along_the_answer_that_is_being_written(
    client: Client, held: HeldOffload
) -> None:
    array = np.zeros(COPIED_BYTES, np.float32)
    message = request("FP32", [1, array.size], raw_input_contents=[array.tobytes()])
    rpc = client.begin("ModelInfer", {**message, "model_name": "reversed_numbers"})
    assert held.begun.wait(TIMEOUT)
    client.call(rpc.leave)
    assert client.call(lambda: client.app._entry.admission.in_flight) == 0
    assert rpc.answers == []


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (strings("raw", model_name="nope"), "NOT_FOUND", "'nope' is not found"),
        (strings("contents", model_name="nope"), "NOT_FOUND", "'nope' is not found"),
        (
            request("BYTES", [1], raw_input_contents=[pack_bytes([LONG])], model_name="chatter"),
            "UNIMPLEMENTED",
            "decoupled",
        ),
        (strings("raw", model_name="numbers"), "INVALID_ARGUMENT", "expects 'FP32'"),
        (
            request("BYTES", [1], {"bytes_contents": STRINGS}, model_name="texts"),
            "INVALID_ARGUMENT",
            f"unexpected number of string elements {MANY + 2} for inference input 'x' for model"
            " 'texts', expecting 1",
        ),
        (
            request("BYTES", [MANY], {"bytes_contents": [b"\xff"] * MANY}, model_name="texts"),
            "INVALID_ARGUMENT",
            "not UTF-8",
        ),
        (b"\x0a\x05echo!" + b"\x2a\x01" * LARGE_BYTES, "INVALID_ARGUMENT", "failed to parse"),
        (bytes(2 * LARGE_BYTES), "INVALID_ARGUMENT", "the number 0"),
    ],
)
def test_what_is_wrong_in_a_large_request_is_said(
    client: Client, message: Any, code: str, text: str
) -> None:
    error = client.ask("ModelInfer", message).error
    assert error[0] == code
    assert text in error[1]


def test_beyond_what_may_be_read_at_once_requests_are_refused(client: Client) -> None:
    held = client.app._entry.offload = HeldOffload(max_bytes=1)
    first = client.begin("ModelInfer", strings("contents", model_name="texts"))
    code, text = client.ask("ModelInfer", strings("contents", model_name="texts")).error
    assert (code, "large bodies" in text) == ("UNAVAILABLE", True)
    held.may_go_on.set()
    first.wait().answer  # noqa: B018 - it is one


# Streams


def test_requests_behind_a_large_one_wait_for_it(client: Client, held: HeldOffload) -> None:
    rpc = client.begin("ModelStreamInfer")
    small = request("BYTES", [1], raw_input_contents=[pack_bytes([b"a"])], model_name="texts")
    large = strings("contents", model_name="texts", id="2")
    client.say(rpc, {**small, "id": "1"}, large, {**small, "id": "3"}, {**large, "id": "4"})
    client.half_close(rpc)
    rpc.wait_for(1)
    assert held.begun.wait(TIMEOUT)
    assert rpc.paused
    held.may_go_on.set()
    rpc.wait()
    assert rpc.code == "OK"
    assert [answer["infer_response"]["id"] for answer in rpc.answers] == ["1", "2", "3", "4"]
    sizes = [len(answer["infer_response"]["raw_output_contents"][0]) for answer in rpc.answers]
    assert sizes == [5, len(pack_bytes(STRINGS)), 5, len(pack_bytes(STRINGS))]


def test_answers_behind_a_large_one_wait_until_it_is_written(client: Client) -> None:
    rpc = client.begin("ModelStreamInfer")
    wish = {"triton_enable_empty_final_response": {"bool_param": True}}
    asked = request("BYTES", [1], raw_input_contents=[pack_bytes([b"ab"])], model_name="chatter")
    client.say(rpc, {**asked, "parameters": wish}, {**asked, "id": "2"})
    client.half_close(rpc)
    rpc.wait()
    assert rpc.code == "OK"
    said = [answer["infer_response"] for answer in rpc.answers]
    for request_id, finals in (("", [False, False, True]), ("2", [False, False])):
        own = [one for one in said if one.get("id", "") == request_id]
        lengths = [len(one["raw_output_contents"][0]) for one in own[:2]]
        assert lengths == [4 + 20 * MANY, 6]
        assert [one["parameters"]["triton_final_response"]["bool_param"] for one in own] == finals


@pytest.mark.parametrize("ends_all", [False, True])
def test_what_is_wrong_in_a_large_request_of_a_stream_is_said_in_its_turn(
    client: Client, *, ends_all: bool
) -> None:
    rpc = client.begin(
        "ModelStreamInfer", metadata={"triton_grpc_error": "true"} if ends_all else {}
    )
    client.say(rpc, strings("contents", model_name="nope", id="1"))
    if ends_all:
        assert rpc.wait().code == "NOT_FOUND"
        return
    (answer,) = rpc.wait_for(1)
    assert "'nope' is not found" in answer["error_message"]
    assert answer["infer_response"]["id"] == "1"
    client.say(rpc, strings("contents", model_name="texts", id="2"))
    assert rpc.wait_for(2)[1]["infer_response"]["id"] == "2"
    client.half_close(rpc)
    assert rpc.wait().code == "OK"


def test_a_stream_that_is_left_takes_along_what_is_being_read(
    client: Client, held: HeldOffload
) -> None:
    rpc = client.begin("ModelStreamInfer")
    client.say(rpc, strings("contents", model_name="texts"))
    assert held.begun.wait(TIMEOUT)
    client.call(rpc.leave)
    assert client.call(lambda: client.app._entry.admission.in_flight) == 0
    assert client.app._entry.streams == set()


def test_a_stream_that_is_left_takes_along_what_is_being_written(
    client: Client, held: HeldOffload
) -> None:
    rpc = client.begin("ModelStreamInfer")
    asked = request("BYTES", [1], raw_input_contents=[pack_bytes([b"ab"])], model_name="chatter")
    client.say(rpc, asked, asked)
    assert held.begun.wait(TIMEOUT)
    client.call(rpc.leave)
    until(lambda: client.app._entry.admission.in_flight == 0)
    assert rpc.answers == []


def test_what_comes_as_the_client_of_a_stream_leaves_is_not_written() -> None:
    begins, sent = threading.Event(), threading.Event()

    @wherry.model
    def says(x: str) -> Iterator[str]:
        assert begins.wait(TIMEOUT)
        yield x * MANY * 10
        sent.set()

    with served(says) as client:
        held = client.app._entry.offload = HeldOffload()
        rpc = client.begin("ModelStreamInfer")
        client.say(
            rpc,
            request("BYTES", [1], raw_input_contents=[pack_bytes([b"ab"])], model_name="says"),
        )

        def leave() -> None:
            """While a response waits for this turn of the loop to end."""
            begins.set()
            assert sent.wait(TIMEOUT)
            rpc.leave()

        client.call(leave)
        client.call(lambda: None)  # behind that response
        assert client.call(lambda: client.app._entry.admission.in_flight) == 0
        assert not held.begun.is_set()
        held.may_go_on.set()


def test_a_server_that_stops_answers_what_is_being_read_of_a_stream(
    client: Client, held: HeldOffload
) -> None:
    rpc = client.begin("ModelStreamInfer")
    client.say(rpc, strings("contents", model_name="texts"))
    assert held.begun.wait(TIMEOUT)
    client.call(client.app.end_streams)
    assert not rpc.ended
    held.may_go_on.set()
    rpc.wait()
    assert (rpc.code, len(rpc.answers)) == ("UNAVAILABLE", 1)
