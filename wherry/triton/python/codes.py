"""Which wherry error corresponds to which Triton error code?"""

from __future__ import annotations

from typing import Final

from wherry.core.api import (
    AlreadyRegistered,
    Cancelled,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Unsupported,
    WherryError,
)
from wherry.triton.python.stub.pb_utils import TritonError


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
