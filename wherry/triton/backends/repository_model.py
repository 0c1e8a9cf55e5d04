"""What do all models of a repository have in common, whatever their backend?

    class OnnxModel(RepositoryModel):
        in_threads = True

        @classmethod
        def completed(cls, folder, version, config): ...  # fields that config does not set
        def load(self, device): ...
        def execute(self, **columns):                     # a mapping of columns out
            return self.outward(self.run(self.inward(columns)))

A column of numbers is an array, rows first. A column of strings is a list with an entry a row: the
elements as bytes, flat (a ShapedRow where the configuration leaves several sizes open). Without a
batch dimension (max_batch_size 0) execute() takes and returns a single row.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
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
    Model,
    ModelConfig,
    SequenceInputs,
    ShapedRow,
    Signature,
    TensorSpec,
    bf16_to_float32,
    model_config,
    or_on_cpu,
)
from wherry.triton.repository import layout, mapping
from wherry.triton.repository.mapping import datatype_of
from wherry.triton.repository.normalise import inside
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonWarmup,
    TritonWarmupInput,
)


class RepositoryModel(Model):
    """A model of a repository: its signature and settings come from its TritonConfig.

    `folder` is the model's, with the versions inside; `config` was completed by `completed()`. All
    arguments can be pickled: a worker process builds the same model from them.
    """

    #: Whether its instances are threads, wherever the server runs those of other models.
    in_threads = False
    #: The number of instances where config.pbtxt has none; 0: as for any model.
    default_instances = 0
    #: Of a package's backend: names of files that select it where a configuration names none.
    files: Sequence[str] = ()

    def __init__(
        self, folder: str, version: str, config: TritonConfig, *, program: str | None = None
    ) -> None:
        self.folder = folder
        self.version = version
        self.triton = config
        #: The model.py of a Python-based backend, outside of the model's folder.
        self.program = program
        #: The labels of outputs with a label_filename, by index. Read here, as frontends use them
        #: on their event loops, which must not block.
        self.output_labels: dict[str, list[str]] = {
            output.name: _lines(os.path.join(folder, output.label_filename))
            for output in config.output
            if output.label_filename
        }

    @classmethod
    def completed(cls, folder: str, version: str, config: TritonConfig) -> TritonConfig:
        """`config` with the missing fields filled in from the model's files. Returns a copy;
        blocks. ConfigError if the two contradict each other."""
        return config

    @classmethod
    def opened(
        cls, folder: str, version: str, config: TritonConfig, *, program: str | None = None
    ) -> RepositoryModel:
        """The model with its configuration completed. For backends that keep what they open to
        complete it."""
        return cls(folder, version, cls.completed(folder, version, config), program=program)

    @property
    def version_folder(self) -> str:
        return os.path.join(self.folder, self.version)

    @functools.cached_property
    def inside(self) -> TritonConfig:
        """The configuration including the inputs and outputs that only server and model
        exchange."""
        return inside(self.triton)

    @functools.cached_property
    def variable_strings(self) -> list[str]:
        """String inputs whose rows must have the same shape within a batch, as in Triton."""
        return [
            tensor.name
            for tensor in self.triton.input
            if tensor.data_type == "TYPE_STRING"
            and -1 in tensor.dims
            and not tensor.allow_ragged_batch
        ]

    def config(self, **overrides: Any) -> ModelConfig:
        name = overrides.pop("name", None) or self.triton.name or os.path.basename(self.folder)
        return model_config(name, {**self.settings(), **overrides})

    def settings(self) -> dict[str, Any]:
        """The TritonConfig as fields of ModelConfig. A backend may add its own."""
        found = {"version": self.version, **mapping.settings(self.triton, self.folder)}
        if isinstance(groups := found["instances"], list):
            found["instances"] = or_on_cpu(groups)
        if self.default_instances and not self.triton.instance_group:
            found["instances"] = self.default_instances
        if self.in_threads:
            found["isolation"] = "thread"
        return found

    def cache_identity(self) -> bytes | None:
        if self.triton.ensemble_scheduling is not None:
            return None  # its members' files decide
        files = [
            (os.path.relpath(path, self.folder), changed, size)
            for path, changed, size in layout.fingerprint(self.folder)
        ]
        return msgspec.json.encode([files, self.triton])

    @property
    def requires_gpus(self) -> bool:
        return any(group.kind == "KIND_GPU" or group.gpus for group in self.triton.instance_group)

    def inward(self, columns: Columns) -> Columns:
        """Reshape input columns from the clients' shape (`dims`) to the model's (`reshape`)."""
        return self._in_shape(
            columns,
            {
                tensor.name: (tensor.dims, tensor.reshape.shape)
                for tensor in self.triton.input
                if tensor.reshape is not None
            },
        )

    def outward(self, columns: Columns) -> Columns:
        return self._in_shape(
            columns,
            {
                tensor.name: (tensor.reshape.shape, tensor.dims)
                for tensor in self.triton.output
                if tensor.reshape is not None
            },
        )

    def warmup_batches(self) -> Iterator[tuple[Columns, int]]:
        signature = mapping.signature(self.triton)
        added = {spec.name: spec for spec in self.signature().inputs}
        added = {name: spec for name, spec in added.items() if signature.input(name) is None}
        for sample in self.triton.model_warmup:
            columns, rows = warmup_batch(sample, self.folder, signature, added)
            if (batching := self.config().sequence) is not None:
                # The inputs that the server adds to a sequence must be present too.
                inputs = SequenceInputs(self.triton.name, batching, self.signature())
                columns = inputs.for_warm_up(columns, rows)
            yield from [(columns, rows)] * max(1, sample.count)

    def _in_shape(
        self, columns: Columns, shapes: Mapping[str, tuple[list[int], list[int]]]
    ) -> Columns:
        if not shapes:
            return columns
        batched = self.triton.max_batch_size > 0
        return {
            name: _reshaped(column, *shapes[name], batched) if name in shapes else column
            for name, column in columns.items()
        }

    def signature(self, name: str = "") -> Signature:
        """The signature as the model sees it. The runtime hides from callers what the server adds
        and keeps."""
        return mapping.signature(self.inside)


def _reshaped(
    column: Column, actual: Sequence[int], expected: Sequence[int], batched: bool
) -> Column:
    """Reshape a column. Open sizes (-1) of `actual` become those of `expected`, in order."""
    if isinstance(column, ShapedRow):
        return ShapedRow(column, _sizes(column.shape, actual, expected))
    if isinstance(column, list):  # other rows of strings are flat whatever their shape
        return [
            ShapedRow(row, _sizes(row.shape, actual, expected))
            if isinstance(row, ShapedRow)
            else row
            for row in column
        ]
    lead = column.shape[:1] if batched else ()
    return column.reshape(*lead, *_sizes(column.shape[len(lead) :], actual, expected))


def _sizes(shape: Sequence[int], actual: Sequence[int], expected: Sequence[int]) -> list[int]:
    open_sizes = iter([size for size, dim in zip(shape, actual, strict=True) if dim == -1])
    return [next(open_sizes) if dim == -1 else dim for dim in expected]


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"label_filename {os.path.basename(path)!r}: {why}") from None


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
    if datatype is BF16:
        return bf16_to_float32(np.frombuffer(data, np.uint16))
    return np.frombuffer(data, datatype.dtype)


def _strings(data: bytes) -> list[bytes] | None:
    elements: list[bytes] = []
    position = 0
    while position + 4 <= len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        elements.append(data[start:position])
    return elements if position == len(data) else None
