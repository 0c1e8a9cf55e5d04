"""How does a column become a tensor of an answer?

JSON `data` and the binary tensor extension; values in, values out, no I/O. A codec is made once for
each output of a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from wherry.core.api import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    Array,
    BadModelOutput,
    Buffer,
    Column,
    Columns,
    Form,
    InvalidRequest,
    ShapedRow,
    ShapedRows,
    TensorSpec,
    float32_to_bf16,
)
from wherry.server.calls.client_text import encode_json
from wherry.server.calls.offload import (
    LARGE_BYTES,
    LARGE_ELEMENTS,
    LARGE_ROWS,
    SLICE_BYTES,
    SLICE_ELEMENTS,
    give_way,
)
from wherry.server.v2.element_bytes import pack_bytes, row_wire_shape, wire_shape
from wherry.server.v2.row_values import in_base64

#: A row is sorted whole, however few classes are requested.
MAX_CLASSES: Final = 1_000_000


def check_classifiable(spec: TensorSpec, model: str) -> None:
    """InvalidRequest unless this output holds scores."""
    if spec.datatype is BYTES or spec.datatype is BOOL:
        raise InvalidRequest(
            "class result not available for output due to unsupported type"
            f" '{spec.datatype}' (output '{spec.name}' of model '{model}')"
        )


def best_classes(scores: Array, most: int, labels: Sequence[str] = ()) -> list[list[str]]:
    """The `most` best of each row as "score:index" or "score:index:label", the best first.

    `scores` has the rows first; a row of any shape counts as flat. Equal scores stay in their
    order, a NaN is last. An index without a label has none. InvalidRequest: too many classes.
    """
    classes = scores.size // len(scores)
    if classes > MAX_CLASSES:
        raise InvalidRequest(
            f"classification output tensor too large: it has {classes} classes, at most"
            f" {MAX_CLASSES} are put in order"
        )
    flat = scores.reshape(len(scores), classes)
    layout = "%f:%d" if flat.dtype.kind == "f" else "%d:%d"
    named = [f":{label}" if label else "" for label in labels]
    return [
        [layout % (row[i], i) + (named[i] if i < len(named) else "") for i in places]
        for row, places in zip(flat, _descending(flat)[:, :most], strict=True)
    ]


def _descending(scores: Array) -> Array:
    """For each row the indices of its scores, the largest first."""
    if scores.dtype.kind == "f":
        return np.argsort(-scores, axis=1, kind="stable")
    # Integers have no exact negative (of 2**63, of what is unsigned): sorted upwards, from behind.
    behind = np.argsort(scores[:, ::-1], axis=1, kind="stable")[:, ::-1]
    places: Array = scores.shape[1] - 1 - behind
    return places


#: Strings that are packed before anything is known of their length.
FIRST_ELEMENTS: Final = 256


class OutputCodec:
    def __init__(self, spec: TensorSpec, model: str, *, batched: bool = True) -> None:
        self.spec = spec
        self.name = spec.name
        self.datatype = spec.datatype.name
        self._model = model
        self._batched = batched
        #: Binary data is the column's own.
        self.views = spec.form is Form.ARRAY and spec.datatype is not BF16
        # The usual output: strings that go into the JSON as they are.
        self._text = spec.form is Form.TEXT and spec.shape == ()
        #: Numbers that JSON may carry.
        self._numeric = spec.form in (Form.ARRAY, Form.SCALARS) and spec.datatype not in (
            BYTES, FP16, BF16,
        )  # fmt: skip
        #: The shape of the last array, and its text: most answers have the same.
        self._last_shape: tuple[tuple[int, ...], bytes] = ((-1,), b"")
        self._head = b'{"name":%b,"datatype":"%b","shape":[' % (
            encode_json(spec.name),
            self.datatype.encode(),
        )

    @property
    def wire_shape(self) -> list[int]:
        return wire_shape(self.spec, self._batched)

    def small_json(self, column: Column) -> bytes | None:
        """All of `json` for the usual small column: texts, or an array of numbers. None for
        others."""
        if self._text:
            count = len(column)
            try:
                if count > LARGE_ROWS or sum(map(len, column)) > LARGE_BYTES:
                    return None
                return b'%b%d],"data":%b}' % (self._head, count, encode_json(column))
            except (TypeError, ValueError):  # a row that is not text
                return None
        if not self._numeric or not isinstance(column, np.ndarray) or column.size > LARGE_ELEMENTS:
            return None
        data = encode_json(column.ravel().tolist())
        if b"null" in data:
            return None
        return b'%b%b],"data":%b}' % (self._head, self._shape_text(column.shape), data)

    def small_binary(self, column: Column, *, packed: bool) -> tuple[bytes, Buffer] | None:
        """`binary` of an array that is sent as it lies in memory. None for other columns, and for
        a large one that may have to be compressed (`packed`)."""
        if not self.views or not isinstance(column, np.ndarray) or not column.size:
            return None
        if packed and column.size > LARGE_ELEMENTS:
            return None
        if not column.flags.c_contiguous:
            column = np.ascontiguousarray(column)
        member = b'%b%b],"parameters":{"binary_data_size":%d}}'
        shape = self._shape_text(column.shape)
        return member % (self._head, shape, column.nbytes), column.data.cast("B")

    def small_raw(self, column: Column) -> tuple[list[int], Buffer] | None:
        """The wire shape and the `raw` bytes of the usual small column: texts, or an array that is
        sent as it lies in memory. None for others."""
        if self._text:
            try:
                if len(column) > LARGE_ROWS or sum(map(len, column)) > LARGE_BYTES:
                    return None
                return [len(column)], pack_bytes(list(map(str.encode, column)))
            except (TypeError, ValueError):  # a row that is not text
                return None
        if not self.views or not isinstance(column, np.ndarray) or column.size > LARGE_ELEMENTS:
            return None
        shape = column.shape if self._batched else row_wire_shape(self.spec, column.shape[1:])
        data = np.ascontiguousarray(column).data.cast("B") if column.size else b""
        return [*shape], data

    def _shape_text(self, shape: tuple[int, ...]) -> bytes:
        last, text = self._last_shape
        if shape != last:
            text = _joined(shape if self._batched else row_wire_shape(self.spec, shape[1:]))
            self._last_shape = shape, text
        return text

    def json(self, column: Column) -> Iterator[bytes]:
        """The member of `outputs` that carries this column as JSON, slice by slice."""
        shape, flat = self.flat(column)
        yield b'%b%b],"data":[' % (self._head, _joined(shape))
        if isinstance(flat, np.ndarray):
            flat = flat.reshape(-1)
        for start in range(0, len(flat), SLICE_ELEMENTS):
            part = flat[start : start + SLICE_ELEMENTS]
            if isinstance(part, np.ndarray):
                elements = self._numbers(part)
            else:
                values = part if self._text else [self._string(value) for value in part]
                elements = self._encoded(values)
            yield (b"," if start else b"") + elements[1:-1]
            give_way()
        yield b"]}"

    def binary(self, column: Column) -> tuple[bytes, list[Buffer]]:
        """The member of `outputs` that announces binary data, and the data in slices."""
        shape, flat = self.flat(column)
        parts = list(self.raw_parts(flat))
        size = sum(memoryview(part).nbytes for part in parts)
        member = b'%b%b],"parameters":{"binary_data_size":%d}}'
        return member % (self._head, _joined(shape), size), parts

    def raw_parts(self, flat: list[Any] | Array) -> Iterator[Buffer]:
        """Return what `raw` returns, in slices."""
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
        """The member of `outputs` without data, and the data, which goes to shared memory."""
        shape, flat = self.flat(column)
        return b"%b%b]}" % (self._head, _joined(shape)), self.raw(flat)

    def raw(self, flat: list[Any] | Array) -> Buffer:
        """Elements as their bytes on the wire. Arrays are not copied."""
        if not isinstance(flat, np.ndarray):
            try:
                return pack_bytes([self._bytes(value) for value in flat])
            except (TypeError, ValueError, RecursionError) as error:
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
        elif self.spec.media is not None:
            values = [in_base64(value) for value in flat]
        elif self.spec.form is Form.BYTES:
            values = [text_or_base64(value) for value in flat]
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
            shape = column.shape
            return [*(shape if self._batched else row_wire_shape(self.spec, shape[1:]))], column
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
        except (TypeError, ValueError, RecursionError) as error:
            raise self._unsendable(error) from None

    def _string(self, value: Any) -> str:
        if isinstance(value, str):  # numpy has one of its own
            return value
        try:
            return self._bytes(value).decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"output '{self.name}' of model '{self._model}' is not UTF-8 text; request binary"
                " data (parameters.binary_data)"
            ) from None

    def _bytes(self, value: Any) -> bytes:
        if self.spec.form is Form.JSON:
            return self._encoded(value)
        return value.encode() if isinstance(value, str) else bytes(value)

    def _uneven(self) -> InvalidRequest:
        return InvalidRequest(
            f"output '{self.name}' of model '{self._model}' has rows of different lengths, which"
            " are not a tensor; send one row in each request"
        )

    def _unsendable(self, error: Exception) -> BadModelOutput:
        return BadModelOutput(f"model '{self._model}': output '{self.name}': {error}")


def text_or_base64(value: Any) -> Any:
    """Bytes as generate's JSON has them: text if they are UTF-8, else an object with base64."""
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return in_base64(value)


def _joined(shape: Sequence[int]) -> bytes:
    return ",".join(map(str, shape)).encode()


def is_large(columns: Columns) -> bool:
    """Whether encoding these would take long. Looks at each column, and at each of a few rows."""
    for column in columns.values():
        if isinstance(column, np.ndarray):
            if column.size > LARGE_ELEMENTS:
                return True
        elif len(column) > LARGE_ROWS or _is_heavy(column):
            return True
    return False


def _is_heavy(rows: list[Any]) -> bool:
    try:
        size = sum(map(len, rows))
    except TypeError:  # numbers, or rows that are not there
        return any(_is_heavy([row]) for row in rows if hasattr(row, "__len__"))
    most = LARGE_BYTES if rows and isinstance(rows[0], str | bytes) else LARGE_ELEMENTS
    return size > most
