"""Does a column come back from a tensor as it went?"""

from typing import Any

import numpy as np
import pytest

from wherry.core.values.datatypes import (
    BF16,
    BYTES,
    DATATYPES,
    FP32,
    INT32,
    Form,
    TensorSpec,
    bf16_to_float32,
    float32_to_bf16,
)
from wherry.core.values.request import Column
from wherry.triton.python.request_codec import (
    fits,
    get,
    put,
)
from wherry.triton.python.stub.wire import Incoming, Outgoing


def through(spec: TensorSpec, column: Column, *, batched: bool = True) -> tuple[Column, int, Any]:
    """Out as a tensor and in again; with the descriptor between them."""
    out = Outgoing()
    descriptor = put(out, spec, column, spec.shape, batched=batched)
    incoming = Incoming(bytearray(b"".join(out.chunks)), None, None)
    back, rows = get(descriptor, incoming, spec, batched=batched)
    return back, rows, descriptor


@pytest.mark.parametrize("name", sorted(set(DATATYPES) - {"BYTES"}))
def test_numbers_of_each_datatype_come_back(name: str) -> None:
    datatype = DATATYPES[name]
    spec = TensorSpec("x", datatype, (3,), Form.ARRAY)
    column = np.arange(6).reshape(2, 3).astype(datatype.dtype)
    back, rows, descriptor = through(spec, column)

    assert descriptor[1:3] == [name, [2, 3]]
    assert rows == 2
    np.testing.assert_array_equal(back, column)


def test_without_a_batch_dimension_the_tensor_is_the_row() -> None:
    spec = TensorSpec("x", FP32, (3,), Form.ARRAY)
    back, rows, descriptor = through(spec, np.ones((1, 3), np.float32), batched=False)

    assert descriptor[2] == [3]
    assert rows == 1
    assert isinstance(back, np.ndarray)
    assert back.shape == (1, 3)


@pytest.mark.parametrize(
    ("form", "shape", "column", "sent"),
    [
        (Form.BYTES, (), [b"a", b""], [2]),
        (Form.TEXT, (), ["a", "\u00e4"], [2]),
        (Form.JSON, (), [{"a": 1}, {"b": []}], [2]),
        (Form.BYTES, (-1,), [[b"a", b"b"], [b"c", b"d"]], [2, 2]),
        (Form.BYTES, (1, -1), [[b"a", b"b"], [b"c", b"d"]], [2, 1, 2]),
        (Form.TEXT, (2,), [["a", "b"]], [1, 2]),
    ],
)
def test_strings_of_all_forms_come_back(
    form: Form, shape: tuple[int, ...], column: list[Any], sent: list[int]
) -> None:
    back, rows, descriptor = through(TensorSpec("x", BYTES, shape, form), column)

    assert descriptor[1:3] == ["BYTES", sent]
    assert back == column
    assert rows == len(column)


def test_arrays_of_one_shape_are_a_tensor_and_others_are_not() -> None:
    spec = TensorSpec("x", INT32, (-1,), Form.ARRAYS)
    back, _, _ = through(spec, [np.array([1, 2], np.int32), np.array([3, 4], np.int32)])

    assert [row.tolist() for row in back] == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="same shape"):
        put(Outgoing(), spec, [np.zeros(1), np.zeros(2)], (-1,), batched=True)


def test_what_fits_is_converted_and_what_does_not_is_refused() -> None:
    spec = TensorSpec("x", FP32, (1,), Form.ARRAY)
    out = Outgoing()
    wide = out.put("x", "FP64", [1, 1], np.full((1, 1), 1.5))
    text = out.put("x", "BYTES", [1, 1], b"\1\0\0\0a")
    whole = out.put("x", "INT32", [1, 1], np.ones((1, 1), np.int32))
    short = [*wide[:2], [2, 1], *wide[3:]]
    incoming = Incoming(bytearray(b"".join(out.chunks)), None, None)

    column, _ = get(wide, incoming, spec, batched=True)
    assert isinstance(column, np.ndarray)
    assert column.dtype == np.float32
    integer = TensorSpec("x", INT32, (1,), Form.ARRAY)
    for descriptor, wanted, why in (
        (text, spec, "it is BYTES, declared is FP32"),
        (wide, integer, "it is FP64, declared is INT32"),
        (short, spec, "8 bytes are not FP64"),
        ([*whole[:1], "NONSENSE", *whole[2:]], spec, "are not NONSENSE"),
    ):
        with pytest.raises(ValueError, match=why):
            get(descriptor, incoming, wanted, batched=True)


def test_rows_are_checked_against_their_declared_shape() -> None:
    spec = TensorSpec("x", FP32, (2, -1), Form.ARRAY)

    assert fits(np.zeros((4, 2, 7), np.float32), spec)
    assert not fits(np.zeros((4, 3, 7), np.float32), spec)
    strings = TensorSpec("x", BYTES, (2, -1), Form.BYTES)
    assert fits([[b""] * 4], strings)
    assert not fits([[b""] * 3], strings)


def test_bfloat16_is_rounded_to_nearest_even_and_nan_stays() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, np.nan, np.inf, -0.0], np.float32)
    back = bf16_to_float32(float32_to_bf16(values))

    np.testing.assert_array_equal(
        back, np.array([1.0, 1.0, 1.015625, np.nan, np.inf, -0.0], np.float32)
    )
    assert float32_to_bf16(values).dtype == np.uint16
    assert TensorSpec("x", BF16, (1,), Form.ARRAY).datatype.itemsize == 2


@pytest.mark.parametrize(
    ("sent_as", "values", "declared", "survives"),
    [
        ("FP16", [0, 1], "BOOL", True),  # a model of Triton's own tests
        ("FP32", [3, -2], "INT32", True),
        ("FP32", [3, 0.5], "INT32", False),
        ("FP64", [1e300], "INT32", False),
        ("FP32", [np.nan], "INT32", False),
        ("INT64", [2], "BOOL", False),
        ("INT64", [1 << 40], "INT32", False),
    ],
)
def test_an_output_of_another_kind_is_converted_if_no_value_changes(
    sent_as: str, values: list[float], declared: str, survives: bool
) -> None:
    out = Outgoing()
    given = np.array(values, DATATYPES[sent_as].dtype)
    descriptor = out.put("y", sent_as, [len(values)], given)
    incoming = Incoming(bytearray(b"".join(out.chunks)), None, None)
    spec = TensorSpec("y", DATATYPES[declared], (-1,), Form.ARRAY)

    if survives:
        column, _ = get(descriptor, incoming, spec, batched=False)
        assert isinstance(column, np.ndarray)
        assert column.dtype == spec.datatype.dtype
        assert column[0].tolist() == values
    else:
        with pytest.raises(ValueError, match="declared is"):
            get(descriptor, incoming, spec, batched=False)
