"""Which of our errors is a Triton error code, and the other way round?"""

from __future__ import annotations

from typing import Final

from wherry.backends.triton_python.stub.pb_utils import TritonError
from wherry.values.errors import (
    AlreadyRegistered,
    Cancelled,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Unsupported,
    WherryError,
)


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
    """What a caller gets when a model says TritonError(message, code)."""
    return ERRORS.get(code, ModelFailed)(message)


def code_of(error: Exception) -> int:
    """What a model gets when a call of it ended with this error."""
    return _CODES.get(getattr(error, "grpc_code", ""), TritonError.INTERNAL)
