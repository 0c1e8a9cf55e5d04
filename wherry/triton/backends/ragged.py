"""How are rows of different shapes batched into one tensor, and the outputs split again?

`allow_ragged_batch`: the elements of all rows, concatenated in one dimension. `batch_input`:
generated tensors that say where each row ends. `batch_output`: a flat output, split like the rows
of an input. A row counts as one item, whether it came alone or in a larger request.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np

from wherry.core.api import Array, BadModelOutput, Column, Columns, ConfigError
from wherry.triton.repository.mapping import datatype_of
from wherry.triton.repository.triton_config import TritonConfig

Shapes = Sequence[tuple[int, ...]]


def ragged_inputs(config: TritonConfig) -> set[str]:
    """The names of inputs whose rows arrive as a list of arrays."""
    return {tensor.name for tensor in config.input if tensor.allow_ragged_batch}


def made_inputs(config: TritonConfig) -> set[str]:
    """The names of the inputs that the server generates from others."""
    return {name for one in config.batch_input for name in one.target_name}


def scattered_outputs(config: TritonConfig) -> dict[str, str]:
    """The outputs that are split like an input's rows, with that input."""
    return {name: one.source_input[0] for one in config.batch_output for name in one.target_name}


def check(config: TritonConfig) -> None:
    """Raise ConfigError if a source is not a ragged input of the model."""
    ragged = ragged_inputs(config)
    sources = [(f"batch_input[{i}]", one.source_input) for i, one in enumerate(config.batch_input)]
    sources += [
        (f"batch_output[{i}]", one.source_input) for i, one in enumerate(config.batch_output)
    ]
    for place, names in sources:
        if len(names) != 1 or names[0] not in ragged:
            raise ConfigError(
                f"model {config.name!r}: {place}.source_input must be one input that has"
                f" allow_ragged_batch, not {names}"
            )


def joined(column: Column) -> Array:
    """The elements of all rows, concatenated."""
    rows = cast(Sequence[Array], column)
    return np.concatenate([row.ravel() for row in rows])


def shapes_of(columns: Columns, names: set[str]) -> dict[str, Shapes]:
    return {
        name: [row.shape for row in cast(Sequence[Array], columns[name])]
        for name in names
        if name in columns
    }


def batch_inputs(config: TritonConfig, shapes: Mapping[str, Shapes]) -> Iterator[tuple[str, Array]]:
    """The generated input tensors by name."""
    for one in config.batch_input:
        source = shapes.get(one.source_input[0])
        if source is None:
            continue  # an optional input that was not sent
        values = _MADE[one.kind](source)
        array = np.asarray(values, datatype_of(one.data_type).dtype)
        for name in one.target_name:
            yield name, array


def scattered(result: Array, shapes: Shapes, output: str, model: str) -> list[Array]:
    """Split a flat output into rows of these shapes."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    flat = result.ravel()
    if len(flat) != ends[-1]:
        raise BadModelOutput(
            f"model {model!r}: output {output!r} has {len(flat)} elements; the rows of the input"
            f" that it is cut like have {ends[-1]}"
        )
    pieces = np.split(flat, ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _counts(shapes: Shapes) -> list[int]:
    return [math.prod(shape) for shape in shapes]


_MADE: Final[dict[str, Callable[[Shapes], object]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda s: list(itertools.accumulate(_counts(s))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda s: [0, *itertools.accumulate(_counts(s))],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda s: np.zeros(max(_counts(s))),
    "BATCH_ITEM_SHAPE": list,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda s: [size for shape in s for size in shape],
}
