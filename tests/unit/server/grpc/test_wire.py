"""The wire format, with the protobuf package (through tritonclient's messages) as the oracle."""

import contextlib
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from tritonclient.grpc import service_pb2

from tests.properties import examples
from wherry.core.values.errors import BadModelOutput
from wherry.server.grpc.proto import load, parse
from wherry.server.grpc.wire import MAX_MESSAGES, Enum, Field, Message
from wherry.server.grpc.wire_numbers import Malformed

SCHEMA = load("v2.proto", "model_config.proto")
REQUEST = SCHEMA.messages["ModelInferRequest"]

INTEGERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **INTEGERS,
    "bool": st.booleans(),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=100),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
}


def values_of(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of this kind of message, of a `oneof` at most one."""
    plain = {f.name: field_values(f) for f in message.fields if not f.oneof}
    choices: dict[str, list[st.SearchStrategy[dict[str, Any]]]] = {}
    for field in message.fields:
        if field.oneof:
            choices.setdefault(field.oneof, []).append(
                st.fixed_dictionaries({field.name: field_values(field)})
            )
    whole: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({}, optional=plain)
    for several in choices.values():
        whole = st.builds(lambda a, b: {**a, **b}, whole, st.one_of(st.just({}), *several))
    return whole


def field_values(field: Field) -> st.SearchStrategy[Any]:
    kind = field.type
    if field.is_map:
        assert isinstance(kind, Message)
        key, value = kind.fields
        return st.dictionaries(field_values(key), field_values(value), max_size=3)
    one: st.SearchStrategy[Any]
    if isinstance(kind, Message):
        one = st.deferred(lambda: values_of(kind))
    elif isinstance(kind, Enum):
        one = st.sampled_from(sorted(kind.numbers.values()))
    else:
        one = SCALARS[kind]
    return st.lists(one, max_size=3) if field.repeated else one


def plain(message: Any) -> dict[str, Any]:
    """What protobuf has in a message, as our decoder gives it."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_messages = field.message_type.fields_by_name["value"].message_type is not None
            values[field.name] = {k: plain(v) if of_messages else v for k, v in value.items()}
        elif field.message_type is not None and field.is_repeated:
            values[field.name] = [plain(one) for one in value]
        elif field.message_type is not None:
            values[field.name] = plain(value)
        else:
            values[field.name] = list(value) if field.is_repeated else value
    return values


def comparable(value: Any) -> Any:
    """Views and arrays as what they hold; empty fields, which protobuf does not list, left out."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return bytes(value) if isinstance(value, memoryview) else value


@settings(examples(0.6), suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize(
    "name",
    ["ModelInferRequest", "ModelStreamInferResponse", "ModelConfigResponse", "ModelStatistics",
     "RepositoryModelLoadRequest", "LogSettingsResponse", "TraceSettingRequest"],
)  # fmt: skip
@given(data=st.data())
def test_what_we_encode_protobuf_reads_and_what_it_writes_we_read(
    name: str, data: st.DataObject
) -> None:
    message = SCHEMA.messages[name]
    values = data.draw(values_of(message))
    expected = getattr(service_pb2, name).FromString(message.encode(values))
    assert comparable(message.decode(expected.SerializeToString())) == plain(expected)
    again = getattr(service_pb2, name).FromString(message.encode(plain(expected)))
    assert again == expected


@examples(3)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    try:
        ours = comparable(REQUEST.decode(data))
    except Malformed:
        return
    try:
        expected = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return  # protobuf knows some more that may not be (tags of more than 32 bits)
    assert set(plain(expected)) <= set(ours)


@examples(3)
@given(st.data())
def test_a_damaged_message_is_another_one_or_malformed(data: st.DataObject) -> None:
    whole = bytearray(REQUEST.encode(data.draw(values_of(REQUEST))))
    if whole:
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
        whole = whole[: data.draw(st.integers(0, len(whole)))]
    with contextlib.suppress(Malformed):
        REQUEST.decode(whole)


NUMBERS = parse(
    """
    package test;
    message Numbers {
      repeated bool a = 1; repeated int32 b = 2; repeated int64 c = 3; repeated uint32 d = 4;
      repeated uint64 e = 5; repeated float f = 6; repeated double g = 7;
    }
    """
).messages["Numbers"]
#: field: values whose encodings have all lengths
EXTREMES: dict[str, list[Any]] = {
    "a": [True, False],
    "b": [0, 1, -1, 127, 128, 2**31 - 1, -(2**31)],
    "c": [0, -1, 2**14, 2**63 - 1, -(2**63)],
    "d": [0, 1, 2**28, 2**32 - 1],
    "e": [0, 1, 2**63, 2**64 - 1],
    "f": [0.0, -1.5, math.inf],
    "g": [0.1, -math.inf, 1e308],
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("times", [1, 40])
def test_numbers_are_read_alike_from_short_and_from_long_blocks(name: str, times: int) -> None:
    values = EXTREMES[name] * times
    decoded = NUMBERS.decode(NUMBERS.encode({name: values}))[name]
    assert isinstance(decoded, list if times == 1 else np.ndarray)
    assert list(decoded) == values


@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_may_come_in_several_blocks(name: str) -> None:
    few, many = EXTREMES[name], EXTREMES[name] * 40
    blocks = [few, many, many, few]
    whole = b"".join([NUMBERS.encode({name: block}) for block in blocks])
    assert list(NUMBERS.decode(whole)[name]) == [value for block in blocks for value in block]


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_message_in_pieces_has_the_numbers_of_all(pieces: int) -> None:
    given = SCHEMA.messages["ModelInferRequest.InferInputTensor"]
    piece = given.encode({"contents": {"int64_contents": range(100)}})
    contents = given.decode(piece * pieces)["contents"]
    assert list(contents["int64_contents"]) == [*range(100)] * pieces


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10])
def test_a_very_long_block_is_read_in_slices(size: int) -> None:
    numbers = np.full(100_000, 2 ** (7 * size - 7) if size > 1 else 1, np.uint64)
    numbers[::7] = 5
    wire = {"inputs": [{"contents": {"uint64_contents": numbers}}]}
    (given,) = REQUEST.decode(REQUEST.encode(wire))["inputs"]
    np.testing.assert_array_equal(given["contents"]["uint64_contents"], numbers)


def test_numbers_may_come_one_by_one() -> None:
    assert NUMBERS.decode(b"\x10\x05\x10\x06")["b"] == [5, 6]
    after_a_block = NUMBERS.encode({"b": [1] * 100}) + b"\x10\x05"
    assert NUMBERS.decode(after_a_block)["b"] == [1] * 100 + [5]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a", "cut off"),
        (b"\x0a\x05ab", "a field has the length 5 bytes, but only 2 follow"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bytes, but only 0 follow"),
        (b"\x0a" + b"\xff" * 11, "longer than ten bytes"),
        (b"\x0a\x02\xff\xfe", "utf-8"),
        (b"\x2a\x03\x1a\x01\x80", "a number is cut off"),
        (b"\x2a\x0e\x1a\x0c" + b"\xff" * 12, "longer than ten bytes"),
        (b"\xfb\x01", "wire type 3"),
        (b"\x00\x01", "number 0"),
        (b"\xf9\x01abc", "is cut off"),
        (b"\x80", "cut off"),
    ],
)
def test_what_is_no_message_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=f"failed to parse the request message: .*{problem}"):
        REQUEST.decode(data)


@pytest.mark.parametrize("block", [b"\x80" * 100, b"\x01" * 99 + b"\x80", b"\xff" * 11 * 10])
def test_a_long_block_of_numbers_that_is_cut_off_is_malformed(block: bytes) -> None:
    with pytest.raises(Malformed, match="a number is"):
        NUMBERS.decode(b"\x12" + bytes([len(block)]) + block)
    with pytest.raises(Malformed, match="a float is cut off"):
        NUMBERS.decode(b"\x32\x63" + b"\x00" * 99)


def test_large_bytes_are_views_of_the_message() -> None:
    data = REQUEST.encode({"raw_input_contents": [b"x" * 100, b"y" * 63]})
    large, small = REQUEST.decode(data)["raw_input_contents"]
    assert isinstance(large, memoryview)
    assert large.obj is data
    assert small == b"y" * 63


def test_large_bytes_are_copied_once_on_their_way_out() -> None:
    tensor = np.arange(1000, dtype=np.float32)
    response = SCHEMA.messages["ModelInferResponse"]
    parts: list[Any] = []
    size = response.write({"raw_output_contents": [tensor.data.cast("B")]}, parts)
    assert any(getattr(part, "obj", None) is tensor for part in parts)
    assert size == sum(len(part) for part in parts)


def test_many_empty_messages_are_refused_before_they_are_gigabytes() -> None:
    with pytest.raises(Malformed, match="more than 1024 inputs"):
        REQUEST.decode(b"\x2a\x00" * (MAX_MESSAGES + 1))
    many = {f"k{n}": {"bool_param": True} for n in range(MAX_MESSAGES + 1)}
    with pytest.raises(Malformed, match="more than 1024 parameters"):
        REQUEST.decode(REQUEST.encode({"parameters": many}))
    settings = SCHEMA.messages["TraceSettingRequest"]
    off = {"settings": {"trace_level": {"value": ["OFF"] * (MAX_MESSAGES + 1)}}}
    with pytest.raises(Malformed, match="more than 1024 value"):
        settings.decode(settings.encode(off))


def test_a_message_in_pieces_is_put_together() -> None:
    pieces: list[dict[str, Any]] = [
        {"infer_response": {"id": "1", "outputs": [{"name": "a"}]}},
        {"infer_response": {"id": "2", "outputs": [{"name": "b"}], "parameters": {"p": {}}}},
    ]
    message = SCHEMA.messages["ModelStreamInferResponse"]
    data = b"".join(message.encode(piece) for piece in pieces)
    expected = service_pb2.ModelStreamInferResponse.FromString(data)
    assert message.decode(data) == plain(expected)
    assert message.decode(data)["infer_response"]["outputs"] == [{"name": "a"}, {"name": "b"}]


def test_of_a_oneof_the_last_counts() -> None:
    parameter = SCHEMA.messages["InferParameter"]
    both = parameter.encode({"bool_param": True}) + parameter.encode({"string_param": "x"})
    assert parameter.decode(both) == {"string_param": "x"}


def test_a_message_of_a_oneof_replaces_the_others_too() -> None:
    schema = parse(
        'syntax = "proto3"; package p;'
        " message A { int32 x = 1; } message M { oneof choice { A a = 1; string text = 2; } }"
    )
    message = schema.messages["M"]
    both = message.encode({"text": "x"}) + message.encode({"a": {"x": 7}})
    assert message.decode(both) == {"a": {"x": 7}}


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\xf8\x07\x05" + b"\xf9\x07" + b"8" * 8 + b"\xfd\x07" + b"4" * 4 + b"\xfa\x07\x01z"
    assert REQUEST.decode(unknown + REQUEST.encode({"id": "7"})) == {"id": "7"}


def test_enumerations_may_be_named_and_numbers_may_be_texts() -> None:
    config = SCHEMA.messages["ModelConfig"]
    data = config.encode(
        {
            "max_batch_size": "4",
            "input": [{"name": "x", "data_type": "TYPE_STRING", "dims": ["-1"]}],
            "instance_group": [{"kind": 1}],
            "of_ours": {"unknown": "to the schema"},
        }
    )
    assert config.decode(data) == {
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": 13, "dims": [-1]}],
        "instance_group": [{"kind": 1}],
    }


def test_a_number_that_does_not_fit_is_an_error_and_not_another_number() -> None:
    with pytest.raises(BadModelOutput, match="int64_param: 9223372036854775808 does not fit"):
        SCHEMA.messages["InferParameter"].encode({"int64_param": 2**63})


def test_texts_that_are_no_utf_8_are_sent_all_the_same() -> None:
    data = REQUEST.encode({"id": "a\ud800b"})
    assert REQUEST.decode(data) == {"id": "a?b"}
