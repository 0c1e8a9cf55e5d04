"""What are NaN and Infinity in JSON? Floats, wherever a float may be, and never a text."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, served


@dataclasses.dataclass
class Point:
    a: float


@wherry.model(max_batch_size=8, route="/objects")
def objects(row: list[dict[str, Any]]) -> list[str]:
    return [repr(one) for one in row]


@wherry.model(max_batch_size=8, route="/points")
def points(point: list[Point]) -> list[str]:
    return [repr(one) for one in point]


@wherry.model(max_batch_size=8, route="/numbers")
def numbers(x: list[float]) -> list[str]:
    return [repr(float(one)) for one in x]


@wherry.model(max_batch_size=8, route="/arrays")
def arrays(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> list[str]:
    return [repr(one.tolist()) for one in x]


@wherry.model(max_batch_size=8, route="/texts")
def texts(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=8, route="/results")
def results(x: list[float]) -> list[dict[str, Any]]:
    return [{"x": one} for one in x]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(objects, points, numbers, arrays, texts, results) as client:
        yield client


FORM = {"content-type": "application/x-www-form-urlencoded"}
OBJECT = b'{"a":NaN,"b":"NaN","c":[-Infinity,{"d":Infinity}],"e":-1}'
READ = "{'a': nan, 'b': 'NaN', 'c': [-inf, {'d': inf}], 'e': -1}"


def infer(name: bytes, datatype: bytes, data: bytes, rows: int = 1) -> bytes:
    return b'{"inputs":[{"name":"%b","datatype":"%b","shape":[%d],"data":%b}]}' % (
        name,
        datatype,
        rows,
        data,
    )


@pytest.mark.parametrize("padding", [0, 2**17], ids=["small", "large"])
def test_in_an_object_they_are_floats_on_every_way_to_the_model(
    client: Client, padding: int
) -> None:
    blanks = b" " * padding
    for path, body, headers in (
        ("/objects", OBJECT, {}),
        ("/v2/models/objects/generate", b'{"row":%b}' % OBJECT, {}),
        ("/v2/models/objects/infer", infer(b"row", b"BYTES", b"[%b]" % OBJECT), {}),
        (
            "/v2/models/objects/infer",
            infer(b"row", b"BYTES", b'["%b"]' % OBJECT.replace(b'"', b'\\"')),
            {},
        ),
        ("/objects", b"row=" + OBJECT, FORM),
    ):
        answer = client.post(path, body if headers else blanks + body, headers)
        assert READ in answer.body.decode(), (path, body, answer.body)


def test_they_are_numbers_where_a_number_is_expected(client: Client) -> None:
    assert client.post("/numbers", b'{"x":NaN}').json == "nan"
    assert client.post("/numbers", b'[{"x":-Infinity},{"x":1e308}]').json == ["-inf", "1e+308"]
    assert client.post("/numbers", b"x=nan&x=-inf&x=NaN", FORM).json == ["nan", "-inf", "nan"]
    assert client.post("/arrays", b'{"x":[1,NaN]}').json == "[1.0, nan]"
    assert client.post("/points", b'{"a":Infinity}').json == "Point(a=inf)"
    body = infer(b"x", b"FP64", b"[NaN,Infinity,1.5e308]", 3)
    outputs = client.post("/v2/models/numbers/infer", body).json["outputs"]
    assert outputs[0]["data"] == ["nan", "inf", "1.5e+308"]


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
def test_they_are_no_text(client: Client, literal: bytes) -> None:
    for path, body in (
        ("/texts", b'{"text":%b}' % literal),
        ("/v2/models/texts/generate", b'{"text":%b}' % literal),
        ("/v2/models/texts/infer", infer(b"text", b"BYTES", b"[%b]" % literal)),
        ("/v2/models/texts/infer", b'{"id":%b,' % literal + infer(b"text", b"BYTES", b'["a"]')[1:]),
    ):
        answer = client.post(path, body)
        assert (answer.status, "expected str, got float" in answer.error) == (400, True)


def test_beside_other_characters_they_make_no_number(client: Client) -> None:
    for text in (b"-NaN", b"1NaN", b"NaN1", b"--Infinity", b"+Infinity"):
        assert client.post("/objects", b'{"a":%b}' % text).status == 400
    assert client.post("/objects", b'{"a":"x NaN","b":1}').json == "{'a': 'x NaN', 'b': 1}"


def test_in_answers_they_are_literals_in_tensors_and_null_in_other_json(client: Client) -> None:
    assert client.post("/results", b'{"x":NaN}').json == {"x": None}
    answer = client.post("/v2/models/results/generate", b'{"x":NaN}')
    assert answer.json["output"] == {"x": None}
