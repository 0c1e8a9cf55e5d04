"""How deep may JSON be nested? The same everywhere, and deeper it is the client's mistake."""

from collections.abc import Iterator
from typing import Any

import pytest

import wherry
from tests.http_exchange import Client, served
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.long_arrays import MAX_DEPTH, TOO_DEEP


@wherry.model(max_batch_size=8, route="/rows")
def rows(row: list[dict[str, Any]]) -> list[int]:
    return [len(one) for one in row]


@wherry.model(max_batch_size=8, route="/texts")
def texts(text: list[str], more: list[dict[str, Any]] | None = None) -> list[str]:
    return text


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(rows, texts) as client:
        yield client


def nested(depth: int) -> bytes:
    """Objects and arrays within each other."""
    half, odd = divmod(depth, 2)
    return b'{"a":[' * half + b"[" * odd + b"]" * odd + b"]}" * half


FORM = {"content-type": "multipart/form-data; boundary=B"}


def field(name: bytes, data: bytes) -> bytes:
    return b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n--B--\r\n' % (name, data)


def infer(name: str, data: bytes) -> bytes:
    return b'{"inputs":[{"name":"%b","datatype":"BYTES","shape":[1],"data":%b}]}' % (
        name.encode(),
        data,
    )


def as_json_text(data: bytes) -> bytes:
    return b'["%b"]' % data.replace(b'"', b'\\"')


BODIES = {
    "generate": ("/v2/models/rows/generate", b'{"row":%b}', {}),
    "an unknown member of generate": ("/v2/models/rows/generate", b'{"row":{},"other":%b}', {}),
    "a route": ("/rows", b"%b", {}),
    "a member at a route": ("/texts", b'{"text":"","more":%b}', {}),
    "a form": ("/texts", field(b"more", b"%b"), FORM),
    "elements": ("/v2/models/rows/infer", infer("row", b"[%b]"), {}),
    "a command": ("/v2/repository/models/rows/load", b'{"parameters":{"config":%b}}', {}),
    "a request for the index": ("/v2/repository/index", b'{"ready":%b}', {}),
}


@pytest.mark.parametrize("padding", [0, 2**17], ids=["small", "large"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 600, 900, 5000])
@pytest.mark.parametrize("body", BODIES)
def test_json_that_is_nested_too_deep_is_refused_by_its_depth(
    client: Client, body: str, depth: int, padding: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, text, headers = BODIES[body]
    answer = client.post(
        path, b" " * padding * ("form" not in body) + text.replace(b"%b", nested(depth)), headers
    )
    assert answer.status == 400, answer.body
    assert TOO_DEEP in answer.body.decode()
    assert not caplog.records


def test_an_element_that_is_a_text_with_json_is_bounded_as_well(client: Client) -> None:
    text = nested(600)
    answer = client.post("/v2/models/rows/infer", infer("row", as_json_text(text)))
    assert (answer.status, TOO_DEEP in answer.error) == (400, True)
    head = infer("row", b"[]").replace(
        b'"data":[]', b'"parameters":{"binary_data_size":%d}' % len(pack_bytes([text]))
    )
    answer = client.post(
        "/v2/models/rows/infer",
        head + pack_bytes([text]),
        {"inference-header-content-length": str(len(head))},
    )
    assert (answer.status, TOO_DEEP in answer.error) == (400, True)


def test_brackets_in_texts_are_no_depth(client: Client) -> None:
    for size in (1000, 2**17):
        answer = client.post("/texts", b'{"text":"%b"}' % (b"[{" * size))
        assert answer.json == "[{" * size
    answer = client.post("/rows", b'{"a":%b}' % nested(MAX_DEPTH - 1))
    assert answer.json == 1
    answer = client.post("/rows", b'{"a":[%b{}]}' % (b"{}," * 1000))
    assert answer.json == 1
