"""What does the user's code see, and what if it raises?

An executable is one loaded copy of a model with its signature: merged columns of several callers
go in, one outcome for each caller comes out. It runs inside a thread of the server as inside a
worker process, so nothing here knows of requests, sockets or locks.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np

from wherry.config import ModelConfig
from wherry.datatypes import Form, TensorSpec
from wherry.errors import BY_NAME, BadModelOutput, InvalidRequest, ModelFailed, WherryError
from wherry.model import Device, Model
from wherry.request import Column, Columns, rows_of
from wherry.signature import Signature

#: How often parts of a failed batch are run again, at most: finding one bad request among 256
#: takes 2 * log2(256) = 16 runs.
MAX_RERUNS = 48

#: What the user's code may raise without taking its instance down with it.
MODEL_ERRORS = (Exception, SystemExit, asyncio.CancelledError)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value that can cross to another process."""

    error: str
    message: str
    traceback: str = ""
    #: In the same process: what the model raised.
    exception: BaseException | None = None

    def as_exception(self) -> WherryError:
        error = BY_NAME.get(self.error, ModelFailed)(self.message)
        error.__cause__ = self.exception
        return error


Outcome = Columns | Failure


@dataclass(slots=True)
class Execution:
    """What one batch gave: an outcome for each caller, and where the time (ns) went."""

    outcomes: list[Outcome] = field(default_factory=list)
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    #: Rows of each call of the model; more than one if a failed batch was tried in parts.
    executed_rows: list[int] = field(default_factory=list)


class Executable:
    """One copy of a model, ready to be called with columns."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        self.model = model
        self.config = config
        self.signature: Signature = model.signature(config.name)
        self._convert_inputs = [
            (spec.name, convert)
            for spec in self.signature.inputs
            if (convert := _input_converter(spec)) is not None
        ]
        self._call = _caller(self.signature, model.execute)
        self._runner: asyncio.Runner | None = None

    def load(self, device: Device) -> None:
        """Load the model and run its warm-up samples, in the thread that will run it."""
        self.model.load(device)
        self.warm_up()

    def warm_up(self) -> None:
        for sample in self.config.warmup or self.config.examples[:1]:
            columns = self.columns_of(sample)
            if self.signature.streams:
                for _ in self.stream(columns, 1):
                    pass
            else:
                self.execute(columns, 1)

    def columns_of(self, row: Mapping[str, Any]) -> Columns:
        return columns_of_row(self.signature, self.config, row)

    def unload(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        self.model.unload()

    def execute(self, columns: Columns, rows: int) -> Columns:
        """Call the model once with merged columns. Raises what the model raises."""
        result = self.call(columns, rows)
        if self.signature.is_async:
            result = self._run_async(result)
        return self.outputs(result, rows)

    def call(self, columns: Columns, rows: int) -> Any:
        """Call the model's code as its annotations say: a result, an awaitable or an iterator."""
        if self._convert_inputs:
            columns = dict(columns)
            for name, convert in self._convert_inputs:
                if name in columns:
                    columns[name] = convert(columns[name])
        if not self.config.max_batch_size:
            # Without a batch dimension arrays go in as they are.
            columns = {name: column[0] for name, column in columns.items()}
        return self._call(columns, rows)

    def run(self, columns: Columns, counts: Sequence[int]) -> Execution:
        """Run a batch of several callers (`counts[i]` rows each). Never raises.

        If the model raises, the halves of the batch are run again, so that a bad row fails alone.
        """
        execution = Execution()
        reruns = MAX_RERUNS if self.config.isolate_errors else 0

        def run(start_row: int, counts: Sequence[int]) -> list[Outcome]:
            nonlocal reruns
            rows = sum(counts)
            part = columns
            if len(counts) < len(all_counts):
                part = rows_of(columns, start_row, start_row + rows)
            started = perf_counter_ns()
            execution.executed_rows.append(rows)
            try:
                outputs = self.execute(part, rows)
            except MODEL_ERRORS as error:
                execution.infer_ns += perf_counter_ns() - started
                failure = self.failure(error)
                if len(counts) == 1 or reruns < 2 or isinstance(error, BadModelOutput):
                    return [failure] * len(counts)
                reruns -= 2
                half = len(counts) // 2
                first = run(start_row, counts[:half])
                return first + run(start_row + sum(counts[:half]), counts[half:])
            finished = perf_counter_ns()
            execution.infer_ns += finished - started
            answers = _scatter(outputs, counts)
            execution.output_ns += perf_counter_ns() - finished
            return answers

        all_counts = counts
        execution.outcomes = run(0, counts)
        return execution

    def stream(self, columns: Columns, rows: int) -> Iterator[Columns]:
        """Call a generator model: each item is one response of every row that is not None."""
        items = self.call(columns, rows)
        if self.signature.is_async:
            items = self._iterate_async(items)
        try:
            for item in items:
                yield self.outputs(item, rows, sparse=True)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _run_async(self, awaitable: Any) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(awaitable)

    def _iterate_async(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def next_item() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._run_async(next_item())
                except StopAsyncIteration:
                    return
        finally:
            self._run_async(items.aclose())  # type: ignore[attr-defined]

    def outputs(self, result: Any, rows: int, *, sparse: bool = False) -> Columns:
        """What the model returned as checked columns; BadModelOutput names what is wrong.

        With `sparse` a row may be None: a stream has nothing for it this time.
        """
        signature = self.signature
        if signature.returns == "single":
            result = {signature.outputs[0].name: result}
        elif signature.returns == "tuple":
            if not isinstance(result, tuple) or len(result) != len(signature.outputs):
                raise BadModelOutput(
                    f"model {self.config.name!r} must return a tuple of"
                    f" {len(signature.outputs)} outputs, not {_describe(result)}"
                )
            result = {
                spec.name: value for spec, value in zip(signature.outputs, result, strict=True)
            }
        elif not isinstance(result, Mapping):
            result = {spec.name: getattr(result, spec.name, None) for spec in signature.outputs}
        outputs: Columns = {}
        for spec in signature.outputs:
            if spec.name not in result:
                raise BadModelOutput(
                    f"model {self.config.name!r} returned no output {spec.name!r}"
                )
            value = result[spec.name]
            if signature.row_wise or not self.config.max_batch_size:
                value = [value]
            outputs[spec.name] = self._checked(spec, value, rows, sparse)
        return outputs

    def _checked(self, spec: TensorSpec, value: Any, rows: int, sparse: bool) -> Column:
        """The column as the core keeps it; BadModelOutput if it is not what was declared."""
        where = f"model {self.config.name!r}: output {spec.name!r}"
        try:
            count = len(value)
        except TypeError:
            raise BadModelOutput(
                f"{where} must hold one row for each of the {rows} input rows, not"
                f" {_describe(value)}"
            ) from None
        if count != rows:
            raise BadModelOutput(
                f"{where} has {count} rows for {rows} input rows; return exactly one row out for"
                " each row in"
            )
        if spec.form.is_bytes:
            column = value if isinstance(value, list) else list(value)
            wanted = str if spec.form is Form.TEXT else bytes if spec.form is Form.BYTES else None
            if wanted is not None:
                _check_elements(column, wanted, spec, where, sparse)
            return column
        if sparse and isinstance(value, list) and any(row is None for row in value):
            return [None if row is None else np.asarray(row, spec.datatype.dtype) for row in value]
        if spec.form is Form.ARRAYS:
            arrays = [np.asarray(row, spec.datatype.dtype) for row in value]
            for row in arrays:
                if not spec.fits(row.shape):
                    raise BadModelOutput(_bad_shape(where, spec, row.shape))
            return arrays
        try:
            array = np.asarray(value)
            if array.dtype != spec.datatype.dtype:
                array = array.astype(spec.datatype.dtype, casting="same_kind")
        except (TypeError, ValueError) as error:
            raise BadModelOutput(f"{where} must be {spec.datatype}: {error}") from None
        if not spec.fits(array.shape[1:]):
            raise BadModelOutput(_bad_shape(where, spec, array.shape[1:]))
        return array

    def failure(self, error: BaseException) -> Failure:
        if isinstance(error, InvalidRequest | BadModelOutput):
            return Failure(type(error).__name__, str(error), exception=error)
        if isinstance(error, ModelFailed):
            return Failure("ModelFailed", str(error), exception=error)
        return Failure(
            "ModelFailed",
            f"model {self.config.name!r} failed: {type(error).__name__}: {error}",
            "".join(traceback.format_exception(error)),
            error,
        )


def columns_of_row(signature: Signature, config: ModelConfig, row: Mapping[str, Any]) -> Columns:
    """One caller's row as columns of one row; InvalidRequest names what is wrong."""
    columns: Columns = {}
    for spec in signature.inputs:
        if spec.name not in row:
            if spec.optional:
                continue
            raise InvalidRequest(f"model {config.name!r}: input {spec.name!r} is missing")
        columns[spec.name] = column_of_value(spec, row[spec.name], config.name)
    if len(columns) < len(row):
        unknown = sorted(set(row) - set(columns))
        names = ", ".join(spec.name for spec in signature.inputs)
        raise InvalidRequest(
            f"model {config.name!r} has no input {unknown[0]!r}; its inputs are: {names}"
        )
    return columns


def column_of_value(spec: TensorSpec, value: Any, model: str) -> Column:
    """A column of one row from a caller's Python value."""
    form = spec.form
    if form is Form.TEXT:
        if not isinstance(value, str):
            raise InvalidRequest(_wrong_value(model, spec, "a str", value))
        return [value]
    if form is Form.BYTES:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidRequest(_wrong_value(model, spec, "bytes", value))
        return [bytes(value)]
    if form is Form.JSON:
        return [value]
    try:
        array = np.asarray(value)
        if array.dtype != spec.datatype.dtype:
            array = array.astype(spec.datatype.dtype, casting=_casting(array, spec))
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(_wrong_value(model, spec, f"{spec.datatype} data", value)) from None
    if not spec.fits(array.shape):
        raise InvalidRequest(
            f"model {model!r}: input {spec.name!r} has shape {list(array.shape)};"
            f" one row has shape {list(spec.shape)}"
        )
    return [array] if form is Form.ARRAYS else array[np.newaxis]


def _casting(array: np.ndarray[Any, Any], spec: TensorSpec) -> Any:
    """Python numbers have no width: a value that fits is welcome in any datatype of its kind."""
    wanted = spec.datatype.dtype
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        limits = np.iinfo(wanted.name)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise OverflowError
        return "unsafe"
    return "same_kind"


def _wrong_value(model: str, spec: TensorSpec, wanted: str, value: Any) -> str:
    return f"model {model!r}: input {spec.name!r} must be {wanted}, not {_describe(value)}"


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of shape {list(value.shape)}" if isinstance(value, np.ndarray) else kind


def _bad_shape(where: str, spec: TensorSpec, shape: tuple[int, ...]) -> str:
    return f"{where} has rows of shape {list(shape)}, declared is {list(spec.shape)}"


def _check_elements(
    column: list[Any], wanted: type, spec: TensorSpec, where: str, sparse: bool
) -> None:
    for row in column:
        if type(row) is wanted or (sparse and row is None):
            continue
        if spec.shape and isinstance(row, list) and all(isinstance(e, wanted) for e in row):
            continue
        if not isinstance(row, wanted):
            raise BadModelOutput(
                f"{where} must hold {wanted.__name__} rows, not {_describe(row)}"
            )


def _input_converter(spec: TensorSpec) -> Callable[[Any], Any] | None:
    """From a column as the core keeps it to what the annotation promises."""
    if spec.form is Form.SCALARS:
        return lambda column: column.tolist()
    if spec.form is Form.ARRAYS:
        return list
    if spec.form is Form.JSON and spec.json_type not in (dict, Mapping, list):
        kind = spec.json_type

        def convert(column: list[Any]) -> list[Any]:
            try:
                return [msgspec.convert(row, kind) for row in column]
            except msgspec.ValidationError as error:
                raise InvalidRequest(f"input {spec.name!r}: {error}") from None

        return convert
    return None


def _caller(signature: Signature, execute: Callable[..., Any]) -> Callable[[Columns, int], Any]:
    if not signature.row_wise:
        return lambda columns, rows: execute(**columns)

    def call_with_row(columns: Columns, rows: int) -> Any:
        return execute(**{name: column[0] for name, column in columns.items()})

    return call_with_row


def _scatter(outputs: Columns, counts: Sequence[int]) -> list[Outcome]:
    """Give each caller its rows."""
    if len(counts) == 1:
        return [outputs]
    answers: list[Outcome] = []
    start = 0
    for count in counts:
        answers.append({n: column[start : start + count] for n, column in outputs.items()})
        start += count
    return answers

