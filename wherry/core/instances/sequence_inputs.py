"""What does a model see of a request's place in its sequence?

Besides the caller's inputs: the controls of its configuration (does the sequence start or end here,
has this row anything to run, what is the sequence's id) and the state tensors that it returned with
the step before. All of them are ordinary inputs, filled in just before a batch runs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wherry.core.models.config import SequenceBatching, SequenceControl, SequenceState
from wherry.core.models.signature import Signature
from wherry.core.scheduler.open_sequences import NOT_READY, OpenSequence
from wherry.core.values.datatypes import BYTES, DATATYPES, Datatype, Form, TensorSpec
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.request import (
    Array,
    Column,
    Columns,
    InferRequest,
    SequenceStep,
    concatenate,
    shared,
)

#: The step of a warm-up, which has no caller: a sequence of one step.
WARM_UP = SequenceStep(1, start=True, end=True)


def callers_signature(signature: Signature, sequence: SequenceBatching | None) -> Signature:
    """The signature without what the server fills in and keeps."""
    if sequence is None:
        return signature
    hidden_inputs, hidden_outputs = sequence.hidden_inputs, sequence.hidden_outputs
    return replace(
        signature,
        inputs=tuple(spec for spec in signature.inputs if spec.name not in hidden_inputs),
        outputs=tuple(spec for spec in signature.outputs if spec.name not in hidden_outputs),
    )


class SequenceInputs:
    """The inputs that one model gets besides its callers'. Any thread; a request in one at a time.

    `signature` is the model's own, in which the controls may stand as ordinary inputs: the
    annotation decides what is filled in.
    """

    def __init__(self, model: str, sequence: SequenceBatching, signature: Signature) -> None:
        self._model = model
        self._states = sequence.states
        self._returned = {state.output for state in sequence.states if state.returned}
        self._flags = [
            (one.kind, one.name, _flag(one, False, signature), _flag(one, True, signature))
            for one in sequence.controls
            if one.kind != "id"
        ]
        self._ids = [
            (one.name, *_kind(one, signature)) for one in sequence.controls if one.kind == "id"
        ]
        self._initial = {state.input: _initial(model, state, signature) for state in self._states}
        self._initial_shapes = _shapes(self._initial)

    def fill(self, requests: Sequence[InferRequest]) -> None:
        """Add the controls and states to the inputs of a batch about to run."""
        real = [request for request in requests if request.sequence is not NOT_READY]
        for request in real:
            step, run = request.sequence, request.run
            assert step is not None
            kept = run.state if isinstance(run, OpenSequence) and not step.start else {}
            request.inputs = {**request.inputs, **self.columns(step), **self._initial, **kept}
        if len(real) < len(requests):
            # Any row will do for a slot that has none, as long as it has the shape of the others.
            row = {**real[0].inputs, **self.columns(NOT_READY)}
            for request in requests:
                if request.sequence is NOT_READY:
                    request.inputs = row

    def columns(self, step: SequenceStep) -> Columns:
        """The controls of one row, which all of its kind may share."""
        flags = {"start": step.start, "end": step.end, "ready": step is not NOT_READY}
        columns = {name: yes if flags[kind] else no for kind, name, no, yes in self._flags}
        for name, datatype, form, shape in self._ids:
            columns[name] = _column(self._id(step.id, datatype, name), datatype, form, shape)
        return columns

    def for_warm_up(self, columns: Columns, rows: int) -> Columns:
        """`columns` and, but for what they have already, what makes each of their rows a sequence
        of one step."""
        row = {**self.columns(WARM_UP), **self._initial}
        return {**concatenate([row] * rows), **columns}

    def refuse(self, step: SequenceStep) -> None:
        """InvalidRequest if this id does not fit the datatype of the model's input."""
        for name, datatype, _, _ in self._ids:
            self._id(step.id, datatype, name)

    def keep(self, request: InferRequest, outputs: Columns) -> Columns:
        """Remember a row's states for the next step of its sequence; the outputs without them."""
        run = request.run
        if not self._states or not isinstance(run, OpenSequence):
            return outputs
        state: Columns = {}
        for one in self._states:
            column = outputs.get(one.output)
            if column is not None:
                # A copy: the rows of others, or a worker's memory, must not live on with it.
                state[one.input] = shared(copy.deepcopy(column))
        run.state = {**run.state, **state}
        shapes = _shapes(run.state)
        run.state_shapes = None if shapes == self._initial_shapes else shapes
        hidden = {one.output for one in self._states} - self._returned
        return {name: column for name, column in outputs.items() if name not in hidden}

    def _id(self, id: int | str, datatype: Datatype, name: str) -> object:
        if datatype is BYTES:
            return str(id)
        if isinstance(id, str):
            raise InvalidRequest(
                f"model {self._model!r}: sequence id {id!r} is text, but the model takes it as"
                f" {datatype} ({name!r}); use a number"
            )
        limits = np.iinfo(datatype.dtype.name)
        if not limits.min <= id <= limits.max:
            raise InvalidRequest(
                f"model {self._model!r}: sequence id {id} does not fit into {datatype} ({name!r})"
            )
        return id


def _shapes(state: Columns) -> tuple[tuple[int, ...], ...]:
    return tuple([column.shape for column in state.values() if not isinstance(column, list)])


def _kind(control: SequenceControl, signature: Signature) -> tuple[Datatype, Form, tuple[int, ...]]:
    """Datatype, form and row shape of an input that the server fills."""
    spec = signature.input(control.name)
    if spec is not None and not control.datatype:
        return spec.datatype, spec.form, _closed(spec)
    datatype = DATATYPES.get(control.datatype or ("UINT64" if control.kind == "id" else "FP32"))
    if datatype is None:
        raise ConfigError(f"control {control.name!r}: unknown datatype {control.datatype!r}")
    return datatype, Form.BYTES if datatype is BYTES else Form.ARRAY, (1,)


def _closed(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(1 if size == -1 else size for size in spec.shape)


def _flag(control: SequenceControl, on: bool, signature: Signature) -> Column:
    datatype, form, shape = _kind(control, signature)
    if datatype is BYTES:
        raise ConfigError(f"control {control.name!r} ({control.kind}) cannot be text")
    return _column(control.true if on else control.false, datatype, form, shape)


def _column(value: object, datatype: Datatype, form: Form, shape: tuple[int, ...]) -> Column:
    """One row that holds `value`."""
    if datatype is not BYTES:
        row = np.full(shape, value, datatype.dtype)
        return shared([row] if form is Form.ARRAYS else row[np.newaxis])
    text = str(value)
    element = text if form is Form.TEXT else text.encode()
    return [[element] * int(np.prod(shape)) if shape else element]


def _initial(model: str, state: SequenceState, signature: Signature) -> Column:
    datatype = DATATYPES.get(state.datatype)
    where = f"model {model!r}: state {state.input!r}"
    if datatype is None:
        raise ConfigError(f"{where}: unknown datatype {state.datatype!r}")
    spec = signature.input(state.input)
    shape = state.shape
    if spec is not None:
        datatype, shape = spec.datatype, shape or _closed(spec)
    if any(size < 0 for size in shape):
        raise ConfigError(f"{where}: its size at the START must be known, not {list(shape)}")
    count = int(np.prod(shape))
    if datatype is BYTES:
        if state.initial is not None:
            raise ConfigError(f"{where}: the initial state of strings is empty strings")
        return [[b""] * count]
    if state.initial is None:
        row: Array = np.zeros(shape, datatype.dtype)
    else:
        if len(state.initial) != count * datatype.dtype.itemsize:
            raise ConfigError(
                f"{where}: its initial data has {len(state.initial)} bytes, its shape needs"
                f" {count * datatype.dtype.itemsize}"
            )
        row = np.frombuffer(state.initial, datatype.dtype).reshape(shape)
    is_rows = spec is not None and spec.form is Form.ARRAYS
    return shared([row] if is_rows else row[np.newaxis])
