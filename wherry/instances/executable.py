"""What does the user's code see, and what if it raises?

An executable is one loaded copy of a model with its signature: merged columns of several callers
go in, one outcome for each caller comes out. It runs inside a thread of the server as inside a
worker process, so nothing here knows of requests, sockets or locks.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

import numpy as np

from wherry.instances.async_calls import AsyncCalls
from wherry.instances.media_rows import Decoded, MediaRows
from wherry.instances.model_errors import model_errors
from wherry.instances.sequence_inputs import SequenceInputs, callers_signature
from wherry.models.config import ModelConfig
from wherry.models.model import Device, Model, load_on
from wherry.models.row_types import WrongRow, converter
from wherry.models.rows import as_array, columns_of_row, describe
from wherry.models.signature import Signature
from wherry.values.datatypes import Form, TensorSpec
from wherry.values.errors import BY_NAME, BadModelOutput, InvalidRequest, ModelFailed, WherryError
from wherry.values.media_codec import is_converted
from wherry.values.request import Column, Columns, InferRequest, concatenate, rows_of

#: How often parts of a failed batch are run again, at most: finding one bad request among 256
#: takes 2 * log2(256) = 16 runs.
MAX_RERUNS = 48

#: The `error` of a Failure that is none: the model wants this request again in its next batch
#: (iterative sequences).
RESCHEDULED = "Rescheduled"

#: Of an error's text, and of its traceback, so much is passed on.
MAX_ERROR_CHARS = 2**16

#: The forms whose rows are strings, and the type of a row.
_STRINGS: Mapping[Form, type] = MappingProxyType({Form.TEXT: str, Form.BYTES: bytes})

#: What has a length, and yet is no column.
NO_COLUMNS = (str, bytes, Mapping, Set)


class WrongColumn(BadModelOutput):
    """What the model returned is wrong for all rows: no column, or one of another length or shape.
    No part of the batch would fare better."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a value that can cross to another process."""

    error: str
    message: str
    traceback: str = ""
    #: In the same process: what the model raised.
    exception: BaseException | None = None
    #: Of an InvalidRequest: what of the request is to blame.
    field: str | None = None

    @property
    def is_the_models(self) -> bool:
        """Must the model's author act, and not the caller?"""
        return issubclass(BY_NAME.get(self.error, ModelFailed), ModelFailed)

    def as_exception(self) -> WherryError:
        error = BY_NAME.get(self.error, ModelFailed)(self.message)
        if isinstance(error, InvalidRequest):
            error.field = self.field
        error.__cause__ = self.exception
        if self.traceback and self.exception is None:  # it was raised in another process
            error.add_note(self.traceback)
        return error


Outcome = Columns | Failure


@dataclass(frozen=True, slots=True)
class SharedOutcome:
    """What one call of the model gave for neighbours in a batch, `counts[i]` rows each."""

    outcome: Outcome
    counts: Sequence[int]

    def scatter(self) -> list[Outcome]:
        """Give each caller its rows, or the same failure."""
        outputs = self.outcome
        if isinstance(outputs, Failure) or len(self.counts) == 1:
            return [outputs] * len(self.counts)
        answers: list[Outcome] = []
        start = 0
        for count in self.counts:
            stop = start + count
            answers.append({name: column[start:stop] for name, column in outputs.items()})
            start = stop
        return answers


@dataclass(slots=True)
class Execution:
    """What one batch gave: an outcome for each caller, and where the time (ns) went."""

    outcomes: list[Outcome] = field(default_factory=list)
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    #: Rows of each call of the model; more than one if a failed batch was tried in parts.
    executed_rows: list[int] = field(default_factory=list)
    #: The smallest number of rows for which memory did not suffice; 0: it did.
    out_of_memory_rows: int = 0
    #: Requests that outlive the batch: they are answered later, and their outcomes here are none.
    later: Set[InferRequest] = frozenset()
    #: What the model says to a request beside its outputs.
    parameters: Mapping[InferRequest, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class BatchParts:
    """What a batch gave that the model failed for: the outcomes of neighbours, in order."""

    outcomes: list[SharedOutcome]
    #: How long the model was called in all, and the rows of each call.
    infer_ns: int
    executed_rows: list[int]
    #: The smallest number of rows for which memory did not suffice; 0: it did.
    out_of_memory_rows: int = 0
    #: How long images, audio and files were decoded before the model was called.
    decode_ns: int = 0

    def add(self, part: BatchParts) -> None:
        """Count what came of a part of the batch too."""
        self.outcomes += part.outcomes
        self.infer_ns += part.infer_ns
        self.executed_rows += part.executed_rows
        self.out_of_memory_rows = max(self.out_of_memory_rows, part.out_of_memory_rows)


class Executable:
    """One copy of a model, ready to be called with columns."""

    def __init__(self, model: Model, config: ModelConfig) -> None:
        self.model = model
        self.config = config
        self.signature: Signature = model.signature(config.name)
        self.takes_arrays = any(not spec.form.is_bytes for spec in self.signature.inputs)
        #: Calls the model's code with columns, as its annotations say: gives a result, an awaitable
        #: or an iterator.
        self.call = _caller(model.execute, self.signature, config)
        self._media = MediaRows(self.signature, config.name)
        #: Must rows be decoded before the code is called? Then `run_decoded` is what runs a batch.
        self.decodes = self._media.has_inputs
        #: Does it take time to make columns of what the code returns?
        self.encodes = any(is_converted(spec.media) for spec in self.signature.outputs)
        #: May rows of what the code returns be long bytes?
        self.gives_bytes = any(spec.form is Form.BYTES for spec in self.signature.outputs)
        #: Does the code return one row, and not a column?
        self._returns_row = self.signature.row_wise or not config.max_batch_size
        #: The only output, if its rows are strings, and their type.
        self._strings: tuple[str, type] | None = None
        if self.signature.returns == "single" and not self.signature.is_async:
            (spec,) = self.signature.outputs
            if spec.form in _STRINGS and not spec.shape and not is_converted(spec.media):
                self._strings = spec.name, _STRINGS[spec.form]
        self._async = AsyncCalls()

    def load(self, device: Device) -> None:
        """Load the model and run its warm-up samples, in the thread that will run it."""
        self._media.require()
        load_on(self.model, device)
        self.warm_up()

    def warm_up(self) -> None:
        for columns, rows in self._warmup_batches():
            columns = self.decoded(columns)
            if self.signature.streams:
                for _ in self.stream(columns, rows):
                    pass
            else:
                self.execute(columns, rows)

    def _warmup_batches(self) -> Iterator[tuple[Columns, int]]:
        """Rows one at a time, or what a model that brings whole batches has."""
        yield from self.model.warmup_batches()
        for sample in self.config.warmup or self.config.examples[:1]:
            columns = self.columns_of(sample)
            if self.config.sequence is not None:
                inputs = SequenceInputs(self.config.name, self.config.sequence, self.signature)
                columns = inputs.for_warm_up(columns, 1)
            yield columns, 1

    def columns_of(self, row: Mapping[str, Any]) -> Columns:
        signature = callers_signature(self.signature, self.config.sequence)
        return columns_of_row(signature, self.config, row)

    def unload(self) -> None:
        self._async.close()
        self.model.unload()

    def decoded(self, columns: Columns) -> Columns:
        """One caller's rows as the code takes them. InvalidRequest."""
        return self._media.decoded_row(columns) if self.decodes else columns

    def parts(self, columns: Columns, counts: Sequence[int]) -> Iterable[Decoded]:
        """The rows of all callers as the code takes them, for one call of it after the other."""
        if self.decodes:
            return self._media.decoded(columns, counts)
        return (Decoded(list(range(len(counts))), columns, {}),)

    def execute(self, columns: Columns, rows: int) -> Columns:
        """Call the model once with merged columns. Raises what the model raises."""
        result = self.call(columns)
        if self.signature.is_async:
            result = self._async.run(result)
        return self.outputs(result, rows)

    def outcome(self, columns: Columns, rows: int) -> Outcome:
        """Call the model once with merged columns. Never raises.

        Each batch comes here, so what most models return is checked right here.
        """
        try:
            if self._strings is None:
                return self.execute(columns, rows)
            result = self.call(columns)
            name, kind = self._strings
            if self._returns_row:
                if type(result) is kind and rows == 1:
                    return {name: [result]}
            elif type(result) is list and len(result) == rows and set(map(type, result)) == {kind}:
                return {name: result.copy()}  # the model may keep its list
            return self.outputs(result, rows)
        except model_errors() as error:
            return self.failure(error)

    def run(self, columns: Columns, counts: Sequence[int]) -> Execution:
        """Run a batch of several callers (`counts[i]` rows each). Never raises. What a model that
        fails is asked again for, `run_again` says."""
        if self.decodes:
            return _execution(self.run_decoded(columns, counts))
        rows = sum(counts)
        started = perf_counter_ns()
        outcome = self.outcome(columns, rows)
        ended = perf_counter_ns()
        if isinstance(outcome, Failure):
            return _execution(self.run_again(columns, counts, outcome, ended - started))
        outcomes = SharedOutcome(outcome, counts).scatter()
        return Execution(outcomes, 0, ended - started, perf_counter_ns() - ended, [rows])

    def run_decoded(self, columns: Columns, counts: Sequence[int]) -> BatchParts:
        """Decode the rows of a batch and call the model with those that could be: once, unless it
        fails or they are too large together. Never raises."""
        began = perf_counter_ns()
        found = BatchParts([], 0, [])
        outcomes: dict[int, Outcome] = {}
        for part in self.parts(columns, counts):
            outcomes.update({i: self.failure(error) for i, error in part.refused.items()})
            if not part.callers:
                continue
            part_counts = [counts[index] for index in part.callers]
            started = perf_counter_ns()
            outcome = self.outcome(part.columns, sum(part_counts))
            infer_ns = perf_counter_ns() - started
            ran = BatchParts([SharedOutcome(outcome, part_counts)], infer_ns, [sum(part_counts)])
            if isinstance(outcome, Failure):
                ran = self.run_again(part.columns, part_counts, outcome, infer_ns)
            found.add(ran)
            each = [outcome for shared in ran.outcomes for outcome in shared.scatter()]
            outcomes.update(zip(part.callers, each, strict=True))
        if len(found.outcomes) != 1 or found.outcomes[0].counts != counts:
            found.outcomes = [SharedOutcome(outcomes[i], [n]) for i, n in enumerate(counts)]
        found.decode_ns = perf_counter_ns() - began - found.infer_ns
        return found

    def run_again(
        self, columns: Columns, counts: Sequence[int], failure: Failure, infer_ns: int
    ) -> BatchParts:
        """Run the halves of a batch again that has failed after `infer_ns`, so that a bad row fails
        alone; if the model ran out of memory, also with `isolate_errors` off. Never raises."""
        # A step of a sequence that runs twice would change twice what the model remembers.
        once = self.config.sequence is not None
        reruns = MAX_RERUNS if self.config.isolate_errors and not once else 0
        found = BatchParts([], infer_ns, [sum(counts)])

        def run(start_row: int, counts: Sequence[int]) -> list[SharedOutcome]:
            rows = sum(counts)
            part = rows_of(columns, start_row, start_row + rows)
            started = perf_counter_ns()
            outcome = self.outcome(part, rows)
            found.infer_ns += perf_counter_ns() - started
            found.executed_rows.append(rows)
            if isinstance(outcome, Failure):
                return halves(start_row, counts, outcome)
            return [SharedOutcome(outcome, counts)]

        def halves(start_row: int, counts: Sequence[int], failure: Failure) -> list[SharedOutcome]:
            nonlocal reruns
            out_of_memory = _ran_out_of_memory(failure)
            if out_of_memory:
                found.out_of_memory_rows = sum(counts)
                reruns = max(reruns, 0 if once else 2)
            again = not isinstance(failure.exception, WrongColumn)
            rows, one_caller = sum(counts), len(counts) == 1
            if reruns < 2 or not again or (one_caller and (rows == 1 or not out_of_memory)):
                return [SharedOutcome(failure, counts)]
            reruns -= 2
            half = len(counts) // 2
            first, second = counts[:half], counts[half:]
            if one_caller:
                first, second = [rows // 2], [rows - rows // 2]
            parts = run(start_row, first) + run(start_row + sum(first), second)
            return [_joined(parts, counts)] if one_caller else parts

        found.outcomes = halves(0, counts, failure)
        return found

    def stream(self, columns: Columns, rows: int) -> Iterator[Columns]:
        """Call a generator model: each item is one response of every row that is not None."""
        items = self.call(columns)
        if self.signature.is_async:
            items = self._async.iterate(items)
        try:
            for item in items:
                yield self.outputs(item, rows, sparse=True)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def outputs(self, result: Any, rows: int, *, sparse: bool = False) -> Columns:
        """What the model returned as checked columns; BadModelOutput names what is wrong.

        With `sparse` a row may be None: a stream has nothing for it this time.
        """
        signature = self.signature
        if signature.returns == "single":
            spec = signature.outputs[0]
            if self._returns_row:
                result = [result]
            return {spec.name: self._checked(spec, result, rows, sparse)}
        if signature.returns == "tuple":
            if not isinstance(result, tuple) or len(result) != len(signature.outputs):
                raise WrongColumn(
                    f"model {self.config.name!r} must return a tuple of"
                    f" {len(signature.outputs)} outputs, not {describe(result)}"
                )
            result = {
                spec.name: value for spec, value in zip(signature.outputs, result, strict=True)
            }
        elif not isinstance(result, Mapping):
            result = {spec.name: getattr(result, spec.name, None) for spec in signature.outputs}
        outputs: Columns = {}
        for spec in signature.outputs:
            if spec.name not in result:
                if spec.optional:
                    continue
                raise WrongColumn(f"model {self.config.name!r} returned no output {spec.name!r}")
            value = result[spec.name]
            if self._returns_row:
                value = [value]
            outputs[spec.name] = self._checked(spec, value, rows, sparse)
        return outputs

    def _checked(self, spec: TensorSpec, value: Any, rows: int, sparse: bool) -> Column:
        """The column as the core keeps it; BadModelOutput if it is not what was declared."""
        count = len(value) if hasattr(value, "__len__") else None
        if count != rows or (type(value) is not list and isinstance(value, NO_COLUMNS)):
            raise self._wrong_rows(spec, value, rows)
        if is_converted(spec.media):
            return self._media.encoded(spec, value)
        if spec.form is Form.TEXT:
            return self._checked_elements(spec, list(value), str, sparse)
        if spec.form is Form.BYTES:
            return self._checked_elements(spec, list(value), bytes, sparse)
        if spec.form is Form.JSON:
            return list(value)
        where = f"model {self.config.name!r}: output {spec.name!r}"
        # Of an array every row has the datatype and the shape; of a list a row may be to blame.
        wrong = WrongColumn if isinstance(value, np.ndarray) else BadModelOutput
        column: Column
        try:
            if spec.form is Form.ARRAYS or (sparse and any(row is None for row in value)):
                column = [None if row is None and sparse else as_array(row, spec) for row in value]
                shapes = [row.shape for row in column if row is not None]
            else:
                column = as_array(value, spec)
                shapes = [column.shape[1:]]
        except (TypeError, ValueError, OverflowError) as error:
            raise wrong(f"{where} must be {spec.datatype}: {error}") from None
        for shape in shapes:
            if not spec.fits(shape):
                raise wrong(_bad_shape(where, spec, shape))
        return column

    def _wrong_rows(self, spec: TensorSpec, value: Any, rows: int) -> WrongColumn:
        where = f"model {self.config.name!r}: output {spec.name!r}"
        if not hasattr(value, "__len__") or isinstance(value, NO_COLUMNS):
            return WrongColumn(
                f"{where} must hold one row for each of the {rows} input rows, not"
                f" {describe(value)}"
            )
        return WrongColumn(
            f"{where} has {len(value)} rows for {rows} input rows; return exactly one row out for"
            " each row in"
        )

    def _checked_elements(
        self, spec: TensorSpec, column: list[Any], wanted: type, sparse: bool
    ) -> list[Any]:
        kinds = set(map(type, column)) - {wanted}
        if np.ndarray in kinds and spec.shape:  # of an empty list numpy cannot know the kind
            column = [[] if isinstance(row, np.ndarray) and not row.size else row for row in column]
            kinds = set(map(type, column)) - {wanted}
        for kind in kinds:
            if issubclass(kind, wanted) or (sparse and kind is type(None)):
                continue
            wrong: Any = next(row for row in column if type(row) is kind)
            if spec.shape and issubclass(kind, list) and all(isinstance(e, wanted) for e in wrong):
                continue
            raise BadModelOutput(
                f"model {self.config.name!r}: output {spec.name!r} must hold {wanted.__name__}"
                f" rows, not {describe(wrong)}"
            )
        return column

    def failure(self, error: BaseException) -> Failure:
        for cls in type(error).__mro__:  # a user's own subclass too
            if BY_NAME.get(cls.__name__) is cls:
                field = getattr(error, "field", None)
                named = sendable(field) if isinstance(field, str) else None
                return Failure(cls.__name__, text_of(error), exception=error, field=named)
        return Failure(
            "ModelFailed",
            f"model {self.config.name!r} failed: {type(error).__name__}: {text_of(error)}",
            sendable("".join(traceback.format_exception(error))),
            error,
        )


def _execution(parts: BatchParts) -> Execution:
    return Execution(
        [outcome for part in parts.outcomes for outcome in part.scatter()],
        parts.decode_ns,
        parts.infer_ns,
        executed_rows=parts.executed_rows,
        out_of_memory_rows=parts.out_of_memory_rows,
    )


def text_of(error: BaseException) -> str:
    """What it says, as a worker can send it."""
    try:
        return sendable(str(error))
    except Exception:  # noqa: BLE001 - the user's own __str__: a bug there costs no instance
        return "<its str() raised>"


def sendable(text: str) -> str:
    """What a worker can send, whatever an error quotes: lone surrogates are no UTF-8, and an input
    may be large."""
    if len(text) > MAX_ERROR_CHARS:
        text = f"{text[:MAX_ERROR_CHARS]}... ({len(text)} characters)"
    return text.encode(errors="replace").decode()


def _bad_shape(where: str, spec: TensorSpec, shape: tuple[int, ...]) -> str:
    return f"{where} has rows of shape {list(shape)}, declared is {list(spec.shape)}"


def _joined(parts: Sequence[SharedOutcome], counts: Sequence[int]) -> SharedOutcome:
    """The parts of one caller's rows as one part again; the first failure is the whole's."""
    outputs: list[Columns] = []
    for part in parts:
        if isinstance(part.outcome, Failure):
            return SharedOutcome(part.outcome, counts)
        outputs.append(part.outcome)
    return SharedOutcome(concatenate(outputs), counts)


def _ran_out_of_memory(failure: Failure) -> bool:
    """Python's own MemoryError, or torch's, CuPy's and JAX's by name: none of them is imported.

    What the failed call still holds on to is let go, so that smaller batches find room.
    """
    error = failure.exception
    if error is None:
        return False
    if not isinstance(error, MemoryError) and not re.search(
        r"OutOfMemory|RESOURCE_EXHAUSTED|out of memory", failure.message
    ):
        return False
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return True


def _input_converter(spec: TensorSpec, model: str) -> Callable[[Any], Any] | None:
    """From a column as the core keeps it to what the annotation promises."""
    if spec.form is Form.SCALARS:
        return lambda column: column.tolist()
    if spec.form is Form.ARRAYS:
        return list
    if spec.form is Form.JSON and spec.json_type not in (dict, Mapping, list):
        read = converter(spec.json_type)

        def convert(column: list[Any]) -> list[Any]:
            try:
                return [read(row) for row in column]
            except WrongRow as error:
                raise InvalidRequest(
                    f"input {spec.name!r} of model {model!r}: {error}", field=spec.name
                ) from None

        return convert
    return None


def _caller(
    execute: Callable[..., Any], signature: Signature, config: ModelConfig
) -> Callable[[Columns], Any]:
    """A function that calls the model's code with columns."""
    converters = [
        (spec.name, convert)
        for spec in signature.inputs
        if (convert := _input_converter(spec, config.name)) is not None
    ]

    def call_with_columns(columns: Columns) -> Any:
        return execute(**columns)

    def call_with_row(columns: Columns) -> Any:
        return execute(**{name: column[0] for name, column in columns.items()})

    def call_without_batch(columns: Columns) -> Any:
        # Arrays go in as they are, and as arrays even if they have no dimensions.
        return execute(
            **{
                name: column[0, ...] if isinstance(column, np.ndarray) else column[0]
                for name, column in columns.items()
            }
        )

    call = call_with_columns
    if signature.row_wise:
        call = call_with_row
    elif not config.max_batch_size:
        call = call_without_batch

    def call_with_converted(columns: Columns) -> Any:
        columns = dict(columns)
        for name, convert in converters:
            if name in columns:
                columns[name] = convert(columns[name])
        return call(columns)

    return call_with_converted if converters else call
