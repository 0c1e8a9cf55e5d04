"""Which batches does a model run before it is ready, by its configuration's model_warmup?"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from wherry.core.api import (
    BF16,
    BOOL,
    BYTES,
    Column,
    Columns,
    ConfigError,
    Datatype,
    Form,
    ShapedRow,
    Signature,
    TensorSpec,
)
from wherry.triton.repository.mapping import datatype_of
from wherry.triton.repository.triton_config import TritonWarmup, TritonWarmupInput


def warmup_batch(
    sample: TritonWarmup, folder: str, signature: Signature, added: Mapping[str, TensorSpec]
) -> tuple[Columns, int]:
    """The columns of one sample, and their number of rows. Its files are read from the model's
    `warmup` folder. A sample may have inputs that the server would add, too: the controls and
    states of a sequence.

    ConfigError if it does not fit the model's inputs.
    """
    rows = max(1, sample.batch_size)
    where = f"model_warmup {sample.name!r}"
    columns: Columns = {}
    for name, warmup_input in sample.inputs.items():
        spec = signature.input(name) or added.get(name)
        if spec is None:
            raise ConfigError(f"{where}: the model has no input {name!r}")
        if datatype_of(warmup_input.data_type) is not spec.datatype:
            raise ConfigError(
                f"{where}: input {name!r} is {warmup_input.data_type},"
                f" the model's is {spec.datatype}"
            )
        if not spec.fits(tuple(warmup_input.dims)):
            raise ConfigError(
                f"{where}: input {name!r} has dims {warmup_input.dims},"
                f" the model's are {list(spec.shape)}"
            )
        column = _column(warmup_input, spec.datatype, rows, folder, f"{where}: input {name!r}")
        columns[name] = list(column) if spec.form is Form.ARRAYS else column
    for spec in signature.inputs:
        if spec.name not in columns and not spec.optional:
            raise ConfigError(f"{where}: input {spec.name!r} is missing")
    return columns, rows


def _column(
    warmup_input: TritonWarmupInput, datatype: Datatype, rows: int, folder: str, where: str
) -> Column:
    """A column with the same data in each row."""
    count = math.prod(warmup_input.dims)
    if warmup_input.input_data_file is not None:
        data = _read(os.path.join(folder, "warmup", warmup_input.input_data_file), where)
        row = _from_bytes(data, datatype, count, where)
    elif warmup_input.random_data:
        row = _random(datatype, count)
    else:
        row = _zeros(datatype, count)
    if isinstance(row, list):
        return [ShapedRow(row, warmup_input.dims) for _ in range(rows)]
    return np.tile(row.reshape(warmup_input.dims), (rows, *[1] * len(warmup_input.dims)))


def _zeros(datatype: Datatype, count: int) -> Column:
    return [b""] * count if datatype is BYTES else np.zeros(count, datatype.dtype)


def _random(datatype: Datatype, count: int) -> Column:
    """Arbitrary values, the same at each start; strings are empty, as in Triton."""
    random = np.random.default_rng(0)
    if datatype is BYTES:
        return [b""] * count
    if datatype.dtype.kind == "f":
        return random.random(count).astype(datatype.dtype)
    if datatype is BOOL:
        return random.integers(0, 2, count).astype(datatype.dtype)
    limits = np.iinfo(datatype.dtype.name)
    return random.integers(limits.min, limits.max, count, datatype.dtype.name, endpoint=True)


def _read(path: str, where: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        name = os.path.basename(path)
        raise ConfigError(f"{where}: warmup/{name}: {error.strerror}") from None


def _from_bytes(data: bytes, datatype: Datatype, count: int, where: str) -> Column:
    """One row from a file's bytes: little-endian numbers, or strings with their lengths before
    them."""
    if datatype is BYTES:
        elements = _strings(data)
        if elements is None or len(elements) != count:
            raise ConfigError(
                f"{where}: the file must hold {count} strings, each behind its length in four bytes"
            )
        return elements
    size = count * datatype.itemsize
    if len(data) < size:
        raise ConfigError(f"{where}: the file has {len(data)} bytes, its dims need {size}")
    data = data[:size]  # as in Triton: the file may hold data for a larger batch
    if datatype is BF16:  # a bfloat16 is the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, datatype.dtype)


def _strings(data: bytes) -> list[bytes] | None:
    elements: list[bytes] = []
    position = 0
    while position + 4 <= len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        elements.append(data[start:position])
    return elements if position == len(data) else None
