"""How does one request pass through the steps of an ensemble?

Each step starts as soon as its tensors are there, so independent steps run concurrently. Each is a
call through the batcher of its model, together with other callers' requests. An ensemble computes
nothing itself and has no queue.

A member that streams makes the ensemble stream: each of its responses passes on its own through the
steps that need it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import numpy as np

from wherry.core.api import (
    BadModelOutput,
    Column,
    Columns,
    Failure,
    InferRequest,
    InferResponse,
    InvalidRequest,
    ModelNotReady,
    ModelOfModels,
    SequenceStep,
    TensorSpec,
    WherryError,
    for_code,
    gather,
    is_tensor,
    shared,
    stop,
    view,
)
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository.triton_config import TritonEnsemblingStep

#: The tensors between the steps, with the batch dimension if there is one.
Tensors = dict[str, Column]


#: The step of a request outside of a sequence: Triton passes it each time.
NO_SEQUENCE = SequenceStep(0)


class EnsembleModel(RepositoryModel, ModelOfModels):
    """An ensemble as the runtime loads it; an Ensemble runs its requests in the pipelines' loop."""

    is_ensemble = True

    def execute(self, **columns: Column) -> Columns:
        raise NotImplementedError("an ensemble runs in its members")

    def body(self, calls: Members) -> Ensemble:
        return Ensemble(self, calls)


class Members(Protocol):
    """The Runtime's calls that an ensemble uses."""

    registry: Any

    async def answer(
        self, loaded: Any, columns: Columns, rows: int, **options: Any
    ) -> InferResponse: ...
    def responses(
        self, loaded: Any, columns: Columns, rows: int, **options: Any
    ) -> AsyncGenerator[InferResponse, None]: ...


class Ensemble:
    """The Body of an ensemble: runs the steps of one config.pbtxt."""

    def __init__(self, model: EnsembleModel, members: Members) -> None:
        config = model.triton
        assert config.ensemble_scheduling is not None
        self._config = config
        self._steps = config.ensemble_scheduling.step
        self._members = members
        self._batched = config.max_batch_size > 0
        self._specs = {spec.name: spec for spec in model.signature().outputs}
        taken = [tensor for step in self._steps for tensor in step.input_map.values()]
        #: The tensors that a step takes.
        self._passed_on = set(taken)
        #: The tensors with more than one user: steps, or the ensemble's outputs.
        self._shared = {
            tensor for tensor, count in Counter([*self._specs, *taken]).items() if count > 1
        }
        most = config.ensemble_scheduling.max_inflight_requests
        #: The most responses of one streaming member that are in later steps at once.
        self._most_in_flight = most or 64

    async def answer(self, request: InferRequest) -> InferResponse:
        tensors = await self._flow(request, self._input_tensors(request), self._needed(request))
        return self._response(tensors, request)

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        flow = self._streamed(request, self._input_tensors(request), self._needed(request))
        async with aclosing(flow):
            async for tensors in flow:
                yield self._response(tensors, request)

    def failure(self, error: BaseException) -> Failure:
        """The failure for an error of wherry itself: an ensemble runs no user code."""
        text = f"ensemble {self._config.name!r} failed: {type(error).__name__}: {error}"
        exception = error if isinstance(error, WherryError) else None
        return Failure("ModelFailed", text, exception=exception)

    def not_ready_reason(self) -> str:
        """Why a member is not ready; "" if all are."""
        for step in self._steps:
            version = None if step.model_version == -1 else str(step.model_version)
            try:
                member = self._members.registry.find(step.model_name, version)
            except WherryError as error:
                return f"its member {step.model_name!r} is not there: {error}"
            if reason := member.not_ready_reason():
                return f"its member {step.model_name!r} is not ready: {reason}"
        return ""

    # Steps in order

    async def _flow(
        self, request: InferRequest, input_tensors: Tensors, steps: Sequence[TritonEnsemblingStep]
    ) -> Tensors:
        """Run steps without streams. Returns all tensors at the end."""
        loop = asyncio.get_running_loop()
        pending: dict[str, asyncio.Future[Column | None]] = {
            tensor: loop.create_future() for step in steps for tensor in step.output_map.values()
        }

        async def value_of(tensor: str) -> Column | None:
            return await pending[tensor] if tensor in pending else input_tensors.get(tensor)

        async def run(step: TritonEnsemblingStep) -> None:
            inputs = {name: await value_of(tensor) for name, tensor in step.input_map.items()}
            outputs = await self._call(step, inputs, request)
            for name, tensor in step.output_map.items():
                pending[tensor].set_result(outputs.get(name))

        try:
            await gather(run(step) for step in steps)
            found = {t: future.result() for t, future in pending.items()}
        finally:
            for future in pending.values():
                future.cancel()
        return {**input_tensors, **{t: value for t, value in found.items() if value is not None}}

    async def _streamed(
        self, request: InferRequest, input_tensors: Tensors, steps: Sequence[TritonEnsemblingStep]
    ) -> AsyncGenerator[Tensors, None]:
        """Run steps of which some stream. Yields the tensors at the end of each response's path."""
        source = next((step for step in self._in_order(steps) if self._streams(step)), None)
        if source is None:
            yield await self._flow(request, input_tensors, steps)
            return
        first = self._before(source, steps)
        later = [step for step in steps if step is not source and step not in first]
        tensors = await self._flow(request, input_tensors, first)
        # Each response has them.
        tensors = {name: _shared(value) for name, value in tensors.items()}
        # In the order of the responses; several are under way at once.
        flows: asyncio.Queue[asyncio.Task[list[Tensors]] | None] = asyncio.Queue()
        room = asyncio.Semaphore(self._most_in_flight)
        tasks: list[asyncio.Task[Any]] = []

        async def begin() -> None:
            try:
                async with aclosing(self._responses(source, tensors, request)) as responses:
                    async for outputs in responses:
                        await room.acquire()
                        flow = self._ends(request, {**tensors, **outputs}, later)
                        tasks.append(asyncio.ensure_future(flow))
                        flows.put_nowait(tasks[-1])
            finally:
                flows.put_nowait(None)

        tasks.append(beginning := asyncio.ensure_future(begin()))
        try:
            while (task := await flows.get()) is not None:
                for end in await task:
                    yield end
                tasks.remove(task)
                room.release()
            await beginning
        finally:
            await stop(tasks)

    async def _ends(
        self, request: InferRequest, tensors: Tensors, steps: Sequence[TritonEnsemblingStep]
    ) -> list[Tensors]:
        return [end async for end in self._streamed(request, tensors, steps)]

    def _in_order(self, steps: Sequence[TritonEnsemblingStep]) -> list[TritonEnsemblingStep]:
        ordered: list[TritonEnsemblingStep] = []
        waiting = list(steps)
        while waiting:
            missing = {tensor for step in waiting for tensor in step.output_map.values()}
            ready = [step for step in waiting if missing.isdisjoint(step.input_map.values())]
            ordered += ready
            waiting = [step for step in waiting if step not in ready]
        return ordered

    def _before(
        self, last: TritonEnsemblingStep, steps: Sequence[TritonEnsemblingStep]
    ) -> list[TritonEnsemblingStep]:
        requested_outputs = set(last.input_map.values())
        needed: list[TritonEnsemblingStep] = []
        for step in reversed(self._in_order(steps)):
            if step is not last and not requested_outputs.isdisjoint(step.output_map.values()):
                needed.append(step)
                requested_outputs.update(step.input_map.values())
        return needed

    def _needed(self, request: InferRequest) -> list[TritonEnsemblingStep]:
        requested_outputs = set(request.requested_outputs or self._specs)
        end = TritonEnsemblingStep(input_map={name: name for name in requested_outputs})
        return self._before(end, self._steps)

    # One step

    def _member(self, step: TritonEnsemblingStep) -> Any:
        version = None if step.model_version < 0 else str(step.model_version)
        try:
            return self._members.registry.find(step.model_name, version)
        except WherryError as error:
            raise ModelNotReady(f"ensemble {self._config.name!r}: {error}") from error

    def _streams(self, step: TritonEnsemblingStep) -> bool:
        streams: bool = self._member(step).signature.streams
        return streams

    async def _call(
        self, step: TritonEnsemblingStep, inputs: Mapping[str, Column | None], request: InferRequest
    ) -> Tensors:
        loaded = self._member(step)
        columns, rows = self._columns(loaded, step, inputs)
        options = self._options(step, request)
        try:
            answer = await self._members.answer(loaded, columns, rows, **options)
        except WherryError as error:
            raise self._named(error) from error
        return _tensors(loaded, answer)

    async def _responses(
        self, step: TritonEnsemblingStep, tensors: Tensors, request: InferRequest
    ) -> AsyncGenerator[Tensors, None]:
        loaded = self._member(step)
        inputs = {name: tensors.get(tensor) for name, tensor in step.input_map.items()}
        columns, rows = self._columns(loaded, step, inputs)
        options = self._options(step, request)
        responses = self._members.responses(loaded, columns, rows, **options)
        async with aclosing(responses):
            try:
                async for response in responses:
                    outputs = _tensors(loaded, response)
                    yield {
                        tensor: outputs[name]
                        for name, tensor in step.output_map.items()
                        if name in outputs
                    }
            except WherryError as error:
                raise self._named(error) from error

    def _named(self, error: WherryError) -> WherryError:
        """A copy of a member's error, which others may share, prefixed with the ensemble's name."""
        named = type(error).__new__(type(error))
        named.__dict__.update(error.__dict__)
        named.args = (f"in ensemble '{self._config.name}', {error}",)
        return named

    def _options(self, step: TritonEnsemblingStep, request: InferRequest) -> dict[str, Any]:
        """The options that a member's request takes from the ensemble's. Not the deadline: the
        runner cancels the calls when it passes. The member copies outputs that no other step takes
        to the host in its own thread: waiting for a device here would delay all pipelines."""
        return {
            "id": request.id,
            "priority": min(request.priority, self._member(step).config.priority_levels),
            "parameters": request.parameters,
            "sequence": request.sequence,
            "requested_outputs": tuple(step.output_map),
            "takes_tensors": not self._passed_on.isdisjoint(step.output_map.values()),
        }

    def _columns(
        self, loaded: Any, step: TritonEnsemblingStep, inputs: Mapping[str, Column | None]
    ) -> tuple[Columns, int]:
        """A step's tensors as the member's columns, and their rows; tensors without a value are
        left out."""
        where = f"ensemble {self._config.name!r}: step {step.model_name!r}"
        columns: Columns = {}
        rows: set[int] = set()
        for spec in loaded.signature.inputs:
            value = inputs.get(spec.name)
            if value is None:
                if not spec.optional:
                    raise InvalidRequest(f"{where}: no value for its input {spec.name!r}")
                continue
            column = for_code(_column(value, spec, loaded.config.max_batch_size > 0), spec.library)
            if step.input_map[spec.name] in self._shared:
                column = _shared(column)
            for row in column if isinstance(column, list) else [column[0]] if len(column) else []:
                if hasattr(row, "ndim") and not spec.fits(row.shape):
                    raise InvalidRequest(
                        f"{where}: a row of {spec.name!r} has shape {list(row.shape)}, expected is"
                        f" {list(spec.shape)}"
                    )
            columns[spec.name] = column
            rows.add(len(column))
        if len(rows) > 1:
            raise InvalidRequest(f"{where}: its inputs differ in their batch size: {sorted(rows)}")
        return columns, max(rows, default=1)  # all inputs may be optional

    # Inputs and outputs

    def _input_tensors(self, request: InferRequest) -> Tensors:
        if self._batched:
            return dict(request.inputs)
        return {name: _only(column) for name, column in request.inputs.items()}

    def _response(self, tensors: Tensors, request: InferRequest) -> InferResponse:
        outputs: Columns = {}
        for name in request.requested_outputs or self._specs:
            if name not in tensors:
                raise BadModelOutput(f"ensemble {self._config.name!r}: no step gave {name!r}")
            column = for_code(_column(tensors[name], self._specs[name], self._batched), "")
            if isinstance(column, np.ndarray) and not column.flags.writeable:
                column = column.copy()  # the caller may write to it
            outputs[name] = column
        rows = max((len(column) for column in outputs.values()), default=request.rows)
        step = request.sequence or NO_SEQUENCE
        sequence_parameters = {
            "sequence_id": step.id,
            "sequence_start": step.start,
            "sequence_end": step.end,
        }
        return InferResponse(outputs, rows, sequence_parameters)


def _column(tensor: Column, spec: TensorSpec, batched: bool) -> Column:
    """A tensor as a column of a model with or without a batch dimension. One whose shape is that
    of a row is a batch of one, and a batch of one is a row, as in Triton."""
    if not isinstance(tensor, list):
        rank = len(spec.shape)
        if batched:
            is_row = tensor.ndim == rank and spec.fits(tensor.shape)
            return tensor[np.newaxis] if is_row else tensor
        is_row = tensor.ndim != rank + 1 or len(tensor) != 1
        return tensor[np.newaxis] if is_row else tensor
    # Strings: a row is a list of elements or a single one; without a batch dimension the column is
    # flat.
    flat = [e for row in tensor for e in (row if isinstance(row, list) else [row])]
    if not batched:
        return [flat]
    if spec.shape == ():
        return flat
    if tensor and isinstance(tensor[0], list):
        return tensor
    width = math.prod(spec.shape)
    if width <= 0:  # an open dimension: everything is one row
        return [flat]
    return [flat[start : start + width] for start in range(0, len(flat), width)]


def _shared(column: Column) -> Column:
    """The same column for several readers: a view, read-only if its type can be."""
    if isinstance(column, np.ndarray):
        return shared(column.view())
    if not isinstance(column, list):
        return view(column)
    if column and isinstance(column[0], np.ndarray):
        return shared([row.view() for row in column])
    if column and is_tensor(column[0]):
        return [view(row) for row in column]
    return column


def _tensors(loaded: Any, response: InferResponse) -> Tensors:
    if loaded.config.max_batch_size:
        return dict(response.outputs)
    return {name: _only(column) for name, column in response.outputs.items()}


def _only(column: Column) -> Column:
    """The tensor of a model without a batch dimension, whose column has one row. Also a scalar is
    an array."""
    only: Column = column[0, ...] if isinstance(column, np.ndarray) else column[0]
    return only
