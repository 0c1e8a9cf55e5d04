"""What stands in a request."""

import msgspec
import numpy as np
import pytest

from wherry.bench import encode
from wherry.core.client.wire import ModelDescription, Tensor
from wherry.core.values.datatypes import BYTES, FP32
from wherry.core.values.errors import ConfigError

MODEL = ModelDescription(
    "m", (Tensor("text", BYTES, (1,)), Tensor("x", FP32, (2,))), (), batched=True
)
ROWS = [
    {"text": "a", "x": np.array([1, 2], np.float32)},
    {"text": "bé", "x": np.array([3, 4], np.float32)},
]


def test_a_request_has_its_head_and_given_headers_win() -> None:
    made = encode.http("POST", "/v2", "host:1", {"user-agent": "me", "X-A": "1"}, b"body", 3)
    assert made.data == (
        b"POST /v2 HTTP/1.1\r\nHost: host:1\r\nAccept: */*\r\nContent-Length: 4\r\n"
        b"user-agent: me\r\nX-A: 1\r\n\r\nbody"
    )
    assert made.rows == 3
    assert b"Content-Length" not in encode.http("GET", "", "h", {}, b"").data
    assert encode.http("GET", "", "h", {}, b"").data.startswith(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("header", [{"A": "1\r\nB: 2"}, {"A\n": "1"}])
def test_a_header_cannot_bring_another_one_along(header: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a request"):
        encode.http("GET", "/", "h", header, b"")


def test_v2_requests_carry_numbers_as_binary_or_json() -> None:
    body, headers = encode.infer(MODEL, ROWS)
    length = int(headers["Inference-Header-Content-Length"])
    assert body[length:] == np.array([[1, 2], [3, 4]], np.float32).tobytes()
    head = msgspec.json.decode(body[:length])
    assert [tensor["shape"] for tensor in head["inputs"]] == [[2, 1], [2, 2]]

    body, headers = encode.infer(MODEL, ROWS, binary=False)
    assert headers == {"Content-Type": "application/json"}
    assert msgspec.json.decode(body)["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "bé"]},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
    ]


def test_rows_of_one_request_must_be_alike() -> None:
    with pytest.raises(ConfigError, match="same inputs"):
        encode.columns_of([{"a": 1}, {"b": 1}])


def test_openai_bodies_are_made_of_prompts_or_given_whole() -> None:
    made = msgspec.json.decode(encode.chat("hi", "m", stream=True, max_tokens=5))
    assert made == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    given = {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3}
    made = msgspec.json.decode(encode.chat(given, "m", stream=False, max_tokens=5))
    assert made == {"model": "m", **given}
    made = msgspec.json.decode(encode.completion({"text": "p"}, "m", stream=False, max_tokens=None))
    assert made == {"model": "m", "prompt": "p"}
    made = msgspec.json.decode(encode.embedding(["a", "b"], "m"))
    assert made == {"model": "m", "input": ["a", "b"]}
    with pytest.raises(ConfigError, match="no prompt"):
        encode.chat({"x": 1}, "m", stream=False, max_tokens=None)


def test_plain_bodies_are_text_bytes_or_json() -> None:
    assert encode.body_of("é") == "é".encode()
    assert encode.body_of(b"\xff") == b"\xff"
    assert encode.body_of({"a": np.array([1], np.float32)}) == b'{"a":[1.0]}'
    assert (
        encode.generate({"text": "a", "x": np.array([1, 2], np.float32)})
        == b'{"text":"a","x":[1.0,2.0]}'
    )
