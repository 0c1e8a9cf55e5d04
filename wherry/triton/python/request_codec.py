"""How does a request become a message to a Python model's process, its response an
answer, and an error a code?
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    BF16,
    LARGE_BYTES,
    AlreadyRegistered,
    Cancelled,
    Columns,
    Failure,
    Form,
    InferRequest,
    InvalidRequest,
    ModelConfig,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Signature,
    TensorSpec,
    Unsupported,
    WherryError,
)
from wherry.triton.python.stub.pb_utils import TritonError
from wherry.triton.python.stub.wire import Incoming, Outgoing
from wherry.triton.python.tensors import get, put
from wherry.triton.repository.kind import is_decoupled
from wherry.triton.repository.triton_config import TritonConfig


class UnknownModelError(ModelFailed):
    """A model's TritonError with the code UNKNOWN."""

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
    """The error that a caller gets for a model's TritonError(message, code)."""
    return ERRORS.get(code, ModelFailed)(message)


def code_of(error: Exception) -> int:
    """The Triton error code that a model gets for this error of its call."""
    return _CODES.get(getattr(error, "grpc_code", ""), TritonError.INTERNAL)


_SEQUENCE_START, _SEQUENCE_END = 1, 2

log = logging.getLogger("wherry")


#: The outputs of a response, and its parameters.
ModelAnswer = tuple[Columns, Mapping[str, Any] | None]
#: The same before it is known whom it answers, and what is wrong with other outputs.
Decoded = tuple[Columns, Mapping[str, Any] | None, Mapping[str, Exception]]


@dataclass(frozen=True, slots=True)
class ErrorResponse(Failure):
    """An error that the model returned for one request, with its code."""

    @property
    def is_the_models(self) -> bool:
        return False

    def as_exception(self) -> WherryError:
        assert isinstance(self.exception, WherryError)
        return self.exception


class RequestCodec:
    """Encodes one model's requests and decodes its responses."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self._model = model
        self.model_name = config.name
        self._batched = config.max_batch_size > 0
        triton: TritonConfig = model.triton
        signature: Signature = model.signature(config.name)
        #: Of each output what it is declared as, and the datatype of one that is taken as it is.
        self._outputs = {
            spec.name: (spec, spec.datatype.name if _is_as_it_is(spec) else "")
            for spec in signature.outputs
        }
        dims = {one.name: one.reshape.shape for one in triton.input if one.reshape is not None}
        #: Of each input the shape of a row as the model knows it, and whether it goes as it is.
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
        #: What a request asks for that names no outputs.
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
        if request.trace is not None:
            headers = request.trace.context_of(request).headers()
            context = msgspec.json.encode(headers).decode()
        details = [request.id, correlation_id, flags, timeout, parameters, names, context]
        return [number, tensors, *details]

    def decoded(self, body: Sequence[Any], incoming: Incoming) -> Decoded | Failure:
        """A response of the model, whoever it is for. In any thread."""
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
