"""How does a client encode a V2 infer request and decode the response? Without I/O.

Numbers are binary tensors in both directions; text is sent as JSON. Deliberately independent of the
server's code, so that a mistake in one shows in the tests of the other.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.values.datatypes import (
    BF16,
    BYTES,
    DATATYPES,
    Datatype,
    Form,
    bf16_to_float32,
    converted,
    float32_to_bf16,
)
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    RequestTooLarge,
    Unsupported,
    WherryError,
)
from wherry.core.values.request import Array, Columns

#: The error class of a status. The message is the server's.
ERRORS: Final[dict[int, type[WherryError]]] = {
    400: InvalidRequest,
    404: ModelNotFound,
    408: DeadlineExceeded,
    413: RequestTooLarge,
    429: Overloaded,
    499: Cancelled,
    500: ModelFailed,
    501: Unsupported,
    503: ModelNotReady,
    504: DeadlineExceeded,
}

_FORMS: Final = {form.value: form for form in Form}
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as the server describes it; `shape` is that of one row."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    #: The Python form of BYTES, which wherry servers add to the protocol.
    form: Form | None = None

    @property
    def is_scalar(self) -> bool:
        return self.shape in ((), (1,))

    def shape_of(self, rows: int, elements: int) -> list[int]:
        """The wire shape of `rows` rows that are lists. Triton requires exactly the dimensions it
        names, also [1]; an open or different number of elements is one dimension."""
        width = elements // max(1, rows)
        fits = -1 not in self.shape and math.prod(self.shape) == width
        return [rows, *self.shape] if fits else [rows, width]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a client needs to know to call a model."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    #: Whether the first dimension is the rows.
    batched: bool
    #: Whether a request has any number of responses.
    streams: bool = False

    @property
    def returns_one_value(self) -> bool:
        """Whether the result is a single value without a name."""
        return len(self.outputs) == 1 and self.outputs[0].name == "output"


def describe(config: Mapping[str, Any]) -> ModelDescription:
    forms = config.get("wherry", {})
    return ModelDescription(
        config["name"],
        tuple(_tensor(member, forms.get("inputs", {})) for member in config.get("input", ())),
        tuple(_tensor(member, forms.get("outputs", {})) for member in config.get("output", ())),
        batched=config.get("max_batch_size", 0) > 0,
        streams=config.get("model_transaction_policy", {}).get("decoupled", False),
    )


def _tensor(member: Mapping[str, Any], forms: Mapping[str, str]) -> Tensor:
    name = member["data_type"].removeprefix("TYPE_")
    datatype = DATATYPES["BYTES" if name == "STRING" else name]
    shape = tuple(int(d) for d in member.get("dims", ()))
    form = _FORMS.get(forms.get(member["name"], ""))
    return Tensor(member["name"], datatype, shape, form)


def by_place(model: ModelDescription, row: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A row as positional and keyword arguments. Positional as far as possible: an input may have
    any name."""
    names = [tensor.name for tensor in model.inputs]
    args = [row[name] for name in itertools.takewhile(row.__contains__, names)]
    return args, {name: value for name, value in row.items() if name not in names[: len(args)]}


def infer_body(
    model: ModelDescription, columns: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[bytes, int]:
    """The body of an infer request, and the length of the JSON before its tensors."""
    known = {tensor.name: tensor for tensor in model.inputs}
    inputs: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    for name, values in columns.items():
        if name not in known:
            raise InvalidRequest(
                f"model {model.name!r} has no input {name!r}; its inputs are: {', '.join(known)}"
            )
        member, buffer = _input(known[name], values, model)
        inputs.append(member)
        if buffer is not None:
            buffers.append(buffer)
    head = msgspec.json.encode(
        {"parameters": {"binary_data_output": True, **parameters}, "inputs": inputs}
    )
    return b"".join([head, *buffers]), len(head)


def _input(
    tensor: Tensor, values: Any, model: ModelDescription
) -> tuple[dict[str, Any], bytes | None]:
    member: dict[str, Any]
    if tensor.datatype is BYTES:
        rows = list(values)
        flat = [element for row in rows for element in row] if not tensor.is_scalar else rows
        shape = tensor.shape_of(len(rows), len(flat))
        elements = [_element(value, tensor.form) for value in flat]
        member = {"name": tensor.name, "datatype": "BYTES", "shape": _shape(shape, model)}
        if all(isinstance(element, str) for element in elements):
            return {**member, "data": elements}, None
        packed = b"".join(
            _LENGTH.pack(len(raw)) + raw
            for raw in (e.encode() if isinstance(e, str) else e for e in elements)
        )
        return {**member, "parameters": {"binary_data_size": len(packed)}}, packed
    try:
        array = converted(np.asarray(values), tensor.datatype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"model {model.name!r}: input {tensor.name!r} must be {tensor.datatype} data: {error}"
        ) from None
    shape = tensor.shape_of(len(array), array.size) if array.ndim == 1 else [*array.shape]
    raw = float32_to_bf16(array).tobytes() if tensor.datatype is BF16 else array.tobytes()
    member = {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": _shape(shape, model),
        "parameters": {"binary_data_size": len(raw)},
    }
    return member, raw


def _shape(shape: list[int], model: ModelDescription) -> list[int]:
    """The shape on the wire: without a batch dimension the row's own, where a scalar is [1]."""
    return shape if model.batched else shape[1:] or [1]


def _element(value: Any, form: Form | None) -> str | bytes:
    data = file_bytes(value)
    if data is not None:
        return data
    if isinstance(value, str) and form is not Form.JSON:
        return value
    return msgspec.json.encode(value).decode()


def file_bytes(value: Any) -> bytes | None:
    """The bytes of a file input: bytes, a Path, or an open file; None if it is none of these.
    Blocks while it reads."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, os.PathLike):
        return Path(value).read_bytes()
    if isinstance(value, io.TextIOBase):
        raise InvalidRequest(
            f"open {getattr(value, 'name', 'the file')!r} as bytes, with mode 'rb'"
        )
    return bytes(value.read()) if hasattr(value, "read") else None


def in_json(value: Any) -> Any:
    """A row's value as generate takes it in JSON."""
    data = file_bytes(value)
    if data is not None:
        return {"b64": memoryview(data)}  # written in base64
    return value.tolist() if hasattr(value, "tolist") else value


def outputs_of(
    model: ModelDescription, head: Mapping[str, Any], tail: memoryview
) -> tuple[Columns, int]:
    """The columns and the number of rows of an infer response. LookupError, TypeError or ValueError
    if it is not valid."""
    columns: Columns = {}
    rows = 1
    known = {tensor.name: tensor for tensor in model.outputs}
    for member in head["outputs"]:
        shape, datatype = member["shape"], DATATYPES[member["datatype"]]
        tensor = known.get(member["name"]) or Tensor(member["name"], datatype, (len(shape) - 1,))
        size = member.get("parameters", {}).get("binary_data_size")
        flat: Sequence[Any] | Array
        if size is None:
            flat = _from_json(datatype, member["data"])
        else:
            if not 0 <= size <= len(tail):
                raise ValueError(f"{size} bytes of {member['name']!r} announced, {len(tail)} left")
            flat, tail = _from_binary(datatype, tail[:size]), tail[size:]
        if model.batched:
            rows = shape[0]
        else:
            shape = [1, *shape]
        if datatype is BYTES:
            flat = [_python(element, tensor.form) for element in flat]
        columns[tensor.name] = _rows(flat, shape[:1] if tensor.is_scalar else shape)
    return columns, rows


def _from_json(datatype: Datatype, data: list[Any]) -> Sequence[Any] | Array:
    return data if datatype is BYTES else np.array(data, datatype.dtype)


def _from_binary(datatype: Datatype, raw: memoryview) -> Sequence[Any] | Array:
    if datatype is BYTES:
        return _unpacked(raw)
    if datatype is BF16:
        return bf16_to_float32(np.frombuffer(raw, np.uint16))
    return np.frombuffer(raw, datatype.dtype).copy()  # a view would keep the whole response alive


def _unpacked(raw: memoryview) -> list[bytes]:
    elements, start = [], 0
    while start < len(raw):
        (length,) = _LENGTH.unpack_from(raw, start)
        start += _LENGTH.size
        if start + length > len(raw):
            raise ValueError(f"an element of {length} bytes, {len(raw) - start} left")
        elements.append(bytes(raw[start : start + length]))
        start += length
    return elements


def _python(element: str | bytes, form: Form | None) -> Any:
    """A BYTES element in the form that the server states; else text, or bytes if it is not
    UTF-8."""
    raw = element.encode() if isinstance(element, str) else element
    if form is Form.BYTES:
        return raw
    if form is Form.JSON:
        return msgspec.json.decode(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _rows(flat: Sequence[Any] | Array, shape: list[int]) -> Any:
    if isinstance(flat, np.ndarray):
        return flat.reshape(shape)
    if len(shape) == 1:
        return list(flat)
    width = len(flat) // max(1, shape[0])
    return [list(flat[row * width : (row + 1) * width]) for row in range(shape[0])]


def row_of(model: ModelDescription, columns: Columns) -> Any:
    """One row's outputs as returned to the caller: the value, or a dict of several."""
    row = {name: _value(column[0]) for name, column in columns.items()}
    return row["output"] if model.returns_one_value and set(row) == {"output"} else row


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def error_of(status: int, body: bytes, retry_after: str | None) -> WherryError:
    try:
        # Generate's stream reports a refusal as an event, too.
        message = str(msgspec.json.decode(body.removeprefix(b"data:"))["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:500].decode(errors="replace").strip() or f"the server answered {status}"
    error = ERRORS.get(status, WherryError)(message)
    if retry_after is not None:  # seconds; a date is ignored
        error.retry_after = float(retry_after) if retry_after.isdecimal() else None
    return error
