"""What do backends share: a configuration completed from the model's file, columns as
tensors of a framework and back, the import of a library, parameters of a configuration, and weights
that several instances in one process use?

Strings are lists of rows in the core and arrays of objects in a framework. With `reshape` in the
configuration the model's shape differs from its clients'. A parameter is always text: the functions
return None if it is not there, and raise ConfigError if it is another value.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
import numpy as np

from wherry.core.api import Array, BadModelOutput, Column, Columns, ConfigError, ShapedRow
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonDynamicBatching,
    TritonInput,
    TritonOutput,
    TritonTensorReshape,
)


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
    """The outputs of `call`, which takes arrays by name and returns its results in their order."""
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
    """`dims` for reshape(). If several dimensions are open, the last one stays open and the others
    are 1, as in a request without a shape."""
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
    """The module of this name, imported for a model. Else a ConfigError with what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"model {model!r}: it needs {name.partition('.')[0]}, which cannot be imported"
            f" ({error}): pip install {install}"
        ) from error


def version_file(folder: str, config: TritonConfig, names: Sequence[str]) -> str:
    """The path of a version's file: the one that the configuration names, else the first of these.
    ConfigError if it is not there."""
    names = [config.default_model_filename] if config.default_model_filename else names
    for name in names:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    raise ConfigError(
        f"model {config.name!r}: version {os.path.basename(folder)} has no {' or '.join(names)}"
    )


T = TypeVar("T")


class Shared(Generic[T]):
    """A value made by its first user and dropped by its last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._value: T | None = None

    def take(self, make: Callable[[], T]) -> T:
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


#: Triton's default of max_batch_size for a file with an open batch dimension.
DEFAULT_MAX_BATCH_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class FileTensor:
    name: str
    data_type: TritonDataType
    #: With the batch dimension; -1: any size.
    shape: tuple[int, ...]


def complete(
    config: TritonConfig,
    inputs: Sequence[FileTensor],
    outputs: Sequence[FileTensor],
) -> TritonConfig:
    """A copy of `config`, completed from the file. ConfigError if it contradicts the file."""
    alone = not (config.input or config.output or config.max_batch_size)
    open_lead = all(tensor.shape[:1] == (-1,) for tensor in (*inputs, *outputs))
    most = DEFAULT_MAX_BATCH_SIZE if alone and open_lead else config.max_batch_size
    completed = msgspec.structs.replace(
        config,
        max_batch_size=most,
        input=_side(config, config.input, inputs, TritonInput, most),
        output=_side(config, config.output, outputs, TritonOutput, most),
    )
    return completed if config.input and config.output else with_batching(completed)


def with_batching(config: TritonConfig) -> TritonConfig:
    """The same, with dynamic batching if it takes batches and has no batcher, as Triton adds it to
    incomplete configurations, and for OpenVINO to all."""
    if config.max_batch_size > 1 and not (config.dynamic_batching or config.sequence_batching):
        return msgspec.structs.replace(config, dynamic_batching=TritonDynamicBatching())
    return config


def _side(
    config: TritonConfig,
    tensors: Sequence[TritonInput | TritonOutput],
    found: Sequence[FileTensor],
    kind: type[TritonInput] | type[TritonOutput],
    most: int,
) -> list[Any]:
    where, side = f"model {config.name!r}", kind.__name__.removeprefix("Triton").lower()
    by_name = {tensor.name: tensor for tensor in found}
    if not tensors:
        new = [kind(name=one.name, data_type=one.data_type) for one in found]
        return [
            _shaped(tensor, _dims(where, one, most), most)
            for tensor, one in zip(new, found, strict=True)
        ]
    for tensor in tensors:
        if tensor.name not in by_name:
            raise ConfigError(
                f"{where}: {side} {tensor.name!r} is not in the file; it has {', '.join(by_name)}"
            )
    missing = [name for name in by_name if name not in {tensor.name for tensor in tensors}]
    if missing and kind is TritonInput:
        raise ConfigError(
            f"{where}: the file has more inputs than config.pbtxt: {', '.join(missing)}"
        )
    return [_checked(where, side, tensor, by_name[tensor.name], most) for tensor in tensors]


def _checked(
    where: str, side: str, tensor: TritonInput | TritonOutput, own: FileTensor, most: int
) -> TritonInput | TritonOutput:
    if tensor.data_type not in ("TYPE_INVALID", own.data_type):
        raise ConfigError(
            f"{where}: {side} {tensor.name!r} is {tensor.data_type} in config.pbtxt,"
            f" {own.data_type} in the file"
        )
    tensor = msgspec.structs.replace(tensor, data_type=own.data_type)
    dims = _dims(where, own, most)
    if tensor.reshape is None and not tensor.dims:
        return _shaped(tensor, dims, most)
    if not (dims or most or tensor.reshape) and set(tensor.dims) == {1}:
        # A scalar in the file may have any number of dimensions of 1 for clients, as in Triton.
        return msgspec.structs.replace(tensor, reshape=TritonTensorReshape())
    actual = tensor.dims if tensor.reshape is None else tensor.reshape.shape
    if not _compatible(actual, dims):
        batch = " (without the batch dimension)" if most else ""
        raise ConfigError(
            f"{where}: {side} {tensor.name!r} has dims {actual} in config.pbtxt, in the file"
            f" {dims}{batch}"
        )
    return tensor


def _shaped(
    tensor: TritonInput | TritonOutput, dims: list[int], most: int
) -> TritonInput | TritonOutput:
    """The tensor with the shape that its rows have in the file. A number for each row is one
    element to clients, as in Triton: `dims` of a batch are never empty."""
    if most and not dims:
        return msgspec.structs.replace(tensor, dims=[1], reshape=TritonTensorReshape())
    return msgspec.structs.replace(tensor, dims=dims)


def _dims(where: str, tensor: FileTensor, most: int) -> list[int]:
    if not most:
        return list(tensor.shape)
    if not tensor.shape or tensor.shape[0] not in ((-1, 1) if most == 1 else (-1,)):
        raise ConfigError(
            f"{where}: max_batch_size is more than 0, but the first dimension of {tensor.name!r} is"
            f" not open: its shape is {list(tensor.shape)}; set max_batch_size to 0"
        )
    return list(tensor.shape[1:])


def _compatible(dims: Sequence[int], found: Sequence[int]) -> bool:
    return len(dims) == len(found) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(dims, found, strict=True)
    )
