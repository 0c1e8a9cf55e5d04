"""What does a model's file add to its configuration, and does it contradict what is there?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from wherry.core.api import ConfigError
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonDataType,
    TritonDynamicBatching,
    TritonInput,
    TritonOutput,
    TritonTensorReshape,
)

#: Triton's default of max_batch_size for a file with an open batch dimension.
DEFAULT_MAX_BATCH_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class FileTensor:
    """An input or output as a model's file describes it."""

    name: str
    data_type: TritonDataType
    #: With the batch dimension; -1: any size.
    shape: tuple[int, ...]


def complete(
    config: TritonConfig,
    inputs: Sequence[FileTensor],
    outputs: Sequence[FileTensor],
    flat: Collection[str] = (),
) -> TritonConfig:
    """A copy of `config` with what it does not say. ConfigError if it contradicts the file. `flat`:
    the tensors that hold the rows of a ragged batch one after the other."""
    alone = not (config.input or config.output or config.max_batch_size)
    open_lead = all(tensor.shape[:1] == (-1,) for tensor in (*inputs, *outputs))
    most = DEFAULT_MAX_BATCH_SIZE if alone and open_lead else config.max_batch_size
    completed = msgspec.structs.replace(
        config,
        max_batch_size=most,
        input=_side(config, config.input, inputs, TritonInput, most, flat),
        output=_side(config, config.output, outputs, TritonOutput, most, flat),
    )
    return completed if config.input and config.output else with_batching(completed)


def with_batching(config: TritonConfig) -> TritonConfig:
    """The same, with dynamic batching if it takes batches and does not say how: what Triton adds to
    a configuration that is not complete, and for OpenVINO to each."""
    if config.max_batch_size > 1 and not (config.dynamic_batching or config.sequence_batching):
        return msgspec.structs.replace(config, dynamic_batching=TritonDynamicBatching())
    return config


def _side(
    config: TritonConfig,
    given: Sequence[TritonInput | TritonOutput],
    found: Sequence[FileTensor],
    kind: type[TritonInput] | type[TritonOutput],
    most: int,
    flat: Collection[str],
) -> list[Any]:
    where, side = f"model {config.name!r}", kind.__name__.removeprefix("Triton").lower()
    by_name = {tensor.name: tensor for tensor in found}
    if not given:
        new = [kind(name=one.name, data_type=one.data_type) for one in found]
        return [
            _shaped(tensor, _dims(where, one, most), most)
            for tensor, one in zip(new, found, strict=True)
        ]
    for tensor in given:
        if tensor.name not in by_name:
            raise ConfigError(
                f"{where}: {side} {tensor.name!r} is not in the file; it has {', '.join(by_name)}"
            )
    missing = [name for name in by_name if name not in {tensor.name for tensor in given}]
    if missing and kind is TritonInput:
        raise ConfigError(
            f"{where}: the file has more inputs than config.pbtxt: {', '.join(missing)}"
        )
    completed = []
    for tensor in given:
        own, is_flat = by_name[tensor.name], tensor.name in flat
        completed.append(_checked(where, side, tensor, own, 0 if is_flat else most))
        if is_flat and len(own.shape) != 1:
            raise ConfigError(
                f"{where}: {side} {tensor.name!r} holds the rows of a ragged batch: in the file it"
                f" must have one dimension, not {list(own.shape)}"
            )
    return completed


def _checked(
    where: str, side: str, tensor: TritonInput | TritonOutput, own: FileTensor, most: int
) -> TritonInput | TritonOutput:
    """The configured tensor, with what the file knows."""
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
    """The shape of one row, or the whole one without batches."""
    if not most:
        return list(tensor.shape)
    if not tensor.shape or tensor.shape[0] not in ((-1, 1) if most == 1 else (-1,)):
        raise ConfigError(
            f"{where}: max_batch_size is more than 0, but the first dimension of {tensor.name!r} is"
            f" not open: its shape is {list(tensor.shape)}; set max_batch_size to 0"
        )
    return list(tensor.shape[1:])


def _compatible(given: Sequence[int], found: Sequence[int]) -> bool:
    return len(given) == len(found) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(given, found, strict=True)
    )
