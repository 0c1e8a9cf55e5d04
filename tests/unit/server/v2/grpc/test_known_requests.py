"""v2/grpc/entry.py: what is known of a request is what reading it in full would say."""

from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests.grpc_calls import Client, served
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.grpc import proto
from wherry.server.grpc.wire import Values
from wherry.server.grpc.wire_numbers import varint
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.grpc.entry import HEAD_BYTES, MOST_HEADS, Decoded, GrpcEntry, KnownRequests

REQUEST = proto.load("v2.proto", "model_config.proto").messages["ModelInferRequest"]


class Out(TypedDict):
    x: Annotated[np.ndarray, wherry.FP32[-1]]
    name: list[str]


@wherry.model(max_batch_size=4)
def pair(x: Annotated[np.ndarray, wherry.FP32[-1]], name: list[str]) -> Out:
    return {"x": x, "name": name}


@wherry.model(max_batch_size=4)
def numbers(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x


def asked(width: int = 2, names: tuple[str, ...] = ("n",), **more: Any) -> Values:
    rows = len(names)
    return {
        "model_name": "pair",
        "inputs": [
            {"name": "name", "datatype": "BYTES", "shape": [rows]},
            {"name": "x", "datatype": "FP32", "shape": [rows, width]},
        ],
        "raw_input_contents": [
            pack_bytes([name.encode() for name in names]),
            np.arange(rows * width, dtype=np.float32).tobytes(),
        ],
        **more,
    }


@pytest.fixture
def client() -> Iterator[Client]:
    with served(pair, numbers) as client:
        yield client


@pytest.fixture
def entry(client: Client) -> GrpcEntry:
    return client.app._entry


def read_in_full(entry: GrpcEntry, data: bytes) -> Decoded:
    wire = REQUEST.decode(data)
    return entry.decode(data, wire, *entry.find(wire))


def known_again(entry: GrpcEntry, first: Values, second: Values) -> Any:
    """What is known of the second request, once the first was read."""
    known = entry.known = KnownRequests(REQUEST, entry.registry)
    data = REQUEST.encode(first)
    assert known.decode(data) is None
    read_in_full(entry, data)
    return known.decode(REQUEST.encode(second))


def same(found: Any, full: Any) -> bool:
    (model, codec, decoded), (model_in_full, codec_in_full, in_full) = found, full
    columns = decoded.columns
    assert [*columns] == [*in_full.columns]
    for name, column in in_full.columns.items():
        assert np.array_equal(columns[name], column)
    assert all(
        getattr(decoded, field) == getattr(in_full, field)
        for field in decoded.__struct_fields__
        if field != "columns"
    )
    return model is model_in_full and codec is codec_in_full


@pytest.mark.parametrize("id", ["", "7", "ü" * 100])
@pytest.mark.parametrize("outputs", [None, [{"name": "x"}], [{"name": "name"}, {"name": "x"}]])
def test_a_request_like_one_before_is_known_whatever_its_id_and_data(
    entry: GrpcEntry, id: str, outputs: list[Values] | None
) -> None:
    more: dict[str, Any] = {} if outputs is None else {"outputs": outputs}
    second = asked(names=("another",), id=id, **more)
    found = known_again(entry, asked(id="first", **more), second)
    assert found is not None
    data = REQUEST.encode(second)
    assert same(found, read_in_full(entry, data))
    assert found[2].id == id


@pytest.mark.parametrize(
    "second",
    [
        asked(3),
        asked(names=("a", "b")),
        asked(model_version="1"),
        asked(outputs=[{"name": "x"}]),
        asked(parameters={"priority": {"int64_param": 0}}),
        {**asked(), "raw_input_contents": asked()["raw_input_contents"][:1]},
        {**asked(), "raw_input_contents": [*asked()["raw_input_contents"], b""]},
        {**asked(), "raw_input_contents": [b"\5\0\0\0a", bytes(8)]},
        {**asked(), "raw_input_contents": [pack_bytes([b"n"]), bytes(9)]},
    ],
)
def test_another_request_or_a_wrong_one_is_read_in_full(entry: GrpcEntry, second: Values) -> None:
    assert known_again(entry, asked(), second) is None


def test_parameters_and_contents_are_not_remembered(entry: GrpcEntry) -> None:
    priority = {"priority": {"int64_param": 0}}
    with_parameters = asked(parameters=priority)
    assert known_again(entry, with_parameters, with_parameters) is None
    with_parameters = asked()
    with_parameters["inputs"][0] = {**with_parameters["inputs"][0], "parameters": priority}
    assert known_again(entry, with_parameters, with_parameters) is None
    typed = {
        "model_name": "numbers",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 1], "contents": {"fp32_contents": [1]}}
        ],
    }
    assert known_again(entry, typed, typed) is None


def test_fields_in_another_order_twice_or_unknown_are_read_in_full(entry: GrpcEntry) -> None:
    data = REQUEST.encode(asked())
    known = entry.known = KnownRequests(REQUEST, entry.registry)
    assert known.decode(data) is None
    read_in_full(entry, data)
    assert known.decode(data) is not None
    name = bytes([REQUEST.tag("model_name")]) + b"\x07numbers"
    id = bytes([REQUEST.tag("id")]) + b"\x011"
    for other in (data + name, data + id, id + id + data, data + b"\x82\x01\x01a", data[:-1]):
        assert known.decode(other) is None
    assert known.decode(id + data) is not None
    assert known.decode(data[:6] + id + data[6:]) is not None


def test_another_model_of_the_name_is_found(client: Client, entry: GrpcEntry) -> None:
    assert known_again(entry, asked(), asked()) is not None
    entry.registry.generation += 1
    assert entry.known.decode(REQUEST.encode(asked())) is None


def test_a_large_request_is_known_only_if_its_data_becomes_views(entry: GrpcEntry) -> None:
    long = asked(names=("n" * LARGE_BYTES,))
    assert known_again(entry, asked(), long) is None
    width = LARGE_BYTES // 4 + 1
    large = {
        "model_name": "numbers",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, width]}],
        "raw_input_contents": [np.arange(width, dtype=np.float32).tobytes()],
    }
    _, _, decoded = known_again(entry, large, large)
    assert decoded.columns["x"].base is not None
    assert np.array_equal(decoded.columns["x"], np.arange(width, dtype=np.float32)[None])


def test_what_is_remembered_is_bounded(entry: GrpcEntry) -> None:
    known = entry.known = KnownRequests(REQUEST, entry.registry)
    known.decode(b"")
    for width in range(1, MOST_HEADS + 20):
        data = REQUEST.encode(asked(width))
        read_in_full(entry, data)
        assert len(known._heads) <= MOST_HEADS
    long = asked(outputs=[{"name": "x"}] * (HEAD_BYTES // 5))
    assert known_again(entry, long, long) is None


FIELD = st.sampled_from([REQUEST.tag(field.name) for field in REQUEST.fields] + [8, 0, 0x82])


@given(st.lists(st.tuples(FIELD, st.binary(max_size=200))), st.integers(0, 5))
def test_whatever_the_bytes_are_splitting_them_fails_or_gives_them_back(
    fields: list[tuple[int, bytes]], cut: int
) -> None:
    data = b"".join(varint(tag) + varint(len(value)) + value for tag, value in fields)
    data = data[: len(data) - cut]
    split = KnownRequests(REQUEST, None)._split(data)  # type: ignore[arg-type]
    if split is None:
        return
    head, id, raw = split
    tags = [tag for tag, _ in fields]
    given_id = b"".join(value for tag, value in fields if tag == REQUEST.tag("id"))
    assert id.encode() == given_id
    assert [bytes(one) for one in raw] == [
        value for tag, value in fields if tag == REQUEST.tag("raw_input_contents")
    ]
    assert tags == sorted(tags, key=lambda tag: tag == REQUEST.tag("raw_input_contents"))
    assert REQUEST.tag("parameters") not in tags
    assert head == b"".join(
        varint(tag) + varint(len(value)) + value
        for tag, value in fields
        if tag not in (REQUEST.tag("id"), REQUEST.tag("raw_input_contents"))
    )
