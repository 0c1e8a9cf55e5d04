"""How does a caller's Python row become columns, and which error does it raise if it cannot?"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from wherry.core.models.config import ModelConfig
from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, Misfit, TensorSpec, converted
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.media_codec import from_caller
from wherry.core.values.request import (
    MASKED,
    Array,
    Column,
    Columns,
    ShapedRow,
    concatenate_column,
    is_masked,
)
from wherry.core.values.tensors import fits_datatype, is_tensor, on_host


def columns_of_row(signature: Signature, config: ModelConfig, row: Mapping[str, Any]) -> Columns:
    """A caller's row as columns of one row; None for an input that may be left out leaves it out.
    InvalidRequest names what is wrong."""
    columns: Columns = {}
    for spec in signature.inputs:
        if spec.optional and row.get(spec.name) is None:
            continue
        if spec.name not in row:
            _refuse_unknown(signature, config.name, row)
            raise InvalidRequest(f"model {config.name!r}: input {spec.name!r} is missing")
        columns[spec.name] = column_of_value(spec, row[spec.name], config.name)
    if len(columns) < len(row):
        _refuse_unknown(signature, config.name, row)
    return columns


def _refuse_unknown(signature: Signature, model: str, row: Mapping[str, Any]) -> None:
    """InvalidRequest if the row has what is not an input: a wrong name leaves another input out."""
    if unknown := row.keys() - {spec.name for spec in signature.inputs}:
        raise unknown_input(signature, model, min(unknown, key=str))


def with_checked_samples(config: ModelConfig, signature: Signature) -> ModelConfig:
    """The configuration with the images, audio and files of `warmup` and `examples` as bytes, which
    may be paths there. ConfigError names the one that is not a row of the model."""
    media = [spec.name for spec in signature.inputs if spec.media is not None]

    def checked(field: str) -> tuple[Mapping[str, Any], ...]:
        rows: list[Mapping[str, Any]] = []
        for place, row in enumerate(getattr(config, field)):
            try:
                columns = columns_of_row(signature, config, row)
            except InvalidRequest as error:
                raise ConfigError(f"{error} ({field}[{place}])") from None
            rows.append({**row, **{name: columns[name][0] for name in media if name in columns}})
        return tuple(rows)

    return replace(config, warmup=checked("warmup"), examples=checked("examples"))


def columns_of_rows(
    signature: Signature, config: ModelConfig, columns: Mapping[str, Any]
) -> tuple[Columns, int]:
    """A caller's columns in the form of the core, and their number of rows. InvalidRequest."""
    checked: Columns = {}
    rows: int | None = None
    for name, values in columns.items():
        spec = signature.input(name)
        if spec is None:
            raise unknown_input(signature, config.name, name)
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidRequest(
                f"model {config.name!r}: input {name!r} must be a column of rows, not"
                f" {type(values).__name__}"
            )
        parts = [column_of_value(spec, value, config.name) for value in values]
        if rows is not None and len(parts) != rows:
            raise InvalidRequest(
                f"model {config.name!r}: input {name!r} has {len(parts)} rows, others have {rows}"
            )
        rows = len(parts)
        checked[name] = [part[0] for part in parts]
        if parts and not isinstance(parts[0], list):
            try:
                checked[name] = concatenate_column(parts)
            except ValueError:
                raise InvalidRequest(
                    f"model {config.name!r}: the rows of input {name!r} differ in shape;"
                    " send them one at a time"
                ) from None
    if not rows:
        raise InvalidRequest(f"model {config.name!r}: a request needs at least one row")
    for spec in signature.inputs:
        if spec.name not in checked and not spec.optional:
            raise InvalidRequest(f"model {config.name!r}: input {spec.name!r} is missing")
    return checked, rows


def column_of_value(spec: TensorSpec, value: Any, model: str) -> Column:
    """A column of one row from a caller's Python value. InvalidRequest."""
    form = spec.form
    if spec.media is not None:
        try:
            return [from_caller(value, spec.media)]
        except (TypeError, ValueError, OSError) as error:
            raise InvalidRequest(
                f"model {model!r}: input {spec.name!r} must be {spec.media.kind}, not {error}",
                field=spec.name,
            ) from error
    if form is Form.TEXT:
        if not isinstance(value, str):
            raise InvalidRequest(_wrong_value(model, spec, "a str", value))
        return [value]
    if form is Form.BYTES and spec.shape and not isinstance(value, bytes | str):
        return [_elements(spec, value, model)]
    if form is Form.BYTES:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidRequest(_wrong_value(model, spec, "bytes", value))
        return [bytes(value)]
    if form is Form.JSON:
        return [value]
    as_tensor = spec.library and is_tensor(value) and fits_datatype(value, spec.datatype)
    if as_tensor and spec.fits(tuple(value.shape)):
        row = value[None]  # a view: what the caller has stays as it is
        return [row[0]] if form is Form.ARRAYS else row
    try:
        array = as_array(value, spec)
    except (TypeError, ValueError, OverflowError) as error:
        why = f"; {error}" if isinstance(error, Misfit | OverflowError) else ""
        wrong = _wrong_value(model, spec, f"{spec.datatype} data", value)
        raise InvalidRequest(f"{wrong}{why}") from None
    if not spec.fits(array.shape):
        raise InvalidRequest(
            f"model {model!r}: input {spec.name!r} has shape {list(array.shape)};"
            f" one row has shape {list(spec.shape)}"
        )
    column: Array = array[np.newaxis]
    column.flags.writeable = False  # it may be the caller's array
    return [column[0]] if form is Form.ARRAYS else column


def _elements(spec: TensorSpec, value: Any, model: str) -> list[bytes]:
    """The elements of a row of strings, flat, from a list or array of any shape."""
    array = np.asarray(value, np.object_)
    elements = array.ravel().tolist()
    if not all(isinstance(element, bytes) for element in elements):
        raise InvalidRequest(_wrong_value(model, spec, "a list of bytes", value))
    known = max(1, math.prod(d for d in spec.shape if d != -1))
    if len(elements) % known if -1 in spec.shape else len(elements) != known:
        raise InvalidRequest(
            f"model {model!r}: input {spec.name!r} has {len(elements)} elements;"
            f" one row has shape {list(spec.shape)}"
        )
    if spec.shape.count(-1) > 1 and array.ndim == len(spec.shape):
        return ShapedRow(elements, array.shape)
    return elements


def as_array(value: Any, spec: TensorSpec) -> Array:
    """`value` as an array with the datatype of `spec`. Raises TypeError, ValueError or
    OverflowError.

    Python numbers have no width: a value that fits is accepted for any datatype of its kind.
    """
    array: Array
    try:
        array = np.asanyarray(value)
    except (TypeError, RuntimeError):  # it is on a device, or part of a graph of gradients
        array = np.asanyarray(on_host(value))
    if type(array) is not np.ndarray:
        if is_masked(array):
            raise TypeError(f"not {MASKED}")
        array = np.asarray(array)
    elif (
        isinstance(value, list)
        and value
        and isinstance(value[0], np.ndarray)
        and any(map(is_masked, value))
    ):
        raise TypeError(f"not {MASKED}")
    return converted(array, spec.datatype)


def unknown_input(signature: Signature, model: str, name: str) -> InvalidRequest:
    names = [spec.name for spec in signature.inputs]
    close = difflib.get_close_matches(str(name), names, n=1)
    guess = f"did you mean {close[0]!r}? Its" if close else "its"
    return InvalidRequest(
        f"model {model!r} has no input {name!r}; {guess} inputs are: {', '.join(names)}"
    )


def _wrong_value(model: str, spec: TensorSpec, expected: str, value: Any) -> str:
    return f"model {model!r}: input {spec.name!r} must be {expected}, not {describe(value)}"


def describe(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of shape {list(value.shape)}" if isinstance(value, np.ndarray) else kind
