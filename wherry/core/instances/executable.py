"""What does the user's code see, and what if it raises?

An executable is one loaded copy of a model with its signature: merged columns of several callers go
in, one outcome for each caller comes out. It runs in a thread of the server or in a worker process,
so nothing here knows of requests, sockets or locks.
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wherry.core.instances.device_errors import broken_device
from wherry.core.instances.device_use import make_current, torch_device
from wherry.core.instances.media_rows import Decoded, MediaRows
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.model_outputs import ModelOutputs
from wherry.core.instances.own_rows import OwnAnswers, gather_rows
from wherry.core.instances.reruns import Reruns, Sent
from wherry.core.instances.sequence_inputs import SequenceInputs, callers_signature
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model, load_on
from wherry.core.models.row_types import WrongRow, converter
from wherry.core.models.rows import columns_of_row
from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.errors import BY_NAME, BadModelOutput, InvalidRequest
from wherry.core.values.execution import (
    BatchParts,
    Execution,
    Failure,
    Outcome,
    SharedOutcome,
    sendable,
    text_of,
)
from wherry.core.values.media_codec import is_converted
from wherry.core.values.request import Columns, concatenate, rows_of
from wherry.core.values.tensors import as_declared

if TYPE_CHECKING:
    import asyncio


log = logging.getLogger("wherry")
#: The forms whose rows are strings, and the type of a row.
_STRINGS: Mapping[Form, type] = MappingProxyType({Form.TEXT: str, Form.BYTES: bytes})


class AsyncCalls:
    """An event loop in the thread that calls it, from the first call until it is closed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, awaitable: Any) -> Any:
        if self._runner is None:
            import asyncio

            self._runner = asyncio.Runner()
        try:
            return self._runner.run(awaitable)
        except BaseException:  # also a SystemExit of another task, which leaves this one half done
            self._end(self._runner, awaitable)
            raise

    def _end(self, runner: asyncio.Runner, awaitable: Any) -> None:
        """End a task that a SystemExit of another one, or a stop of the loop, has left half done:
        it would go on, or raise that again, in the next call."""
        import asyncio

        left = [
            task for task in asyncio.all_tasks(runner.get_loop()) if task.get_coro() is awaitable
        ]
        while left and left[0].cancel():
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                runner.run(asyncio.wait(left))

    def iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def next_item() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self.run(next_item())
                except StopAsyncIteration:
                    return
        finally:
            self.run(items.aclose())  # type: ignore[attr-defined]

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


class Executable:
    """One copy of a model, ready to be called with columns."""

    #: What has left its device unusable in this process; "" if nothing has.
    broken_device = ""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        device_lost: Callable[[str], None] = lambda _: None,
        *,
        in_worker: bool = False,
    ) -> None:
        """`in_worker`: the outcomes of a batch are encoded before the next one."""
        self.model = model
        self.config = config
        #: Called with what has left the device unusable, before any caller is answered.
        self._device_lost = device_lost
        self.signature: Signature = model.signature(config.name)
        #: Does the code get arrays, which it might write into? Numbers go in as a new list.
        self.takes_arrays = any(
            spec.form in (Form.ARRAY, Form.ARRAYS) for spec in self.signature.inputs
        )
        #: Calls the model's code with columns and their number of rows, converted as annotated:
        #: returns a result, an awaitable or an iterator.
        self.call = _caller(model.execute, self.signature, config, lambda: self.device)
        self._media = MediaRows(self.signature, config.name)
        #: Must rows be decoded before the code is called? Then `run_decoded` is what runs a batch.
        self.decodes = self._media.has_inputs
        #: Does it take time to convert what the code returns into columns?
        self.encodes = any(is_converted(spec.media) for spec in self.signature.outputs)
        #: Can rows of what the code returns be long bytes?
        self.gives_bytes = any(spec.form is Form.BYTES for spec in self.signature.outputs)
        #: Checks what the code returns.
        self.outputs = ModelOutputs(self.signature, config, self._media)
        answers = OwnAnswers(self.signature, config.name)
        self._own = answers.of
        #: The same for one response: a worker's must name what cannot be sent.
        self._own_response = answers.json_of if in_worker else answers.of
        #: Makes what the code has returned its callers' own; None: encoding does that.
        self.own = None if in_worker else self._own
        #: The only output, if its rows are strings, and their type.
        self._strings: tuple[str, type] | None = None
        if self.signature.returns == "single" and not self.signature.is_async:
            (spec,) = self.signature.outputs
            if spec.form in _STRINGS and not spec.shape and not is_converted(spec.media):
                self._strings = spec.name, _STRINGS[spec.form]
        self._async = AsyncCalls()
        self.device = "cpu"

    def load(self, device: Device) -> None:
        """Load the model and run its warm-up samples, in the thread that will run it."""
        self.load_on(device)
        self.warm_up(device)

    def load_on(self, device: Device) -> None:
        """Load the model; `async def load` in the loop that its calls run in, too."""
        self._media.require()
        make_current(device)
        if inspect.isawaitable(loading := load_on(self.model, device)):
            self._async.run(loading)
        self.device = torch_device(device)

    def warm_up(self, device: Device) -> None:
        for columns, rows in self._warmup_batches():
            columns = self.decoded(gather_rows([columns], once=False))
            if self.signature.streams:
                for _ in self.stream(columns, rows):
                    pass
            else:
                self.execute(columns, rows)
        if device.kind == "cuda" and self.config.sequence is None and not self.signature.streams:
            self._warm_up_full()

    def _warm_up_full(self) -> None:
        """Run the largest batch, too: a GPU's libraries load and plan for each size, and this shows
        whether there is memory for it."""
        rows = self.config.max_batch_size
        samples = self.config.warmup or self.config.examples
        if rows < 2 or not samples:
            return
        columns = concatenate([self.columns_of(samples[0])] * rows)
        ran = self.run(gather_rows([columns], once=False), [rows], lambda: columns)
        (outcome,) = ran.outcomes
        if isinstance(outcome, Failure):
            raise outcome.exception or outcome.as_exception()
        if ran.out_of_memory_rows:
            log.warning(
                "batches will be smaller: not enough memory for max_batch_size",
                extra={"model": self.config.name, "rows": ran.out_of_memory_rows},
            )

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
        try:
            unload: Callable[[], Any] = self.model.unload
            if inspect.isawaitable(unloading := unload()):
                self._async.run(unloading)
        finally:
            self._async.close()

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
        result = self.call(columns, rows)
        if self.signature.is_async:
            result = self._async.run(result)
        return self.outputs.of(result, rows)

    def outcome(self, columns: Columns, rows: int) -> Outcome:
        """Call the model once with merged columns. Never raises.

        Each batch comes here, so what most models return is checked right here. `columns` is empty
        afterwards: then only the model can still hold one of them.
        """
        try:
            if self._strings is None:
                outputs = self.execute(columns, rows)
                if self.own is None:
                    return outputs
                columns.clear()
                return self.own(outputs)
            result = self.call(columns, rows)
            name, kind = self._strings
            if self.outputs.returns_row:
                if type(result) is kind and rows == 1:
                    return {name: [result]}
            elif type(result) is list and len(result) == rows and set(map(type, result)) == {kind}:
                return {name: result.copy()}  # the model may keep its list
            outputs = self.outputs.of(result, rows)
            return outputs if self.own is None else self.own(outputs)
        except model_errors() as error:
            return self.failure(error)

    def run(self, columns: Columns, counts: Sequence[int], sent: Sent) -> Execution:
        """Run a batch of several callers (`counts[i]` rows each). Never raises. If the model fails,
        parts run again (`run_again`)."""
        if self.decodes:
            return self.run_decoded(columns, counts, sent).execution()
        rows = sum(counts)
        started = perf_counter_ns()
        outcome = self.outcome(columns, rows)
        ended = perf_counter_ns()
        if isinstance(outcome, Failure):
            return self.run_again(sent, counts, outcome, ended - started).execution()
        outcomes: list[Outcome] = [outcome]
        if len(counts) > 1:
            outcomes = SharedOutcome(outcome, counts).scatter()
        return Execution(outcomes, 0, ended - started, perf_counter_ns() - ended, [rows])

    def run_decoded(self, columns: Columns, counts: Sequence[int], sent: Sent) -> BatchParts:
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
            outcome = self._own_outcome(part.columns, sum(part_counts))
            infer_ns = perf_counter_ns() - started
            ran = BatchParts([SharedOutcome(outcome, part_counts)], infer_ns, [sum(part_counts)])
            if isinstance(outcome, Failure):
                of_part = partial(_rows_of_callers, sent, counts, part.callers)
                ran = self.run_again(of_part, part_counts, outcome, infer_ns)
            found.add(ran)
            each = [outcome for shared in ran.outcomes for outcome in shared.scatter()]
            outcomes.update(zip(part.callers, each, strict=True))
        if len(found.outcomes) != 1 or found.outcomes[0].counts != counts:
            found.outcomes = [SharedOutcome(outcomes[i], [n]) for i, n in enumerate(counts)]
        found.decode_ns = perf_counter_ns() - began - found.infer_ns
        return found

    def run_again(
        self, sent: Sent, counts: Sequence[int], failure: Failure, infer_ns: int
    ) -> BatchParts:
        """Run the halves of a batch that has failed after `infer_ns`. Raises only what `sent`
        raises."""
        config = self.config
        # A step of a sequence that runs twice would change twice what the model remembers.
        once = config.sequence is not None or not config.run_again
        if not config.run_again and len(counts) > 1:
            whole = f"the batch of {len(counts)} requests is not run again (run_again=False)"
            text = f"{failure.message}; {whole}"
            failure = msgspec.structs.replace(failure, message=text)
        again = Reruns(self._outcome_again, sent, isolate=config.isolate_errors, once=once)
        return again.run(counts, failure, infer_ns)

    def _outcome_again(self, columns: Columns, rows: int) -> Outcome:
        try:
            columns = self.decoded(gather_rows([columns]))
        except (InvalidRequest, MemoryError) as error:
            return self.failure(error)
        return self._own_outcome(columns, rows)

    def _own_outcome(self, columns: Columns, rows: int) -> Outcome:
        """The outcome of one of several calls for a batch: the next one may change what this one
        has returned."""
        outcome = self.outcome(columns, rows)
        if self.own is not None or isinstance(outcome, Failure):
            return outcome
        try:
            return self._own(outcome)
        except BadModelOutput as error:
            return self.failure(error)

    def stream(self, columns: Columns, rows: int) -> Iterator[Columns]:
        """Call a generator model: each item is one response of every row that is not None."""
        items = self.call(columns, rows)
        if self.signature.is_async:
            items = self._async.iterate(items)
        try:
            for item in items:
                yield self._own_response(self.outputs.of(item, rows, sparse=True))
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def failure(self, error: BaseException) -> Failure:
        if broken := broken_device(error):
            self.broken_device = broken
            self._device_lost(broken)
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


def _rows_of_callers(sent: Sent, counts: Sequence[int], callers: Sequence[int]) -> Columns:
    """The rows of some of the callers of a batch as they were sent."""
    columns = sent()
    ends = list(accumulate(counts))
    return concatenate([rows_of(columns, ends[i] - counts[i], ends[i]) for i in callers])


def _input_converter(
    spec: TensorSpec, model: str, device: Callable[[], str]
) -> Callable[[Any], Any] | None:
    """Converts a column as the core keeps it to the annotated type; `device()` is torch's name of
    the instance's device."""
    if spec.library:
        return lambda column: as_declared(column, spec, device())
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
    execute: Callable[..., Any],
    signature: Signature,
    config: ModelConfig,
    device: Callable[[], str],
) -> Callable[[Columns, int], Any]:
    """A function that calls the model's code with columns and their number of rows."""
    # For what did not come as a request: rows that run in their callers' threads, warm-ups.
    defaults = {} if signature.row_wise else signature.defaults
    converters = [
        (spec.name, convert)
        for spec in signature.inputs
        if (convert := _input_converter(spec, config.name, device)) is not None
    ]

    def call_with_columns(columns: Columns, rows: int) -> Any:
        return execute(**columns)

    def call_with_row(columns: Columns, rows: int) -> Any:
        return execute(**{name: column[0] for name, column in columns.items()})

    def call_without_batch(columns: Columns, rows: int) -> Any:
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

    def call_with_converted(columns: Columns, rows: int) -> Any:
        columns = dict(columns)
        for name, convert in converters:
            if name in columns:
                columns[name] = convert(columns[name])
        for name, default in defaults.items():
            if name not in columns:
                columns[name] = [default] * rows
        return call(columns, rows)

    return call_with_converted if converters or defaults else call
