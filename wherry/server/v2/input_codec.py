"""How does a tensor of a request become a column?

JSON `data` and the binary tensor extension; values in, values out, no I/O. A codec is made once for
each input of a model. Every mistake of a client raises an InvalidRequest that names the input.

A row of one element has the wire shape [rows]; [rows, 1] is taken too. A model without a batch
dimension (`max_batch_size` 0) has exactly one row, and its wire shape is that row's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from wherry.core.api import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    Array,
    Buffer,
    Column,
    Form,
    InvalidRequest,
    ShapedRow,
    TensorSpec,
    bf16_to_float32,
)
from wherry.server.v2.element_bytes import dims_text, unpack_bytes, wire_shape
from wherry.server.v2.json_elements import InputErrors, JsonElements, explain, parse_element
from wherry.server.v2.long_arrays import LongArray


class InputCodec:
    def __init__(self, spec: TensorSpec, model: str, *, batched: bool = True) -> None:
        self.spec = spec
        self.name = spec.name
        self.datatype = spec.datatype.name
        self._model = model
        self._batched = batched
        self._scalar_rows = spec.shape == ()
        self._text = spec.form is Form.TEXT and self._scalar_rows
        #: Its column is a view of binary data, however large that is.
        self.views = spec.form is Form.ARRAY and spec.datatype not in (BYTES, BOOL, BF16)
        #: JSON numbers that become one array.
        self._numbers = spec.form in (Form.ARRAY, Form.SCALARS) and spec.datatype not in (
            BYTES, FP16, BF16,
        )  # fmt: skip
        #: A row's elements alone do not determine its shape.
        self._open_sizes = spec.shape.count(-1) > 1
        self.errors = InputErrors(spec.name, model, spec.datatype)
        self.elements = JsonElements(spec, self.errors)
        self._decode = self.elements.decode

    @property
    def wire_shape(self) -> list[int]:
        return wire_shape(self.spec, self._batched)

    def rows_of(self, shape: list[int]) -> int:
        """Return the rows of a tensor of this shape; InvalidRequest if the input has another."""
        if self._scalar_rows:
            if not shape and not self._batched:
                return 1
            if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
                rows = shape[0]
                if rows > 0 and (self._batched or rows == 1):
                    return rows
        elif self._batched:
            if len(shape) > 1 and shape[0] > 0 and self._fits(shape[1:]):
                return shape[0]
        elif shape and self._fits(shape):
            return 1
        if self._batched and shape and shape[0] == 0:
            raise self.errors.invalid("shape has 0 rows; a request needs at least one")
        raise InvalidRequest(
            f"unexpected shape for input '{self.name}' for model '{self._model}'."
            f" Expected {dims_text(self.wire_shape)}, got {dims_text(shape)}"
        )

    def from_json(self, data: Buffer | msgspec.Raw, rows: int, shape: list[int]) -> Column:
        """The column that `data` (JSON text, flat or nested in any way) holds."""
        try:
            values: list[Any] = self._decode(data)
        except msgspec.ValidationError:
            with np.errstate(over="raise"):
                return self._column_of_values(self.elements.parse(data), rows, shape)
        except (ValueError, RecursionError) as error:
            raise self.elements.malformed(error) from None
        return self.from_list(values, rows, shape)

    def from_list(self, values: list[Any], rows: int, shape: list[int]) -> Column:
        """The column of elements that were read as `elements.usual_type`."""
        if self._text and len(values) == rows:
            return values  # the usual request, as it is
        if self._numbers and len(values) == math.prod(shape):
            try:
                array: Array = np.fromiter(values, self.spec.datatype.dtype, len(values))
            except OverflowError:
                return self._column_of_values(values, rows, shape)  # it raises the error
            if self._scalar_rows:
                return array
            return array.reshape(shape if self._batched else [1, *shape])
        return self._column_of_values(values, rows, shape)

    def from_long_array(self, data: LongArray, rows: int, shape: list[int]) -> Column:
        count = math.prod(shape)
        if not self.elements.are_rows and data.commas + 1 > max(1, count):
            raise self.errors.wrong_count(shape, count, data.commas + 1)  # without reading them all
        if self.elements.are_rows or self.spec.datatype is BYTES:
            values: list[Any] = []
            for piece in self.elements.pieces(data):
                values += piece
                if len(values) > count:  # what follows need not be built
                    break
            return self._column_of_values(values, rows, shape)
        arrays: list[Array] = []
        with np.errstate(over="raise"):
            arrays = [self._array_of(piece) for piece in self.elements.pieces(data)]
        got = sum(map(len, arrays))
        if got != count:
            raise self.errors.wrong_count(shape, count, got)
        return self._column_of_array(np.concatenate(arrays), rows, shape)

    def from_values(self, values: Any, rows: int, shape: list[int]) -> Column:
        values = self.elements.checked(values)
        with np.errstate(over="raise"):
            return self._column_of_values(values, rows, shape)

    def from_binary(
        self, data: memoryview, rows: int, shape: list[int], *, shared: bool = False
    ) -> Column:
        """The column that raw bytes hold. Arrays of a large body, or of shared memory, which
        must not be written to, are views of it."""
        count = math.prod(shape)
        datatype = self.spec.datatype
        if datatype is BYTES:
            return self._column_of_elements(self._split(data, count), rows, shape)
        if len(data) != count * datatype.itemsize:
            raise self.errors.size_mismatch(count * datatype.itemsize, len(data))
        array: Array
        if datatype is BF16:
            array = bf16_to_float32(np.frombuffer(data, np.uint16))
        elif datatype is BOOL:
            array = np.frombuffer(data, np.uint8) != 0  # any other byte is not a bool in numpy
        else:
            array = np.frombuffer(data, datatype.dtype)
            if data.readonly and not shared:
                # A small body: the model may write into its input, as it may into a batch.
                array = array.copy()
            if self.views and self._batched and not self._scalar_rows:
                return array.reshape(shape)
        return self._column_of_array(array, rows, shape)

    def from_elements(self, values: Sequence[Buffer], rows: int, shape: list[int]) -> Column:
        """The column of a BYTES tensor's elements, whose number is right."""
        elements = [v if type(v) is bytes else bytes(v) for v in values]
        return self._column_of_elements(elements, rows, shape)

    def from_raw(self, data: memoryview) -> tuple[Column, int]:
        """The column, and its rows, of a body that is nothing but this tensor's data."""
        datatype = self.spec.datatype
        row_shape = self.spec.shape
        if datatype is BYTES:
            if math.prod(row_shape) != 1:
                raise InvalidRequest(
                    f"For BYTE datatype raw input '{self.name}', the model must have input shape"
                    " [1]",
                    more=f"; it has {dims_text(row_shape)}",
                )
            column = self._column_of_elements([bytes(data)], 1, [1] * len(self.wire_shape))
            return column, 1
        if row_shape.count(-1) > 1:
            raise InvalidRequest(
                f"The shape of the raw input '{self.name}' can not be deduced because there are"
                f" more than one variable-sized dimension: {dims_text(row_shape)}"
            )
        count, rest = divmod(len(data), datatype.itemsize)
        if rest or not count:
            raise self.errors.invalid(f"{len(data)} bytes are not {self.datatype} data")
        shape = self.shape_of(count)
        rows = self.rows_of(shape)
        return self.from_binary(data, rows, shape), rows

    def shape_of(self, count: int) -> list[int]:
        """The shape that `count` elements without one have: the innermost -1 takes the rest."""
        shape = self.wire_shape
        unknown = [i for i, d in enumerate(shape) if d == -1]
        fixed = math.prod(d for d in shape if d != -1)
        fits = fixed and not count % fixed if unknown else count == fixed
        if not fits:
            raise self.errors.invalid(f"{count} elements do not fill the shape {dims_text(shape)}")
        shape = [1 if d == -1 else d for d in shape]
        if unknown:
            shape[unknown[-1]] = count // fixed
        return shape

    def _fits(self, row_shape: list[int]) -> bool:
        return min(row_shape, default=0) >= 0 and self.spec.fits(tuple(row_shape))

    def _column_of_values(self, values: list[Any], rows: int, shape: list[int]) -> Column:
        datatype = self.spec.datatype
        count = math.prod(shape)
        if len(values) != count:
            raise self.errors.wrong_count(shape, count, len(values))
        if datatype is BYTES:
            return self._column_of_elements(values, rows, shape)
        return self._column_of_array(self._array_of(values), rows, shape)

    def _array_of(self, values: list[Any]) -> Array:
        datatype = self.spec.datatype
        if datatype is FP16 or datatype is BF16:
            raise InvalidRequest(
                f"receiving {datatype} data via JSON is not supported. Please use the binary data"
                f" format for input {self.name}",
                more=f" of model '{self._model}'",
            )
        try:
            array: Array = np.array(values, datatype.dtype)
        except (OverflowError, FloatingPointError):
            raise self.errors.invalid(f"data: a number is out of the range of {datatype}") from None
        return array

    def _column_of_array(self, array: Array, rows: int, shape: list[int]) -> Column:
        if self._scalar_rows:
            column = array.reshape(rows)
        else:
            column = array.reshape(shape if self._batched else [1, *shape])
        return list(column) if self.spec.form is Form.ARRAYS else column

    def _column_of_elements(self, values: list[Any], rows: int, shape: list[int]) -> Column:
        form = self.spec.form
        if form is Form.TEXT:
            try:
                values = list(map(bytes.decode, values))
            except (TypeError, UnicodeDecodeError):  # they are texts already, or one is not text
                values = [v if type(v) is str else self._text_of(v) for v in values]
        elif form is Form.BYTES:
            values = [v.encode() if type(v) is str else v for v in values]
        else:
            values = [self._json_of(v) if isinstance(v, str | bytes) else v for v in values]
        if self._scalar_rows:
            return values
        width = len(values) // rows
        column = [values[row * width : (row + 1) * width] for row in range(rows)]
        if not self._open_sizes:
            return column
        row_shape = shape[1:] if self._batched else shape
        return [ShapedRow(row, row_shape) for row in column]

    def _text_of(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self.errors.invalid(
                f"an element is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    def _json_of(self, value: str | bytes) -> Any:
        try:
            return parse_element(value)
        except InvalidRequest:
            raise  # it is too large or too deep
        except (ValueError, RecursionError) as error:
            raise self.errors.invalid(f"an element does not hold JSON: {explain(error)}") from None

    def _split(self, data: memoryview, count: int) -> list[bytes]:
        try:
            values = unpack_bytes(data)
        except ValueError as error:
            what, problem = error.args
            raise InvalidRequest(
                f"incomplete string {what} for inference input '{self.name}', {problem}, for model"
                f" '{self._model}'"
            ) from None
        if len(values) != count:
            raise self.errors.wrong_string_count(count, len(values))
        return values
