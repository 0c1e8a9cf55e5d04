"""How does a tensor on the wire become a column, and a column a tensor again?

JSON `data` and the binary tensor extension, both ways; values in, values out, no I/O. A codec is
made once for each input and output of a model. Everything a client can get wrong is an
InvalidRequest that names the input.

A row of one element has the wire shape [rows]; [rows, 1] is taken too. A model without a batch
dimension (`max_batch_size` 0) has exactly one row, and its wire shape is that row's.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, get_origin

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.frontends.json_text import encode_json
from wherry.frontends.offload import SLICE_BYTES, SLICE_ELEMENTS, give_way
from wherry.frontends.v2.classification import best_classes, check_classifiable
from wherry.frontends.v2.json_errors import (
    MAX_DEPTH,
    TOO_DEEP,
    expected_kind,
    explain,
    mismatch,
)
from wherry.frontends.v2.long_arrays import LongArray
from wherry.values.buffer import Buffer
from wherry.values.datatypes import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    FP32,
    UINT64,
    Datatype,
    Form,
    TensorSpec,
)
from wherry.values.errors import BadModelOutput, InvalidRequest
from wherry.values.request import Array, Column, ShapedRow, ShapedRows

#: Floats that JSON has no number for. Triton's clients send and expect the bare literals; inside
#: a request they arrive here as strings, as in protobuf's JSON.
NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

#: A literal, or the end, behind all that is no literal: strings are taken whole, also one that does
#: not end. It matches wherever it is tried, so that no byte is looked at twice.
_TO_THE_NEXT_NON_FINITE: Final = re.compile(
    rb"""((?:[^"NI-]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?!NaN|-?Infinity).)*+)(NaN|-?Infinity|\Z)""",
    re.DOTALL,
)

#: Strings that are packed before anything is known of their length.
FIRST_ELEMENTS: Final = 256

_FIRST_INDEX: Final = re.compile(r"\[([0-9]+)\]")
_LENGTH: Final = struct.Struct("<I")
#: More than any tensor's elements or bytes: what a size of 64 signed bits can say.
_MOST_BYTES: Final = 2**63 - 1
_UNTYPED: Final = msgspec.json.Decoder()


def with_quoted_literals(text: bytes) -> bytes | None:
    """JSON with NaN, Infinity and -Infinity as strings; None if there are none."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    return _TO_THE_NEXT_NON_FINITE.sub(
        lambda found: b'%b"%b"' % found.groups() if found[2] else found[1], text
    )


def _element_type(datatype: Datatype) -> Any:
    """What one element of `data` must be; the range of an integer is part of its type."""
    if datatype is BYTES:
        return str
    if datatype is BOOL:
        return bool
    if datatype.dtype.kind == "f":
        return float
    limits = np.iinfo(datatype.dtype.name)
    # msgspec's bounds have 64 signed bits: numpy refuses what is too large for a UINT64.
    most = None if datatype is UINT64 else int(limits.max)
    return Annotated[int, msgspec.Meta(ge=int(limits.min), le=most)]


def _fast_element_type(datatype: Datatype) -> Any:
    """As above, without the rare floats that need care: they are looked at again, slowly."""
    if datatype is FP32:
        limit = float(np.finfo(np.float32).max)
        return Annotated[float, msgspec.Meta(ge=-limit, le=limit)]
    return _element_type(datatype)


class InputCodec:
    """One input of a model, from the wire."""

    def __init__(self, spec: TensorSpec, model: str, *, batched: bool = True) -> None:
        self.spec = spec
        self.name = spec.name
        self.datatype = spec.datatype.name
        self._model = model
        self._batched = batched
        self._scalar_rows = spec.shape == ()
        self._json_rows = spec.form is Form.JSON and self._scalar_rows
        self._text = spec.form is Form.TEXT and self._scalar_rows
        #: Its column is a view of binary data, however large that is.
        self.views = spec.form is Form.ARRAY and spec.datatype not in (BYTES, BOOL, BF16)
        #: A row's elements alone do not tell its shape.
        self._open_sizes = spec.shape.count(-1) > 1
        self._list_type: Any = list[_element_type(spec.datatype)]  # type: ignore[misc]
        fast: Any = list[_fast_element_type(spec.datatype)]  # type: ignore[misc]
        self._decode = msgspec.json.Decoder(list[Any] if self._json_rows else fast).decode

    @property
    def wire_shape(self) -> list[int]:
        return wire_shape(self.spec, self._batched)

    def rows_of(self, shape: list[int]) -> int:
        """How many rows a tensor of this wire shape has; InvalidRequest if it cannot be ours."""
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
            raise self._invalid("shape has 0 rows; a request needs at least one")
        raise InvalidRequest(
            f"unexpected shape for input '{self.name}' for model '{self._model}'."
            f" Expected {_dims(self.wire_shape)}, got {_dims(shape)}"
        )

    def from_json(self, data: Buffer | msgspec.Raw, rows: int, shape: list[int]) -> Column:
        """The column that `data` (JSON text, flat or nested in any way) holds."""
        try:
            values: list[Any] = self._decode(data)
        except msgspec.ValidationError:
            return self.from_values(self._parsed(data), rows, shape)
        except (ValueError, RecursionError) as error:
            raise self._invalid(f"data: {explain(error)}") from None
        if self._text and len(values) == rows:
            return values  # the usual request, as it is
        return self._column_of_values(values, rows, shape)

    def from_long_array(self, data: LongArray, rows: int, shape: list[int]) -> Column:
        """As `from_json`, piece by piece."""
        count = math.prod(shape)
        if not self._json_rows and data.commas + 1 > max(1, count):
            raise self._wrong_count(shape, count, data.commas + 1)  # without reading them all
        if self._json_rows or self.spec.datatype is BYTES:
            values: list[Any] = []
            for piece in self._pieces(data):
                values += piece
            return self._column_of_values(values, rows, shape)
        arrays: list[Array] = []
        with np.errstate(over="raise"):
            arrays = [self._array_of(piece) for piece in self._pieces(data)]
        got = sum(map(len, arrays))
        if got != count:
            raise self._wrong_count(shape, count, got)
        return self._column_of_array(np.concatenate(arrays), rows, shape)

    def _pieces(self, data: LongArray) -> Iterator[list[Any]]:
        first = 0
        try:
            for text in data.texts():
                piece = self._piece(text, first)
                first += len(piece)
                yield piece
        except InvalidRequest:
            raise
        except (ValueError, RecursionError) as error:
            said = explain(error).partition(" (byte ")[0]  # of the piece, not of the body
            raise self._invalid(f"data: {said}") from None

    def _piece(self, text: bytes, first: int) -> list[Any]:
        try:
            values: list[Any] = self._decode(text)
            return values
        except msgspec.DecodeError:
            pass  # it is nested, or has literals that JSON has not, or is wrong
        try:
            value = _UNTYPED.decode(text)
        except msgspec.DecodeError:
            loose = with_quoted_literals(text)
            if loose is None:
                raise
            value = _UNTYPED.decode(loose)
        return self._checked(value, first)

    def from_values(self, values: Any, rows: int, shape: list[int]) -> Column:
        """The column of `data` that is Python values already."""
        values = self._checked(values)
        with np.errstate(over="raise"):
            return self._column_of_values(values, rows, shape)

    def from_binary(
        self, data: memoryview, rows: int, shape: list[int], *, shared: bool = False
    ) -> Column:
        """The column that raw bytes hold. Arrays of a large body, or of shared memory (which
        nobody may write to), are views of it."""
        count = math.prod(shape)
        datatype = self.spec.datatype
        if datatype is BYTES:
            return self._column_of_elements(self._split(data, count), rows, shape)
        if len(data) != count * datatype.itemsize:
            raise self.size_mismatch(count * datatype.itemsize, len(data))
        array: Array
        if datatype is BF16:
            array = bf16_to_float32(np.frombuffer(data, np.uint16))
        elif datatype is BOOL:
            array = np.frombuffer(data, np.uint8) != 0  # any other byte is no bool in numpy
        else:
            array = np.frombuffer(data, datatype.dtype)
            if data.readonly and not shared:
                # A small body: the model may write into its input, as it may into a batch.
                array = array.copy()
        return self._column_of_array(array, rows, shape)

    def from_elements(self, values: list[Buffer], rows: int, shape: list[int]) -> Column:
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
                    f" [1]; it has {_dims(row_shape)}"
                )
            column = self._column_of_elements([bytes(data)], 1, [1] * len(self.wire_shape))
            return column, 1
        if row_shape.count(-1) > 1:
            raise InvalidRequest(
                f"The shape of the raw input '{self.name}' can not be deduced because there are"
                f" more than one variable-sized dimension: {_dims(row_shape)}"
            )
        count, rest = divmod(len(data), datatype.itemsize)
        if rest or not count:
            raise self._invalid(f"{len(data)} bytes are no {self.datatype} data")
        dims = self.wire_shape
        unknown = [i for i, d in enumerate(dims) if d == -1]
        shape = [1 if d == -1 else d for d in dims]
        if unknown:
            shape[unknown[-1]] = count // max(1, math.prod(shape))
        rows = self.rows_of(shape)
        return self.from_binary(data, rows, shape), rows

    def shape_of(self, count: int) -> list[int]:
        """The shape that `count` elements without one have: the innermost -1 takes the rest."""
        shape = self.wire_shape
        unknown = [i for i, d in enumerate(shape) if d == -1]
        fixed = math.prod(d for d in shape if d != -1)
        fits = fixed and not count % fixed if unknown else count == fixed
        if not fits:
            raise self._invalid(f"{count} elements do not fill the shape {_dims(shape)}")
        shape = [1 if d == -1 else d for d in shape]
        if unknown:
            shape[unknown[-1]] = count // fixed
        return shape

    def elements_of(self, value: Any) -> list[Any]:
        """The elements of a value without a shape: one, or a list of them."""
        if not self._json_rows:
            return _flat(value)
        if not isinstance(value, list):
            return [value]
        if _is_list(self.spec.json_type):  # then it is one row, if its elements are none
            return value if value and all(isinstance(row, list) for row in value) else [value]
        return value

    def _fits(self, row_shape: list[int]) -> bool:
        return min(row_shape, default=0) >= 0 and self.spec.fits(tuple(row_shape))

    def _parsed(self, data: Buffer | msgspec.Raw) -> Any:
        try:
            return _UNTYPED.decode(data)
        except (ValueError, RecursionError) as error:
            raise self._invalid(f"data: {explain(error)}") from None

    def _checked(self, values: Any, first: int = 0) -> list[Any]:
        """Flat elements of the right type, from anything that JSON may be; there are `first`
        before them."""
        if not isinstance(values, list):
            raise self._invalid(f"data: expected array, got {_json_kind(values)}")
        if self._json_rows:
            return values
        flat = _flat(values)
        if self.spec.datatype.dtype.kind == "f":
            flat = [NON_FINITE.get(v, v) if type(v) is str else v for v in flat]
        try:
            checked: list[Any] = msgspec.convert(flat, self._list_type)
            return checked
        except msgspec.ValidationError as error:
            said = explain(error, "data")
            if first:
                said = _FIRST_INDEX.sub(lambda found: f"[{int(found[1]) + first}]", said, count=1)
            raise self._wrong_kind(said) from None

    def _column_of_values(self, values: list[Any], rows: int, shape: list[int]) -> Column:
        datatype = self.spec.datatype
        count = math.prod(shape)
        if len(values) != count:
            raise self._wrong_count(shape, count, len(values))
        if datatype is BYTES:
            return self._column_of_elements(values, rows, shape)
        return self._column_of_array(self._array_of(values), rows, shape)

    def _array_of(self, values: list[Any]) -> Array:
        datatype = self.spec.datatype
        if datatype is FP16 or datatype is BF16:
            raise InvalidRequest(
                f"receiving {datatype} data via JSON is not supported. Please use the binary data"
                f" format for input {self.name} of model '{self._model}'"
            )
        try:
            array: Array = np.array(values, datatype.dtype)
        except (OverflowError, FloatingPointError):
            raise self._invalid(f"data: a number is out of the range of {datatype}") from None
        return array

    def _column_of_array(self, array: Array, rows: int, shape: list[int]) -> Column:
        if self._scalar_rows:
            column = array.reshape(rows)
        else:
            column = array.reshape(shape if self._batched else [1, *shape])
        return list(column) if self.spec.form is Form.ARRAYS else column

    def _column_of_elements(self, values: list[Any], rows: int, shape: list[int]) -> Column:
        """From strings or bytes."""
        form = self.spec.form
        if form is Form.TEXT:
            values = [v if type(v) is str else self._text_of(v) for v in values]
        elif form is Form.BYTES:
            values = [v.encode() if type(v) is str else v for v in values]
        else:
            values = [self._json_of(v) if isinstance(v, str | bytes) else v for v in values]
        if self._scalar_rows:
            return values
        width = len(values) // rows
        column = (
            [values]
            if rows == 1
            else [values[row * width : (row + 1) * width] for row in range(rows)]
        )
        if not self._open_sizes:
            return column
        row_shape = shape[1:] if self._batched else shape
        return [ShapedRow(row, row_shape) for row in column]

    def _text_of(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise self._invalid(
                f"an element is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    def _json_of(self, value: str | bytes) -> Any:
        try:
            return _UNTYPED.decode(value)
        except (ValueError, RecursionError) as error:
            raise self._invalid(f"an element does not hold JSON: {explain(error)}") from None

    def _split(self, data: memoryview, count: int) -> list[bytes]:
        where = f"for inference input '{self.name}' for model '{self._model}'"
        try:
            values = unpack_bytes(data)
        except ValueError as error:
            what, problem = error.args
            raise InvalidRequest(
                f"incomplete string {what} for inference input '{self.name}', {problem}, for model"
                f" '{self._model}'"
            ) from None
        if len(values) < count:
            raise InvalidRequest(f"expected {count} string elements {where}, got {len(values)}")
        if len(values) > count:
            raise InvalidRequest(
                f"unexpected number of string elements {len(values)} {where}, expecting {count}"
            )
        return values

    def size_mismatch(self, expected: int, got: int) -> InvalidRequest:
        return InvalidRequest(
            f"input byte size mismatch for input '{self.name}' for model '{self._model}'."
            f" Expected {expected}, got {got}"
        )

    def _wrong_kind(self, said: str) -> InvalidRequest:
        """An element that is none of its datatype, or one that is out of its range."""
        kind = expected_kind(said)
        if self.spec.datatype.dtype.kind == "u" and (kind == "int" or ">= 0" in said):
            kind = "unsigned"
        elif kind is None or "got" not in said:
            return self._invalid(said)
        what = "Unable to parse 'data'" if kind != "str" else "Unable to parse JSON bytes array"
        return InvalidRequest(
            f"{what}: {mismatch(kind)} (input '{self.name}' of model '{self._model}': {said})"
        )

    def _wrong_count(self, shape: list[int], count: int, got: int) -> InvalidRequest:
        if count > _MOST_BYTES:
            return self._invalid(
                f"shape {_dims(shape)} causes total element count to exceed maximum size of"
                f" {_MOST_BYTES}"
            )
        if count * self.spec.datatype.itemsize > _MOST_BYTES:
            return InvalidRequest(
                f"byte size overflow for input '{self.name}' for model '{self._model}': shape"
                f" {_dims(shape)}"
            )
        return InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field (input"
            f" '{self.name}' of model '{self._model}': shape {_dims(shape)} needs {count} elements,"
            f" data has {got})"
        )

    def _invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"input '{self.name}' of model '{self._model}': {problem}")


class OutputCodec:
    """One output of a model, to the wire."""

    def __init__(self, spec: TensorSpec, model: str, *, batched: bool = True) -> None:
        self.spec = spec
        self.name = spec.name
        self._model = model
        self._batched = batched
        #: Binary data is the column's own.
        self.views = spec.form is Form.ARRAY and spec.datatype is not BF16
        # The usual output: strings that go into the JSON as they are.
        self._text = spec.form is Form.TEXT and spec.shape == ()
        self._head = b'{"name":%b,"datatype":"%b","shape":[' % (
            encode_json(spec.name),
            spec.datatype.name.encode(),
        )

    @property
    def wire_shape(self) -> list[int]:
        return wire_shape(self.spec, self._batched)

    def json(self, column: Column) -> bytes:
        """The member of `outputs` that carries this column as JSON."""
        if self._text:
            return b'%b%d],"data":%b}' % (self._head, len(column), self._encoded(column))
        shape, flat = self.flat(column)
        if isinstance(flat, np.ndarray):
            data = self._numbers(flat)
        else:
            data = self._encoded([self._string(value) for value in flat])
        return b'%b%b],"data":%b}' % (self._head, _joined(shape), data)

    def json_parts(self, column: Column) -> Iterator[bytes]:
        """As `json`, slice by slice: joined, they are the member."""
        shape, flat = self.flat(column)
        yield b'%b%b],"data":[' % (self._head, _joined(shape))
        yield from joined(self.texts(flat))
        yield b"]}"

    def texts(self, flat: list[Any] | Array) -> Iterator[bytes]:
        """Elements as JSON, slice by slice, with commas between those of a slice."""
        if isinstance(flat, np.ndarray):
            flat = flat.reshape(-1)
        for start in range(0, len(flat), SLICE_ELEMENTS):
            part = flat[start : start + SLICE_ELEMENTS]
            if isinstance(part, np.ndarray):
                yield self._numbers(part)[1:-1]
            else:
                yield self._encoded([self._string(value) for value in part])[1:-1]
            give_way()

    def binary(self, column: Column) -> tuple[bytes, Buffer]:
        """The member of `outputs` that announces binary data, and the data."""
        shape, flat = self.flat(column)
        data = self.raw(flat)
        size = memoryview(data).nbytes
        return (
            b'%b%b],"parameters":{"binary_data_size":%d}}' % (self._head, _joined(shape), size),
            data,
        )

    def binary_parts(self, column: Column) -> tuple[bytes, list[Buffer]]:
        """As `binary`, with the data in slices."""
        shape, flat = self.flat(column)
        parts = list(self.raw_parts(flat))
        size = sum(memoryview(part).nbytes for part in parts)
        member = b'%b%b],"parameters":{"binary_data_size":%d}}'
        return member % (self._head, _joined(shape), size), parts

    def raw_parts(self, flat: list[Any] | Array) -> Iterator[Buffer]:
        """As `raw`, in slices."""
        if isinstance(flat, np.ndarray):
            yield self.raw(flat)  # numpy lets other threads run
            return
        start, count = 0, FIRST_ELEMENTS
        while start < len(flat):
            part = self.raw(flat[start : start + count])
            yield part
            give_way()
            start += count
            # They may be long: take next what makes a slice, by the lengths in this one.
            fitting = count * SLICE_BYTES // max(1, len(part))
            count = max(1, min(fitting, SLICE_ELEMENTS))

    def elsewhere(self, column: Column) -> tuple[bytes, Buffer]:
        """The member of `outputs` without data, and the data, which goes another way."""
        shape, flat = self.flat(column)
        return b"%b%b]}" % (self._head, _joined(shape)), self.raw(flat)

    def raw(self, flat: list[Any] | Array) -> Buffer:
        """Elements as their bytes on the wire. Arrays are not copied."""
        if not isinstance(flat, np.ndarray):
            try:
                return pack_bytes([self._bytes(value) for value in flat])
            except (TypeError, ValueError) as error:
                raise self._unsendable(error) from None
        if self.spec.datatype is BF16:
            flat = float32_to_bf16(flat)
        return np.ascontiguousarray(flat).data.cast("B") if flat.size else b""

    def values(self, column: Column) -> Any:
        """The plain value in `generate`'s answer: the only element, or a flat list."""
        if isinstance(column, list) and any(row is None for row in column):
            # A stream may have nothing for one of its outputs this time.
            rows = [None if row is None else self.values([row]) for row in column]
            return rows[0] if len(rows) == 1 else rows
        _, flat = self.flat(column)
        if isinstance(flat, np.ndarray):
            self._refuse_as_json()
            values = flat.ravel().tolist()
        elif self.spec.form is Form.JSON:
            values = flat
        else:
            values = [self._string(value) for value in flat]
        return values[0] if len(values) == 1 else values

    def classes(
        self, column: Column, most: int, labels: Sequence[str] = ()
    ) -> tuple[TensorSpec, Column]:
        """The `most` best of each row as "score:index[:label]", which take the tensor's place."""
        check_classifiable(self.spec, self._model)
        shape, flat = self.flat(column)
        assert isinstance(flat, np.ndarray)
        rows = shape[0] if self._batched else 1
        scores = flat.reshape(rows, flat.size // rows)
        texts = best_classes(scores, most, labels)
        return TensorSpec(self.name, BYTES, (len(texts[0]),), Form.TEXT), texts

    def flat(self, column: Column) -> tuple[list[int], list[Any] | Array]:
        """The wire shape of a column, and its elements: a list, or an array of any shape."""
        if isinstance(column, np.ndarray):
            shape = list(column.shape)
            return (shape if self._batched else shape[1:] or self.wire_shape), column
        if self.spec.form.is_bytes:
            if self.spec.shape == ():
                return [len(column)], column
            if isinstance(column, ShapedRows):
                return list(column.shape), [element for row in column for element in row]
            shapes = {row.shape if isinstance(row, ShapedRow) else (len(row),) for row in column}
            if len(shapes) > 1:
                raise self._uneven()
            sizes = next(iter(shapes), ())
            dims = [len(column), *sizes] if self._batched else [*sizes]
            return dims, [element for row in column for element in row]
        if len({row.shape for row in column}) > 1:
            raise self._uneven()
        # Its rows are arrays of one shape: of a model that may give different ones.
        return self.flat(np.stack(column))

    def _numbers(self, array: Array) -> bytes:
        self._refuse_as_json()
        values = array.ravel().tolist()
        data = encode_json(values)
        if b"null" in data:
            # Only a NaN or an infinity becomes null. Triton's clients expect the bare literals.
            data = json.dumps(values, separators=(",", ":")).encode()
        return data

    def _refuse_as_json(self) -> None:
        if self.spec.datatype is FP16 or self.spec.datatype is BF16:
            raise InvalidRequest(
                f"sending {self.spec.datatype} data via JSON is not supported. Please use the"
                f" binary data format for output {self.name} of model '{self._model}'"
                " (parameters.binary_data)"
            )

    def _encoded(self, values: Any) -> bytes:
        try:
            return encode_json(values)
        except (TypeError, ValueError) as error:
            raise self._unsendable(error) from None

    def _string(self, value: Any) -> str:
        if type(value) is str:
            return value
        try:
            return self._bytes(value).decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"output '{self.name}' of model '{self._model}' is not UTF-8 text; ask for binary"
                " data (parameters.binary_data)"
            ) from None

    def _bytes(self, value: Any) -> bytes:
        if self.spec.form is Form.JSON:
            return self._encoded(value)
        if type(value) is str:
            return value.encode()
        return bytes(value)

    def _uneven(self) -> InvalidRequest:
        return InvalidRequest(
            f"output '{self.name}' of model '{self._model}' has rows of different lengths, which"
            " are no tensor; send one row in each request"
        )

    def _unsendable(self, error: Exception) -> BadModelOutput:
        return BadModelOutput(f"model '{self._model}': output '{self.name}': {error}")


def joined(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Members of one JSON array, with commas between the parts."""
    comma = b""
    for part in parts:
        yield comma + part
        comma = b","


def wire_shape(spec: TensorSpec, batched: bool) -> list[int]:
    """The shape that metadata declares."""
    if batched:
        return [-1, *spec.shape]
    # An array may have no dimensions; a single value is sent as one element.
    return list(spec.shape) or ([] if spec.form is Form.ARRAY else [1])


def pack_bytes(values: Sequence[bytes]) -> bytes:
    """BYTES elements on the wire: each behind its length in four bytes."""
    if len(values) == 1:
        return _LENGTH.pack(len(values[0])) + values[0]
    return b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])


def unpack_bytes(data: memoryview) -> list[bytes]:
    """The elements of a BYTES tensor; ValueError, with what ends early and why, if the lengths do
    not add up."""
    values: list[bytes] = []
    add, size_at = values.append, _LENGTH.unpack_from
    position, end = 0, len(data)
    while position < end:
        if position:
            give_way()
        text = bytes(data[position : position + SLICE_BYTES])
        begin, stop = 0, len(text)
        while stop - begin >= 4:
            (size,) = size_at(text, begin)
            behind = begin + 4 + size
            if behind > stop:
                break
            add(text[begin + 4 : behind])
            begin = behind
        position += begin
        if begin == 0:  # an element that is larger than a slice, or not all there
            add(_one_element(data[position:]))
            position += 4 + len(values[-1])
    return values


def _one_element(data: memoryview) -> bytes:
    if len(data) < 4:
        raise ValueError(
            "length indicator", f"expecting 4 bytes but only {len(data)} bytes available"
        )
    (size,) = _LENGTH.unpack_from(data)
    if size > len(data) - 4:
        raise ValueError(
            "data", f"expecting string of length {size} but only {len(data) - 4} bytes available"
        )
    return bytes(data[4 : 4 + size])


def bf16_to_float32(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Exact: a bfloat16 is the upper half of a float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(array: Array) -> npt.NDArray[np.uint16]:
    """Rounded to the nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40  # rounding could carry a NaN over into an infinity, or to zero
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def _flat(value: Any, depth: int = 1) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if depth > MAX_DEPTH:
        raise InvalidRequest(TOO_DEEP)
    if not any(isinstance(element, list) for element in value):
        return value
    flat: list[Any] = []
    for element in value:
        flat.extend(_flat(element, depth + 1))
    return flat


def _is_list(json_type: object) -> bool:
    kind = get_origin(json_type) or json_type
    return isinstance(kind, type) and issubclass(kind, Sequence)


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _joined(shape: Sequence[int]) -> bytes:
    return ",".join(map(str, shape)).encode()


def _json_kind(value: Any) -> str:
    names = {dict: "object", str: "string", bool: "bool", type(None): "null"}
    return names.get(type(value), "number")
