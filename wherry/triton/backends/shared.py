"""What do backends share: columns as tensors of a framework and back, the import of a library,
parameters of a configuration, and weights that several instances in one process use?

Strings are lists of rows in the core and arrays of objects in a framework. With `reshape` in the
configuration the model's shape differs from its clients'. A parameter is always text: the functions
return None if it is not there, and raise ConfigError if it is no such value.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np

from wherry.core.api import Array, BadModelOutput, Column, Columns, ConfigError, ShapedRow
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput


def to_model(column: Column | str | bytes, tensor: TritonInput, batched: bool) -> Array:
    """The array for a column, in its full shape (rows first). Without a batch dimension `column` is
    the one row."""
    dims = tensor.reshape.shape if tensor.reshape is not None else tensor.dims
    if isinstance(column, str | bytes):  # the only element of a scalar tensor
        column = [column]
    if isinstance(column, list):
        rows = [len(column)] if batched else []
        flat = [e for row in column for e in (row if isinstance(row, list) else [row])]
        array: Array = np.empty(len(flat), np.object_)
        array[:] = flat
        first = column[0] if batched else column
        as_sent = isinstance(first, ShapedRow) and tensor.reshape is None
        shape = cast(ShapedRow, first).shape if as_sent else _sizes(dims)
        return array.reshape([*rows, *shape])
    if tensor.reshape is None:
        return column
    rows = [len(column)] if batched else []
    return column.reshape([*rows, *_sizes(dims)])


def called_with(
    call: Callable[[dict[str, Array]], Sequence[Array]],
    columns: Mapping[str, Column],
    inside: TritonConfig,
    *,
    batched: bool,
) -> Columns:
    """What a model gives that takes arrays by name and returns those of its outputs, in their
    order."""
    arrays = {
        tensor.name: to_model(columns[tensor.name], tensor, batched)
        for tensor in inside.input
        if tensor.name in columns
    }
    return {
        tensor.name: from_model(result, tensor, batched, inside.name)
        for tensor, result in zip(inside.output, call(arrays), strict=True)
    }


def from_model(array: Array, tensor: TritonOutput, batched: bool, model: str) -> Column:
    """The column for a model's output (the one row without a batch dimension)."""
    if tensor.reshape is not None:
        rows = [len(array)] if batched else []
        try:
            array = array.reshape([*rows, *_sizes(tensor.dims)])
        except ValueError:
            raise BadModelOutput(
                f"model {model!r}: output {tensor.name!r} has shape {list(array.shape)}, which"
                f" does not reshape to {tensor.dims}"
            ) from None
    if tensor.data_type != "TYPE_STRING":
        return array
    flat = [_bytes(element) for element in array.ravel().tolist()]
    if not batched and array.ndim:
        return ShapedRow(flat, array.shape) if array.ndim > 1 else flat
    if not batched:
        return cast(Column, flat[0])
    if not tensor.dims:
        return flat
    width = len(flat) // max(1, len(array))
    column = [flat[row * width : (row + 1) * width] for row in range(len(array))]
    return [ShapedRow(row, array.shape[1:]) for row in column] if array.ndim > 2 else column


def _sizes(dims: Sequence[int]) -> list[int]:
    """`dims` for this number of elements. If several dimensions are open, the last one is filled,
    as in a request without a shape."""
    unknown = [index for index, size in enumerate(dims) if size == -1]
    return [1 if index in unknown[:-1] else size for index, size in enumerate(dims)]


def _bytes(element: Any) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)


_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parameter_text(config: TritonConfig, name: str) -> str | None:
    found = config.parameters.get(name)
    return None if found is None else found.string_value


def parameter_truth(config: TritonConfig, name: str) -> bool | None:
    setting = parameter_text(config, name)
    if setting is None:
        return None
    if setting.strip().lower() not in _TRUTH:
        raise _wrong(config, name, "true or false", setting)
    return _TRUTH[setting.strip().lower()]


def parameter_whole(config: TritonConfig, name: str) -> int | None:
    setting = parameter_text(config, name)
    try:
        return None if setting is None else int(setting)
    except ValueError:
        raise _wrong(config, name, "a whole number", setting) from None


def parameter_number(config: TritonConfig, name: str) -> float | None:
    setting = parameter_text(config, name)
    try:
        value = None if setting is None else float(setting)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise _wrong(config, name, "a number", setting)
    return value


def _wrong(config: TritonConfig, name: str, kind: str, setting: str | None) -> ConfigError:
    return ConfigError(f"model {config.name!r}: parameter {name!r} must be {kind}, not {setting!r}")


def library(name: str, model: str, install: str) -> Any:
    """The module of this name, imported for a model. ConfigError says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"model {model!r}: it needs {name.partition('.')[0]}, which cannot be imported"
            f" ({error}): pip install {install}"
        ) from error


T = TypeVar("T")


class Shared(Generic[T]):
    """A value made by its first user and dropped by its last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._value: T | None = None

    def take(self, make: Callable[[], T]) -> T:
        """The value; the first caller makes it while others wait."""
        with self._lock:
            if self._value is None:
                self._value = make()
            self._users += 1
            return self._value

    @property
    def value(self) -> T:
        """The value, for a user between `take` and `give_back`."""
        assert self._value is not None
        return self._value

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._value = None
