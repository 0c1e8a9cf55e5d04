"""A client's call has the shape of a Runtime's call, over every form of data and error."""

import os
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.core.client.wire import Tensor, by_place, describe, error_of, infer_body, outputs_of
from wherry.core.values.datatypes import BYTES
from wherry.server.server import Server
from wherry.testing import local_server


@wherry.model(max_batch_size=4)
def text(text: list[str]) -> list[str]:
    return [t[::-1] for t in text]


@wherry.model(max_batch_size=4)
def raw(data: list[bytes]) -> list[bytes]:
    return [d + b"\xff" for d in data]


@wherry.model(max_batch_size=4)
def rows(row: list[dict]) -> list[dict]:  # type: ignore[type-arg]
    return [{**r, "seen": True} for r in row]


@wherry.model(max_batch_size=4)
def numbers(n: list[int], f: list[float], yes: list[bool]) -> list[float]:
    return [a * b if c else 0.0 for a, b, c in zip(n, f, yes, strict=True)]


@wherry.model(max_batch_size=4)
def array(x: Annotated[np.ndarray, wherry.FP16[2, 2]]) -> Annotated[np.ndarray, wherry.FP16[2, 2]]:
    return np.asarray(x + 1)


@wherry.model(max_batch_size=4)
def brain(x: Annotated[np.ndarray, wherry.BF16[2]]) -> Annotated[np.ndarray, wherry.BF16[2]]:
    return np.asarray(x)


class Two(NamedTuple):
    label: list[str]
    score: Annotated[np.ndarray, wherry.FP32]


@wherry.model(max_batch_size=4)
def two(text: list[str], scale: list[float] | None = None) -> Two:
    factor = 1.0 if scale is None else scale[0]
    return Two(text, np.full(len(text), factor, np.float32))


@wherry.model(max_batch_size=0)
def whole(x: Annotated[np.ndarray, wherry.INT64[-1]]) -> Annotated[np.ndarray, wherry.INT64[-1]]:
    return np.asarray(x[::-1])


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@wherry.model(max_batch_size=4)
def picky(text: list[str]) -> list[str]:
    if "bad" in text:
        raise wherry.InvalidRequest("no bad words")
    if "worse" in text:
        raise RuntimeError("boom")
    return text


MODELS = (text, raw, rows, numbers, array, brain, two, whole, count, picky)


@pytest.fixture
def server() -> Iterator[Server]:
    with local_server(*MODELS) as server:
        yield server


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("text", {"text": "grüße"}),
        ("raw", {"data": b"\x00\xfe"}),
        ("rows", {"row": {"a": [1, None]}}),
        ("numbers", {"n": 3, "f": 0.5, "yes": True}),
        ("array", {"x": [[1, 2], [3, 4]]}),
        ("brain", {"x": np.array([1.0078125, np.inf], np.float32)}),
        ("two", {"text": "x"}),
        ("two", {"text": "x", "scale": 2.0}),
        ("whole", {"x": [1, 2, 3]}),
    ],
)
def test_a_call_over_http_gives_what_the_same_call_gives_in_process(
    server: Server, model: str, inputs: dict[str, Any]
) -> None:
    with wherry.Client(server.url) as client:
        over_http = client.infer(model, **inputs)
        by_place = client.infer(model, *inputs.values())
    in_process = server.runtime.infer(model, **inputs)
    np.testing.assert_equal(over_http, in_process)
    np.testing.assert_equal(by_place, in_process)
    assert type(over_http) is type(in_process)


def test_a_call_may_say_the_version(server: Server) -> None:
    with wherry.Client(server.url) as client:
        for version in ("1", 1):
            assert client.infer("text", "a", version=version) == client.infer("text:1", "a")
            assert list(client.infer_batch("text", version=version, text=["a"])) == ["output"]
            assert list(client.stream("count", 2, version=version)) == [0, 1]
        with pytest.raises(wherry.ModelNotFound, match="version 7"):
            client.infer("text", "a", version=7)
        wrong: Any
        for model, wrong in (("text:1", "1"), ("text", 1.0), ("text", ["x"])):
            with pytest.raises(wherry.InvalidRequest, match="version must be"):
                client.infer(model, "a", version=wrong)


def test_inputs_go_by_place_as_far_as_that_goes() -> None:
    """What they are called is not for the client to say."""
    tensors = [{"name": name, "data_type": "TYPE_FP32", "dims": [1]} for name in "abc"]
    model = describe({"name": "m", "max_batch_size": 1, "input": tensors, "output": []})
    assert by_place(model, {"c": 3, "b": 2, "a": 1}) == ([1, 2, 3], {})
    assert by_place(model, {"a": 1, "c": 3}) == ([1], {"c": 3})
    assert by_place(model, {"c": 3, "x": 4}) == ([], {"c": 3, "x": 4})


def test_many_rows_come_back_in_their_order(server: Server) -> None:
    with wherry.Client(server.url) as client:
        answer = client.infer_batch("text", text=[f"{i:02}" for i in range(10)])
        assert answer["output"] == [f"{i:02}"[::-1] for i in range(10)]
        arrays = client.infer_batch("array", x=np.zeros((3, 2, 2), np.float16))
        np.testing.assert_array_equal(arrays["output"], np.ones((3, 2, 2), np.float16), strict=True)


def test_a_stream_comes_as_it_is_made(server: Server) -> None:
    with wherry.Client(server.url) as client:
        assert list(client.stream("count", n=3)) == [0, 1, 2]
        for first in client.stream("count", 1000):
            assert first == 0
            break
        assert list(client.stream("count", 1)) == [0]


def test_errors_are_the_classes_that_the_runtime_raises(server: Server) -> None:
    with wherry.Client(server.url) as client:
        with pytest.raises(wherry.ModelNotFound, match="'nope'"):
            client.infer("nope", text="x")
        with pytest.raises(wherry.InvalidRequest, match="no bad words"):
            client.infer("picky", text="bad")
        with pytest.raises(wherry.ModelFailed, match="boom"):
            client.infer("picky", text="worse")
        with pytest.raises(wherry.InvalidRequest, match="no input 'txet'; its inputs are: text"):
            client.infer("text", txet="x")
        with pytest.raises(wherry.InvalidRequest, match="must be INT64"):
            client.infer("whole", x=["a"])
        with pytest.raises(wherry.InvalidRequest, match="not between"):
            client.infer("whole", x=np.array([2**63], np.uint64))
        with pytest.raises(wherry.InvalidRequest, match="1 inputs, not 2"):
            client.infer("text", "a", "b")
        with pytest.raises(wherry.InvalidRequest):
            client.infer("array", x=[1, 2, 3])
        assert client.infer("picky", text="good") == "good"


def test_a_client_knows_models_and_readiness(server: Server) -> None:
    with wherry.Client(server.url) as client:
        assert [model["name"] for model in client.models()] == sorted(m.name for m in MODELS)
        assert client.metadata("two")["outputs"][0]["name"] == "label"
        assert client.ready()
        assert client.ready("two")
        assert not client.ready("nope")
        assert client.infer("text:1", text="ab") == "ba"


def test_a_connection_is_used_again_also_after_the_server_has_closed_it(server: Server) -> None:
    with wherry.Client(server.url) as client:
        client.infer("text", text="a")
        (connection,) = client._connections.idle
        client.infer("text", text="b")
        assert client._connections.idle == [connection]
        connection.sock.shutdown(2)
        assert client.infer("text", text="c") == "c"


def test_nothing_is_sent_on_a_connection_that_the_server_has_closed_meanwhile() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        wherry.Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(client.ready)
        first, _ = listening.accept()
        with first:
            assert first.recv(2**16).endswith(b"\r\n\r\n")
            first.sendall(answer)
            assert asked.result(TIMEOUT)
            first.shutdown(socket.SHUT_WR)
            asked = pool.submit(client.ready)
            second, _ = listening.accept()
            with second:
                assert second.recv(2**16).endswith(b"\r\n\r\n")
                second.sendall(answer)
                assert asked.result(TIMEOUT)
            assert first.recv(2**16) == b""


def test_a_server_that_stalls_or_is_cut_off_is_an_error_of_ours_on_any_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        wherry.Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client,
    ):

        def once(answer: bytes) -> socket.socket:
            connection, _ = listening.accept()
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += (part := connection.recv(2**16))
                assert part
            connection.sendall(answer)
            return connection

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(once, head % 14 + b'{"models": []}')
            assert client.models() == []
            client.timeout = 0.01
            with served.result(TIMEOUT), pytest.raises(wherry.DeadlineExceeded):
                client.models()  # on the same connection, which says nothing any more
            client.timeout = TIMEOUT
            cut = pool.submit(lambda: once(head % 100 + b"{").close())
            with pytest.raises(ConnectionError, match="cut off"):
                client.models()
            cut.result(TIMEOUT)


def test_a_timeout_holds_for_a_server_that_says_nothing_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wherry.core.client.client.GRACE", 0.01)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        wherry.Client(f"http://127.0.0.1:{listening.getsockname()[1]}") as client,
    ):
        for call in (client.infer, client.infer_batch, client.stream):
            with pytest.raises(wherry.DeadlineExceeded):
                list(call("text", text="a", timeout=0.01))
            with pytest.raises(wherry.InvalidRequest, match="timeout nan is not"):
                list(call("text", text="a", timeout=float("nan")))


def test_nobody_there_is_an_os_error_and_not_ready() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with wherry.Client(f"http://127.0.0.1:{taken.getsockname()[1]}") as client:
            assert not client.ready()
            with pytest.raises(OSError, match="refused"):
                client.infer("text", text="a")


@pytest.mark.parametrize(
    ("url", "why"),
    [("ftp://x", "must start with"), ("", "must start with"), ("host:8000", "must start with"),
     ("http://x:99999", "Port out of range"), ("http://x:y", "Port"), ("http://[::1", "IPv6"),
     ("http://a b", "no spaces"), ("http://x/a\x00", "no spaces")],
)  # fmt: skip
def test_a_url_of_another_kind_is_refused(url: str, why: str) -> None:
    with pytest.raises(wherry.ConfigError, match=why):
        wherry.Client(url)


def test_a_client_can_be_sent_to_another_process(server: Server) -> None:
    with wherry.Client(server.url, api_key="k", timeout=7.0) as client:
        client.infer("text", "a")
        with pickle.loads(pickle.dumps(client)) as other:
            assert other.infer("text", "ab") == "ba"
            assert (other.timeout, other._headers) == (7.0, client._headers)
            assert not {*other._connections.idle} & {*client._connections.idle}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(server: Server) -> None:
    with wherry.Client(server.url) as client:
        client.infer("text", "a")
        (connection,) = client._connections.idle
        child = os.fork()
        if child == 0:  # on the parent's connection it would take the parent's answers
            answers = [client.infer("text", f"c{n}") for n in range(3)]
            os._exit(client._connections.idle == [connection] or answers != ["0c", "1c", "2c"])
        answers = [client.infer("text", f"p{n}") for n in range(3)]
        assert os.waitpid(child, 0)[1] == 0
        assert answers == ["0p", "1p", "2p"]
        assert client._connections.idle == [connection]


# Against the protocol alone, as another server speaks it


CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "a", "data_type": "TYPE_STRING", "dims": [1]},
              {"name": "b", "data_type": "TYPE_UINT8", "dims": ["2"]}],
    "output": [{"name": "o", "data_type": "TYPE_STRING", "dims": [2]}],
}  # fmt: skip


def test_a_request_is_json_with_the_numbers_behind_it() -> None:
    body, length = infer_body(describe(CONFIG), {"a": ["x"], "b": [[1, 2]]}, {"priority": 1})
    assert body[length:] == b"\x01\x02"
    head = msgspec.json.decode(body[:length])
    assert head["parameters"] == {"binary_data_output": True, "priority": 1}
    assert head["inputs"] == [
        {"name": "a", "datatype": "BYTES", "shape": [1, 1], "data": ["x"]},
        {
            "name": "b",
            "datatype": "UINT8",
            "shape": [1, 2],
            "parameters": {"binary_data_size": 2},
        },
    ]


@pytest.mark.parametrize(
    ("dims", "values", "shape"),
    [([], [1, 2], [2]), ([1], [1, 2], [2, 1]), ([-1], [[1, 2]], [1, 2]), ([2], [[1, 2]], [1, 2]),
     ([], ["a", "b"], [2]), ([1], ["a", "b"], [2, 1]), ([-1], [["a", "b"]], [1, 2])],
)  # fmt: skip
def test_rows_travel_in_the_very_dimensions_that_the_server_names(
    dims: list[int], values: list[Any], shape: list[int]
) -> None:
    datatype = "TYPE_STRING" if "a" in str(values) else "TYPE_INT32"
    member = {"name": "a", "data_type": datatype, "dims": dims}
    model = describe({"name": "m", "max_batch_size": 8, "input": [member]})
    body, length = infer_body(model, {"a": values}, {})
    assert msgspec.json.decode(body[:length])["inputs"][0]["shape"] == shape


def test_a_row_of_texts_may_have_several_dimensions() -> None:
    texts = Tensor("a", BYTES, (2, 3))
    assert texts.shape_of(4, 24) == [4, 2, 3]
    assert texts.shape_of(4, 8) == [4, 2]


def test_an_answer_may_be_json_or_binary() -> None:
    model = describe(CONFIG)
    packed = b"\x01\x00\x00\x00x\x02\x00\x00\x00\xff\xfe"
    member = {"name": "o", "datatype": "BYTES", "shape": [1, 2]}
    as_json = {"outputs": [{**member, "data": ["x", "y"]}]}
    as_binary = {"outputs": [{**member, "parameters": {"binary_data_size": len(packed)}}]}
    assert outputs_of(model, as_json, memoryview(b"")) == ({"o": [["x", "y"]]}, 1)
    assert outputs_of(model, as_binary, memoryview(packed)) == ({"o": [["x", b"\xff\xfe"]]}, 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, wherry.InvalidRequest), (404, wherry.ModelNotFound), (413, wherry.RequestTooLarge),
     (429, wherry.Overloaded), (499, wherry.Cancelled), (500, wherry.ModelFailed),
     (501, wherry.Unsupported), (503, wherry.ModelNotReady), (504, wherry.DeadlineExceeded),
     (418, wherry.WherryError)],
)  # fmt: skip
def test_a_status_stands_for_an_error(status: int, error: type[wherry.WherryError]) -> None:
    made = error_of(status, b'{"error":"why"}', "2")
    assert type(made) is error
    assert (str(made), made.retry_after) == ("why", 2.0)
    assert str(error_of(status, b"<html>", None)) == "<html>"
    assert error_of(status, b"", "Wed, 21 Oct 2026 07:28:00 GMT").retry_after is None
