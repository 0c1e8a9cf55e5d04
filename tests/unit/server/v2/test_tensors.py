"""Are a tensor on the wire and a column the same thing, both ways? (input_codec, output_codec)"""

import contextlib
import json
import math
import random
import re
import struct
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.costs import assert_linear
from wherry.core.values.datatypes import (
    BF16,
    BOOL,
    BYTES,
    DATATYPES,
    FP16,
    FP32,
    INT8,
    INT64,
    UINT8,
    UINT64,
    Datatype,
    Form,
    TensorSpec,
    bf16_to_float32,
    float32_to_bf16,
)
from wherry.core.values.errors import BadModelOutput, InvalidRequest, RequestTooLarge, Unsupported
from wherry.core.values.request import Column, ShapedRow
from wherry.server.calls.compression import ANY_RATIO_BYTES, best_coding, compressed, decompressed
from wherry.server.v2.element_bytes import (
    pack_bytes,
    unpack_bytes,
)
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.output_codec import OutputCodec

NUMBERS = [d for d in DATATYPES.values() if d is not BYTES]
DIMS = st.lists(st.integers(1, 3), max_size=3)
AS_JSON = [d for d in NUMBERS if d not in (FP16, BF16)]


def codecs(spec: TensorSpec, *, batched: bool = True) -> tuple[InputCodec, OutputCodec]:
    return InputCodec(spec, "m", batched=batched), OutputCodec(spec, "m", batched=batched)


def through_json(spec: TensorSpec, column: Column, *, batched: bool = True) -> Column:
    read, write = codecs(spec, batched=batched)
    member = json.loads(b"".join(write.json(column)))
    shape = member["shape"]
    data = b"".join(write.json(column)).partition(b'"data":')[2][:-1]
    try:
        return read.from_json(data, read.rows_of(shape), shape)
    except InvalidRequest:
        # NaN and infinities: the whole request is rewritten before its data is looked at.
        text = data.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"')
        text = text.replace(b'-"Infinity"', b'"-Infinity"')
        return read.from_json(text, read.rows_of(shape), shape)


def through_binary(spec: TensorSpec, column: Column, *, batched: bool = True) -> Column:
    read, write = codecs(spec, batched=batched)
    member, parts = write.binary(column)
    described = json.loads(member)
    view = memoryview(b"".join(parts))
    assert described["parameters"]["binary_data_size"] == len(view)
    assert described["datatype"] == spec.datatype.name
    shape = described["shape"]
    return read.from_binary(view, read.rows_of(shape), shape)


def assert_same(got: Column, want: Column) -> None:
    if isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    elif want and isinstance(want[0], np.ndarray):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        assert got == want


def arrays(datatype: Datatype, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    if datatype is BF16:
        halves = hnp.arrays(np.uint16, shape)
        return halves.map(lambda h: np.nan_to_num(bf16_to_float32(h)))
    return hnp.arrays(datatype.dtype, shape)


# decode(encode(x)) == x


@given(
    st.data(), st.sampled_from(NUMBERS), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=3)
)
def test_arrays_survive_binary(
    data: st.DataObject, datatype: Datatype, rows: int, dims: list[int]
) -> None:
    column = data.draw(arrays(datatype, (rows, *dims)))
    form = Form.ARRAY if dims else Form.SCALARS
    assert_same(through_binary(TensorSpec("x", datatype, tuple(dims), form), column), column)


@given(
    st.data(), st.sampled_from(AS_JSON), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=3)
)
def test_arrays_survive_json(
    data: st.DataObject, datatype: Datatype, rows: int, dims: list[int]
) -> None:
    column = data.draw(arrays(datatype, (rows, *dims)))
    form = Form.ARRAY if dims else Form.SCALARS
    assert_same(through_json(TensorSpec("x", datatype, tuple(dims), form), column), column)


@given(st.data(), st.sampled_from(AS_JSON), st.integers(1, 3), st.integers(0, 4))
def test_lists_of_arrays_survive_both_ways(
    data: st.DataObject, datatype: Datatype, rows: int, length: int
) -> None:
    column = list(data.draw(arrays(datatype, (rows, length))))
    spec = TensorSpec("x", datatype, (-1,), Form.ARRAYS)
    assert_same(through_binary(spec, column), column)
    assert_same(through_json(spec, column), column)


@given(st.lists(st.text(), min_size=1))
def test_text_survives_both_ways(column: list[str]) -> None:
    spec = TensorSpec("x", BYTES, (), Form.TEXT)
    assert through_json(spec, column) == column
    assert through_binary(spec, column) == column


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1))
def test_rows_of_several_texts_survive_both_ways(column: list[list[str]]) -> None:
    spec = TensorSpec("x", BYTES, (-1,), Form.TEXT)
    assert through_json(spec, column) == column
    assert through_binary(spec, column) == column


@given(
    st.integers(1, 3), st.lists(st.integers(1, 3), min_size=2, max_size=2), st.booleans(), st.data()
)
def test_rows_of_strings_keep_a_shape_that_the_model_leaves_open(
    rows: int, shape: list[int], batched: bool, data: st.DataObject
) -> None:
    rows = rows if batched else 1
    width = shape[0] * shape[1]
    strings = st.lists(st.text(), min_size=width, max_size=width)
    column = [ShapedRow([text.encode() for text in data.draw(strings)], shape) for _ in range(rows)]
    spec = TensorSpec("x", BYTES, (-1, -1), Form.BYTES)
    for through in (through_json, through_binary):
        there = cast(list[ShapedRow], through(spec, cast(Column, column), batched=batched))
        assert there == column
        assert [row.shape for row in there] == [tuple(shape)] * rows


@given(st.lists(st.binary(), min_size=1))
def test_bytes_survive_binary(column: list[bytes]) -> None:
    assert through_binary(TensorSpec("x", BYTES, (), Form.BYTES), column) == column


@given(st.lists(st.text(), min_size=1))
def test_bytes_that_are_text_survive_json(texts: list[str]) -> None:
    column = [text.encode() for text in texts]
    assert through_json(TensorSpec("x", BYTES, (), Form.BYTES), column) == column


PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
OBJECTS = st.dictionaries(st.text(), PLAIN | st.lists(PLAIN))


@given(st.lists(OBJECTS, min_size=1))
def test_json_rows_survive_both_ways(column: list[dict[str, Any]]) -> None:
    spec = TensorSpec("x", BYTES, (), Form.JSON, json_type=dict)
    assert through_json(spec, column) == column
    assert through_binary(spec, column) == column


@given(st.data(), st.sampled_from(NUMBERS), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_a_model_without_a_batch_dimension_has_the_rows_own_shape(
    data: st.DataObject, datatype: Datatype, dims: list[int]
) -> None:
    column = data.draw(arrays(datatype, (1, *dims)))
    spec = TensorSpec("x", datatype, tuple(dims), Form.ARRAY)
    _, write = codecs(spec, batched=False)
    assert json.loads(write.binary(column)[0])["shape"] == dims
    assert_same(through_binary(spec, column, batched=False), column)


# BF16


def test_bf16_rounds_like_everybody_elses_bf16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    # All halves, and all that lies between two of them: below, at and above the tie.
    halves = np.arange(0, 2**16, 7, dtype=np.uint32) << 16
    offsets = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    values = (halves[:, None] + offsets).ravel().view(np.float32)
    with np.errstate(invalid="ignore"):
        want = values.astype(ml_dtypes.bfloat16)
    got = float32_to_bf16(values)

    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(got[numbers], want.view(np.uint16)[numbers])
    assert np.isnan(bf16_to_float32(got[~numbers])).all()


@given(hnp.arrays(np.uint16, 20))
def test_every_bf16_survives(halves: Any) -> None:
    values = bf16_to_float32(halves)
    got = float32_to_bf16(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(got[numbers], halves[numbers])


# BYTES


@given(st.lists(st.binary()))
def test_packed_bytes_are_unpacked(values: list[bytes]) -> None:
    assert unpack_bytes(memoryview(pack_bytes(values))) == values


@given(st.binary(max_size=40))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    try:
        values = unpack_bytes(memoryview(data))
    except ValueError:
        return
    assert pack_bytes(values) == data


# What a client may get wrong


def spec_of(datatype: Datatype, *dims: int, form: Form | None = None) -> TensorSpec:
    if form is None:
        form = Form.TEXT if datatype is BYTES else Form.ARRAY if dims else Form.SCALARS
    return TensorSpec("x", datatype, dims, form)


@pytest.mark.parametrize(
    ("datatype", "text", "problem"),
    [
        (INT8, "[128]", "data[0]: expected int <= 127"),
        (INT8, "[-129]", "data[0]: expected int >= -128"),
        (UINT8, "[256]", "data[0]: expected int <= 255"),
        (UINT64, "[-1]", "data[0]: expected int >= 0"),
        (UINT64, "[18446744073709551616]", "data"),
        (INT64, "[9223372036854775808]", "data"),
        (INT64, "[1.5]", "data[0]: expected int, got float"),
        (INT64, '["1"]', "data[0]: expected int, got str"),
        (INT64, "[true]", "data[0]: expected int, got bool"),
        (INT64, "[null]", "data[0]: expected int, got null"),
        (INT64, '["NaN"]', "data[0]: expected int, got str"),
        (FP32, "[1e39]", "out of the range of FP32"),
        (FP32, '["a"]', "data[0]: expected float, got str"),
        (FP32, "[true]", "data[0]: expected float, got bool"),
        (FP32, "[1e999]", "data"),
        (BOOL, "[1]", "data[0]: expected bool, got int"),
        (BYTES, "[1]", "data[0]: expected str, got int"),
        (BYTES, "[[[1]]]", "data[0]: expected str, got int"),
        (FP32, "[1, 2]", "needs 1 elements, data has 2"),
        (FP32, "[]", "needs 1 elements, data has 0"),
        (BYTES, "[]", "expected 1 string elements"),
        (FP32, "1", "expected array, got number"),
        (FP32, "null", "expected array, got null"),
        (FP32, '{"a": 1}', "expected array, got object"),
        (FP16, "[1]", "receiving FP16 data via JSON is not supported"),
        (BF16, "[1]", "receiving BF16 data via JSON is not supported"),
    ],
)
def test_wrong_json_data_is_refused_with_its_place(
    datatype: Datatype, text: str, problem: str
) -> None:
    read = InputCodec(spec_of(datatype), "m")
    with pytest.raises(InvalidRequest) as caught:
        read.from_json(text.encode(), 1, [1])
    assert problem in str(caught.value)
    assert re.search(r"input '?x'? (of|for) model 'm'", str(caught.value))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([2**4, 2**60 + 2], "causes total element count to exceed maximum size of"),
        ([2**2, 2**60 + 2], "byte size overflow for input 'x'"),
        ([1, 2], "Unable to parse 'data': Shape does not match true shape of 'data' field"),
    ],
)
def test_a_size_that_no_tensor_can_have_is_told_from_one_that_does_not_match(
    shape: list[int], problem: str
) -> None:
    read = InputCodec(spec_of(FP32, -1), "m")
    with pytest.raises(InvalidRequest, match=problem):
        read.from_json(b"[1]", read.rows_of(shape), shape)


@pytest.mark.parametrize("depth", [50, 120])
def test_data_may_be_nested_so_deep_and_no_deeper(depth: int) -> None:
    text = b"[" * depth + b"1" + b"]" * depth
    read = InputCodec(spec_of(FP32), "m")
    if depth < 100:
        assert read.from_json(text, 1, [1]) == [1]
    else:
        with pytest.raises(InvalidRequest, match="nesting depth exceeds maximum allowed limit"):
            read.from_json(text, 1, [1])


@pytest.mark.parametrize(
    ("datatype", "dims", "problem"),
    [
        (BYTES, (-1,), r"the model must have input shape \[1\]"),
        (BYTES, (2,), r"the model must have input shape \[1\]"),
        (FP16, (-1, -1), "more than one variable-sized dimension"),
        (FP32, (3,), "8 bytes are not FP32 data|input 'x'"),
    ],
)
def test_raw_data_whose_shape_cannot_be_deduced_is_refused(
    datatype: Datatype, dims: tuple[int, ...], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        InputCodec(spec_of(datatype, *dims), "m").from_raw(memoryview(bytes(8)))


@pytest.mark.parametrize(
    ("dims", "shape", "fits"),
    [
        ((), [3], True),
        ((), [3, 1], True),
        ((), [1, 3], False),
        ((), [3, 1, 1], False),
        ((), [], False),
        ((), [0], False),
        ((), [-1], False),
        ((2,), [3, 2], True),
        ((2,), [2], False),
        ((2,), [3, 3], False),
        ((2,), [0, 2], False),
        ((-1,), [3, 5], True),
        ((-1,), [3, -5], False),
        ((-1,), [-3, 5], False),
        ((2, -1), [1, 2, 9], True),
        ((2, -1), [1, 3, 9], False),
    ],
)
def test_a_wire_shape_has_the_rows_in_front(
    dims: tuple[int, ...], shape: list[int], fits: bool
) -> None:
    read = InputCodec(spec_of(FP32, *dims), "m")
    if fits:
        assert read.rows_of(shape) == shape[0]
    else:
        with pytest.raises(InvalidRequest, match="input 'x'"):
            read.rows_of(shape)


def test_data_may_be_nested_in_any_way() -> None:
    read = InputCodec(spec_of(FP32, 2, 2), "m")
    for text in ("[1,2,3,4]", "[[1,2],[3,4]]", "[[[1,2],[3,4]]]", "[[1],[2,[3]],4]"):
        column = read.from_json(text.encode(), 1, [1, 2, 2])
        np.testing.assert_array_equal(column, [[[1, 2], [3, 4]]])


def test_floats_that_json_lacks_arrive_as_strings() -> None:
    read = InputCodec(spec_of(FP32), "m")
    column = read.from_json(b'["NaN","Infinity","-Infinity",1]', 4, [4])
    np.testing.assert_array_equal(column, [math.nan, math.inf, -math.inf, 1])


@pytest.mark.parametrize("dims", [(-1,), (-1, -1)])
def test_an_unbatched_output_without_dimensions_has_the_shape_of_a_scalar(
    dims: tuple[int, ...],
) -> None:
    """Whatever -1 it declares: tritonclient reads as many numbers as the shape has."""
    column = np.array([2.5], np.float32)  # the batch of the core, with one row in it
    write = OutputCodec(spec_of(FP32, *dims), "m", batched=False)
    assert json.loads(b"".join(write.json(column)))["shape"] == []
    assert json.loads(write.small_json(column) or b"")["shape"] == []
    assert json.loads(write.binary(column)[0])["shape"] == []
    member, data = write.small_binary(column, packed=False) or (b"", b"")
    assert json.loads(member)["shape"] == []
    assert bytes(data) == column.tobytes()


def test_floats_that_json_lacks_leave_as_triton_writes_them() -> None:
    column = np.array([math.nan, math.inf, -math.inf, 1], np.float32)
    member = b"".join(OutputCodec(spec_of(FP32), "m").json(column))
    assert member.endswith(b'"shape":[4],"data":[NaN,Infinity,-Infinity,1.0]}')


@pytest.mark.parametrize(
    ("datatype", "data", "problem"),
    [
        (FP32, b"123", "byte size mismatch for input 'x' for model 'm'. Expected 4, got 3"),
        (FP32, b"12345678", "Expected 4, got 8"),
        (
            BYTES,
            b"\x01\x00",
            "incomplete string length indicator for inference input 'x', expecting 4 bytes",
        ),
        (BYTES, b"\x09\x00\x00\x00abc", "expecting string of length 9 but only 3 bytes"),
        (BYTES, b"\xff\xff\xff\xff", "string of length 4294967295"),
        (BYTES, b"", "expected 1 string elements for inference input 'x'"),
        (BYTES, pack_bytes([b"a", b"b"]), "unexpected number of string elements 2"),
        (BYTES, pack_bytes([b"\xff"]), "not UTF-8"),
    ],
)
def test_wrong_binary_data_is_refused(datatype: Datatype, data: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        InputCodec(spec_of(datatype), "m").from_binary(memoryview(data), 1, [1])
    assert problem in str(caught.value)


def test_a_large_body_is_not_copied_and_a_small_one_may_be_written_to() -> None:
    read = InputCodec(spec_of(FP32, 2), "m")
    large = bytearray(8)
    column = read.from_binary(memoryview(large), 1, [1, 2])
    assert isinstance(column, np.ndarray)
    struct.pack_into("<f", large, 4, 7.0)
    assert column[0, 1] == 7.0

    small = read.from_binary(memoryview(bytes(8)), 1, [1, 2])
    assert isinstance(small, np.ndarray)
    assert small.flags.writeable


def test_any_byte_but_zero_is_true() -> None:
    column = InputCodec(spec_of(BOOL), "m").from_binary(memoryview(b"\x00\x01\x02"), 3, [3])
    assert isinstance(column, np.ndarray)
    assert column.tolist() == [False, True, True]


def test_json_rows_are_objects_or_strings_that_hold_them() -> None:
    read = InputCodec(TensorSpec("x", BYTES, (), Form.JSON, json_type=dict), "m")
    assert read.from_json(b'[{"a":1},"{\\"b\\":2}"]', 2, [2]) == [{"a": 1}, {"b": 2}]
    with pytest.raises(InvalidRequest, match="does not hold JSON"):
        read.from_json(b'["{"]', 1, [1])


# What a model may give


def test_numpy_values_inside_of_json_rows_are_numbers() -> None:
    write = OutputCodec(TensorSpec("x", BYTES, (), Form.JSON, json_type=dict), "m")
    row = {"score": np.float32(0.5), "ids": np.arange(2)}
    assert json.loads(b"".join(write.json([row])))["data"] == ['{"score":0.5,"ids":[0,1]}']


@pytest.mark.parametrize(
    ("form", "value"), [(Form.JSON, {"a": object()}), (Form.TEXT, "\ud800"), (Form.JSON, {1j: 1})]
)
def test_what_cannot_be_sent_is_the_models_fault(form: Form, value: Any) -> None:
    write = OutputCodec(TensorSpec("x", BYTES, (), form), "m")
    with pytest.raises(BadModelOutput, match="output 'x'"):
        list(write.json([value]))
    with pytest.raises(BadModelOutput, match="output 'x'"):
        write.binary([value])


def test_bytes_that_are_no_text_need_binary_data() -> None:
    write = OutputCodec(TensorSpec("x", BYTES, (), Form.BYTES), "m")
    with pytest.raises(InvalidRequest, match="request binary"):
        list(write.json([b"\xff"]))
    assert write.binary([b"\xff"])[1] == [pack_bytes([b"\xff"])]


@pytest.mark.parametrize(
    ("spec", "column"),
    [
        (TensorSpec("x", BYTES, (-1,), Form.TEXT), [["a"], ["a", "b"]]),
        (TensorSpec("x", FP32, (-1,), Form.ARRAYS), [np.zeros(1), np.zeros(2)]),
    ],
)
def test_rows_of_different_lengths_are_no_tensor(spec: TensorSpec, column: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match="one row in each request"):
        b"".join(OutputCodec(spec, "m").json(column))


@pytest.mark.parametrize("datatype", [FP16, BF16])
def test_half_floats_leave_as_binary_only(datatype: Datatype) -> None:
    write = OutputCodec(spec_of(datatype), "m")
    column = np.array([1.5], datatype.dtype)
    with pytest.raises(InvalidRequest, match="use the binary data format for output x"):
        b"".join(write.json(column))
    assert [len(part) for part in write.binary(column)[1]] == [2]


def test_classification_gives_the_best_of_each_row() -> None:
    column = np.array([[0.1, 0.7, 0.2], [3, 1, 2]], np.float32)
    spec, classes = OutputCodec(spec_of(FP32, 3), "m").classes(column, 2)
    assert json.loads(b"".join(OutputCodec(spec, "m").json(classes))) == {
        "name": "x",
        "datatype": "BYTES",
        "shape": [2, 2],
        "data": ["0.700000:1", "0.200000:2", "3.000000:0", "2.000000:2"],
    }


def test_classification_of_more_than_there_are_gives_all_of_them() -> None:
    column = np.array([[5, -7]], np.int64)
    _, classes = OutputCodec(spec_of(INT64, 2), "m").classes(column, 9)
    assert classes == [["5:0", "-7:1"]]


# Compression


@given(st.binary(), st.sampled_from(["gzip", "deflate"]))
def test_what_was_compressed_is_decompressed(body: bytes, coding: str) -> None:
    assert decompressed(compressed(body, coding), coding, 10_000) == body


@pytest.mark.parametrize(("coding", "members"), [("gzip", 1), ("gzip", 3), ("deflate", 1)])
@pytest.mark.parametrize("noise", [True, False])
def test_a_body_of_many_slices_is_decompressed_whole(
    coding: str, members: int, noise: bool
) -> None:
    random_bytes = random.Random(7).randbytes
    sparse = b"".join(random_bytes(64) + bytes(1000) for _ in range(5000))
    body = random_bytes(1_000_000) if noise else sparse
    packed = compressed(body, coding)
    assert decompressed(packed * members, coding, len(body) * members) == body * members
    with pytest.raises(RequestTooLarge):
        decompressed(packed * members, coding, len(body) * members - 1)
    for missing in (1, 9, len(packed) // 2):
        with pytest.raises(InvalidRequest, match="incomplete"):
            decompressed((packed * members)[:-missing], coding, len(body) * members)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "unit", [b"\0", b"\0\1\2" * 40, random.Random(8).randbytes(40_000)], ids=len
)
def test_unpacking_costs_what_it_gives(unit: bytes, coding: str) -> None:
    def unpack(packed: bytes) -> None:
        with contextlib.suppress(RequestTooLarge):  # the small ones repeat too often
            decompressed(packed, coding, 2**30)

    assert_linear(unpack, lambda size: compressed(unit * size, coding), largest=2**14)


@given(st.binary(max_size=100), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_are_decompressed_or_refused(body: bytes, coding: str) -> None:
    try:
        decompressed(body, coding, 1000)
    except (InvalidRequest, RequestTooLarge):
        return


def test_a_bomb_is_not_unpacked_beyond_the_limit() -> None:
    bomb = compressed(bytes(10_000_000), "gzip")
    with pytest.raises(RequestTooLarge, match="1000 bytes"):
        decompressed(bomb, "gzip", 1000)
    with pytest.raises(InvalidRequest, match="members"):
        decompressed(compressed(b"", "gzip") * 1000, "gzip", 1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_unpacks_to_100_times_what_came_or_to_little(coding: str) -> None:
    assert len(decompressed(compressed(bytes(ANY_RATIO_BYTES), coding), coding, 2**30)) == 2**20
    bomb = compressed(bytes(60 * 2**20), coding)
    with pytest.raises(RequestTooLarge, match="100 times those that came; send it uncompressed"):
        decompressed(bomb, coding, 2**30)
    noise = compressed(random.Random(3).randbytes(2**20), coding)
    if coding == "gzip":  # a file may have several members
        assert len(decompressed(noise + bomb, coding, 2**30)) == 61 * 2**20


def test_an_unknown_coding_is_not_guessed() -> None:
    with pytest.raises(Unsupported):
        decompressed(b"", "br", 1000)


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("deflate;q=0.9, gzip;q=0.5", "deflate"),
        ("gzip;q=0", None),
        ("*", "gzip"),
        ("*;q=0.1, gzip;q=0", "deflate"),
        ("br", None),
        ("", None),
        ("identity", None),
        ("identity;q=1, gzip;q=0.5", None),
        ("gzip;q=what", None),
        ("GZIP", "gzip"),
    ],
)
def test_the_client_says_which_coding_it_likes_best(header: str, coding: str | None) -> None:
    assert best_coding(header) == coding


def test_raw_data_is_one_row_of_text_or_as_many_numbers_as_there_are() -> None:
    assert InputCodec(spec_of(BYTES), "m").from_raw(memoryview(b"abc")) == (["abc"], 1)
    column, rows = InputCodec(spec_of(FP32, 2), "m").from_raw(memoryview(bytes(16)))
    assert (np.shape(column), rows) == ((2, 2), 2)
    column, rows = InputCodec(spec_of(FP32, -1), "m").from_raw(memoryview(bytes(16)))
    assert (np.shape(column), rows) == ((1, 4), 1)
    with pytest.raises(InvalidRequest, match="not FP32 data"):
        InputCodec(spec_of(FP32), "m").from_raw(memoryview(b"abc"))


def test_a_codec_takes_any_kind_of_buffer() -> None:
    read = InputCodec(spec_of(BYTES), "m")
    for data in (b'["a"]', bytearray(b'["a"]'), memoryview(b'["a"]'), msgspec.Raw(b'["a"]')):
        assert read.from_json(data, 1, [1]) == ["a"]
