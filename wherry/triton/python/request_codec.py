"""How does a request become a message to a Python model's process, its response an
answer, and an error a code?

A model sees whole tensors, with the batch dimension if it has one; the core keeps columns, whose
form depends on the model. An invalid tensor is a ValueError; what that means depends on the sender.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    BF16,
    BYTES,
    DATATYPES,
    LARGE_BYTES,
    AlreadyRegistered,
    Array,
    Cancelled,
    Column,
    Columns,
    Failure,
    Form,
    InferRequest,
    InvalidRequest,
    ModelConfig,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    ShapedRow,
    ShapedRows,
    Signature,
    TensorSpec,
    Unsupported,
    WherryError,
    as_array,
    bf16_to_float32,
    float32_to_bf16,
)
from wherry.triton.python.stub.pb_utils import TritonError
from wherry.triton.python.stub.wire import (
    Incoming,
    Outgoing,
    pack_elements,
    unpack_elements,
)
from wherry.triton.repository.normalise import is_decoupled
from wherry.triton.repository.triton_config import TritonConfig


def put(
    out: Outgoing, spec: TensorSpec, column: Column, dims: Sequence[int], *, batched: bool
) -> list[Any]:
    """Add a column to a message as a tensor. Returns its descriptor in the head. `dims` is a row's
    shape as the receiver knows it."""
    name = spec.name
    if spec.datatype is BYTES:
        return _put_elements(out, spec, column, dims, batched=batched)
    array = np.stack(column) if isinstance(column, list) else column
    if not batched:
        array = array[0]
    data = float32_to_bf16(array) if spec.datatype is BF16 else array
    return out.put(name, spec.datatype.name, list(array.shape), data)


def get(
    descriptor: Sequence[Any], incoming: Incoming, spec: TensorSpec, *, batched: bool
) -> tuple[Column, int]:
    """The column of a received tensor, and its number of rows. An array is a view of the received
    memory, which is not reused while the view exists.

    The rows may have another shape than `spec`. ValueError if the tensor is invalid.
    """
    _, datatype, shape, where, offset, size = descriptor
    if batched and not shape:
        raise ValueError("it has no batch dimension")
    rows = shape[0] if batched else 1
    declared = spec.datatype
    if datatype == declared.name and spec.form is Form.ARRAY and declared is not BF16:
        whole = shape if batched else (1, *shape)
        return incoming.array(where, offset, size, declared.dtype, whole), rows
    memory = incoming.get(where, offset, size)
    if 0 in shape:  # numpy cannot infer the type of an empty list
        datatype = spec.datatype.name
    if (datatype == "BYTES") != (spec.datatype is BYTES):
        raise ValueError(f"it is {datatype}, declared is {spec.datatype}")
    if spec.datatype is BYTES:
        return _elements(memory, shape, rows, spec, batched=batched), rows
    array = _array(memory, datatype, shape)
    if array.dtype != spec.datatype.dtype:
        try:
            array = as_array(array, spec)
        except (TypeError, ValueError, OverflowError) as error:
            exact = _without_loss(array, spec.datatype.dtype)
            if exact is None:
                raise ValueError(
                    f"it is {datatype}, declared is {spec.datatype}: {error}"
                ) from None
            array = exact
    if not batched:
        array = array[np.newaxis]
    if spec.form is Form.ARRAYS:
        return list(array), rows
    return array, rows


def fits(column: Column, spec: TensorSpec) -> bool:
    if isinstance(column, np.ndarray):
        return spec.fits(column.shape[1:])
    if spec.datatype is BYTES:
        known = max(1, math.prod(d for d in spec.shape if d != -1))
        sizes = {len(row) for row in column} if spec.shape else set()
        return all(size % known == 0 if -1 in spec.shape else size == known for size in sizes)
    return all(spec.fits(row.shape) for row in column)


def _without_loss(array: Array, dtype: Any) -> Array | None:
    """The array as another type; None if that changes a value."""
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
        return found if np.array_equal(found.astype(array.dtype), array) else None


def _array(memory: Array, datatype: str, shape: Sequence[int]) -> Array:
    known = DATATYPES.get(datatype)
    if known is None or known.itemsize * math.prod(shape) != memory.nbytes:
        raise ValueError(f"{memory.nbytes} bytes are not {datatype}{list(shape)}")
    if known is BF16:
        return bf16_to_float32(memory.view(np.uint16)).reshape(shape)
    return memory.view(known.dtype).reshape(shape)


def _put_elements(
    out: Outgoing, spec: TensorSpec, column: Column, dims: Sequence[int], *, batched: bool
) -> list[Any]:
    if spec.shape == ():
        elements, shape = column, [len(column)]
    else:
        elements = [element for row in column for element in row]
        sizes = _row_shape(column[0], dims)
        shape = [len(column), *sizes] if batched else sizes
    if spec.form is Form.TEXT:
        elements = [element.encode() for element in elements]
    elif spec.form is Form.JSON:
        elements = [msgspec.json.encode(element) for element in elements]
    return out.put(spec.name, "BYTES", shape, pack_elements(elements))


def _elements(
    memory: Array, shape: Sequence[int], rows: int, spec: TensorSpec, *, batched: bool
) -> list[Any]:
    elements: list[Any] = unpack_elements(memory)
    if len(elements) != math.prod(shape):
        raise ValueError(f"{len(elements)} elements are not BYTES{list(shape)}")
    if spec.form is Form.TEXT:
        elements = [element.decode() for element in elements]
    elif spec.form is Form.JSON:
        elements = [msgspec.json.decode(element) for element in elements]
    if spec.shape == ():
        return elements
    width = len(elements) // rows if rows else 0
    column = [elements[row * width : (row + 1) * width] for row in range(rows)]
    row_shape = shape[1:] if batched else shape
    if len(row_shape) > 1:
        return [ShapedRow(row, row_shape) for row in column]
    usual = [rows, width] if batched else [width]
    return column if list(shape) == usual else ShapedRows(column, shape)


def _row_shape(row: Sequence[Any], dims: Sequence[int]) -> list[int]:
    """A row's shape. If the row does not state it, the innermost open dimension takes the rest."""
    if isinstance(row, ShapedRow):
        return list(row.shape)
    size = len(row)
    shape = [1 if d == -1 else d for d in dims]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if unknown:
        shape[unknown[-1]] = size // max(1, math.prod(shape))
    return shape


class UnknownModelError(ModelFailed):
    http_status = 400
    grpc_code = "UNKNOWN"


ERRORS: Final[dict[int, type[WherryError]]] = {
    TritonError.UNKNOWN: UnknownModelError,
    TritonError.INTERNAL: ModelFailed,
    TritonError.NOT_FOUND: ModelNotFound,
    TritonError.INVALID_ARG: InvalidRequest,
    TritonError.UNAVAILABLE: ModelNotReady,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: AlreadyRegistered,
    TritonError.CANCELLED: Cancelled,
}

_CODES: Final = {
    "UNKNOWN": TritonError.UNKNOWN,
    "NOT_FOUND": TritonError.NOT_FOUND,
    "INVALID_ARGUMENT": TritonError.INVALID_ARG,
    "UNAVAILABLE": TritonError.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": TritonError.UNAVAILABLE,
    "DEADLINE_EXCEEDED": TritonError.UNAVAILABLE,
    "UNIMPLEMENTED": TritonError.UNSUPPORTED,
    "ALREADY_EXISTS": TritonError.ALREADY_EXISTS,
    "CANCELLED": TritonError.CANCELLED,
}


def error_of(code: int, message: str) -> WherryError:
    return ERRORS.get(code, ModelFailed)(message)


def code_of(error: Exception) -> int:
    """The Triton error code that a model gets for this error of its call."""
    return _CODES.get(getattr(error, "grpc_code", ""), TritonError.INTERNAL)


_SEQUENCE_START, _SEQUENCE_END = 1, 2

log = logging.getLogger("wherry")


#: The outputs of a response, and its parameters.
ModelAnswer = tuple[Columns, Mapping[str, Any] | None]
#: The same before its request is known, and the errors of other outputs by name.
Decoded = tuple[Columns, Mapping[str, Any] | None, Mapping[str, Exception]]


class ErrorResponse(Failure, frozen=True):
    @property
    def is_the_models(self) -> bool:
        return False

    def as_exception(self) -> WherryError:
        assert isinstance(self.exception, WherryError)
        return self.exception


class RequestCodec:
    def __init__(self, model: Any, config: ModelConfig) -> None:
        self._model = model
        self.model_name = config.name
        self._batched = config.max_batch_size > 0
        triton: TritonConfig = model.triton
        signature: Signature = model.signature(config.name)
        #: Each output's specification, and the datatype of one that needs no conversion, else "".
        self._outputs = {
            spec.name: (spec, spec.datatype.name if _is_as_it_is(spec) else "")
            for spec in signature.outputs
        }
        dims = {one.name: one.reshape.shape for one in triton.input if one.reshape is not None}
        #: Of each input the shape of a row as the model knows it, and whether it is sent as it is.
        self._inputs = [
            (
                spec.name,
                spec,
                dims.get(spec.name, spec.shape),
                _is_as_it_is(spec),
            )
            for spec in signature.inputs
        ]
        #: No batch takes long to encode.
        self.sends_little = _bytes_of_row(signature.inputs) * max(1, config.max_batch_size) <= (
            LARGE_BYTES
        )
        self._reshapes = bool(dims) or any(one.reshape is not None for one in triton.output)
        #: Outputs that carry the state of a sequence, requested or not.
        states = () if config.sequence is None else config.sequence.states
        self._states = {state.output for state in states}
        #: Outputs missing in the configuration; each is logged once.
        self._undeclared: set[str] = set()
        #: The outputs of a request that names none.
        self.output_names = [name for name in self._outputs if name not in self._states]
        self.decoupled = is_decoupled(triton)

    def tensors(self, out: Outgoing, request: InferRequest) -> list[Any]:
        """Add a request's inputs to a message. TypeError, ValueError or AttributeError for an input
        that does not match the configuration."""
        columns = request.inputs
        if self._reshapes:
            columns = self._reshaped(columns, self._model.inward)
        tensors = []
        for name, spec, dims, as_it_is in self._inputs:
            if name not in columns:
                continue
            column: Any = columns[name]
            if as_it_is and type(column) is np.ndarray:
                array = column if self._batched else column[0]
                tensors.append(out.put(name, spec.datatype.name, array.shape, array))
            else:
                tensors.append(put(out, spec, column, dims, batched=self._batched))
        return tensors

    def described(self, number: int, request: InferRequest, tensors: list[Any]) -> list[Any]:
        """A request in the form of an execute message: its details only if it has any."""
        step, requested_outputs, timeout_seconds = (
            request.sequence,
            request.requested_outputs,
            request.timeout,
        )
        plain = not (request.id or request.parameters or step or timeout_seconds or request.trace)
        if plain and requested_outputs is None:
            return [number, tensors]
        correlation_id: int | str = 0
        flags = 0
        if step is not None:
            correlation_id = step.id
            flags = _SEQUENCE_START * step.start | _SEQUENCE_END * step.end
        timeout = 0
        if timeout_seconds is not None:
            timeout = max(1, round(timeout_seconds * 1e6))
        parameters = "{}"
        if request.parameters:
            parameters = msgspec.json.encode(request.parameters).decode()
        names = None if requested_outputs is None else list(requested_outputs)
        context = ""
        if request.trace is not None and request.trace.is_followed:
            headers = request.trace.context_of(request).headers()
            context = msgspec.json.encode(headers).decode()
        details = [request.id, correlation_id, flags, timeout, parameters, names, context]
        return [number, tensors, *details]

    def decoded(self, body: Sequence[Any], incoming: Incoming) -> Decoded | Failure:
        """A response of the model, before its request is known. In any thread."""
        error, parameters, outputs = body
        if error is not None:
            code, text = error
            return ErrorResponse("", text, exception=error_of(code, text))
        columns: Columns = {}
        wrong: dict[str, Exception] = {}
        for descriptor in outputs:
            name, datatype, shape, where, offset, size = descriptor
            declared = self._outputs.get(name)
            if declared is None:  # as in Triton: clients cannot request it
                self._log_undeclared(name)
                continue
            spec, usual = declared
            try:
                if datatype == usual and shape:
                    whole = shape if self._batched else (1, *shape)
                    dtype = spec.datatype.dtype
                    columns[name] = incoming.array(where, offset, size, dtype, whole)
                else:
                    columns[name], _ = get(descriptor, incoming, spec, batched=self._batched)
            except ValueError as problem:
                wrong[name] = problem
        answer_parameters = None if parameters == "{}" else json.loads(parameters)
        return columns, answer_parameters or None, wrong

    def answer(self, request: InferRequest, decoded: Decoded | Failure) -> ModelAnswer | Failure:
        """The answer to a request, for a response of the model, checked."""
        if isinstance(decoded, Failure):
            return decoded
        columns, answer_parameters, wrong = decoded
        requested_outputs = request.requested_outputs
        if requested_outputs is not None:
            expected = self._states.union(requested_outputs)
            columns = {name: column for name, column in columns.items() if name in expected}
            wrong = {name: error for name, error in wrong.items() if name in expected}
        for name in wrong:
            return self._bad(f"gave a wrong output {name!r}: {wrong[name]}")
        for name in self._states:  # as in Triton, other outputs may have any shape
            if name in columns and len(columns[name]) != request.rows:
                return self._bad(
                    f"gave a state {name!r} of {len(columns[name])} rows for a request of"
                    f" {request.rows} rows"
                )
        if self._reshapes:
            try:
                columns = self._reshaped(columns, self._model.outward)
            except (ValueError, StopIteration) as error:
                return self._bad(f"gave an output that cannot be reshaped: {error}")
        return columns, answer_parameters

    def _reshaped(self, columns: Columns, reshape: Callable[[Columns], Columns]) -> Columns:
        if self._batched:
            return reshape(columns)
        rows = reshape({name: column[0] for name, column in columns.items()})
        return {
            name: row[np.newaxis] if isinstance(row, np.ndarray) else [row]
            for name, row in rows.items()
        }

    def _log_undeclared(self, name: str) -> None:
        if name not in self._undeclared:
            self._undeclared.add(name)
            log.warning(
                "output dropped: the configuration does not declare it",
                extra={"model": self.model_name, "output": name},
            )

    def _bad(self, what: str) -> Failure:
        return Failure("BadModelOutput", f"model {self.model_name!r} {what}")


def _is_as_it_is(spec: TensorSpec) -> bool:
    """Is its column the very array that the model sees?"""
    return spec.form is Form.ARRAY and spec.datatype is not BF16


def _bytes_of_row(inputs: Sequence[TensorSpec]) -> float:
    """How many bytes a row has at most; inf: any number."""
    if not all(spec.form is Form.ARRAY and -1 not in spec.shape for spec in inputs):
        return math.inf
    return sum([spec.datatype.itemsize * math.prod(spec.shape) for spec in inputs])
