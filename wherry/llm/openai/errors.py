"""Which JSON does an error have in answers to OpenAI's clients?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from wherry.core.api import AdapterNotFound, InvalidRequest, PromptTooLong, WherryError
from wherry.server.api import Exchange, describe

#: Paths that Jina, Cohere and vLLM serve outside of /v1.
BESIDE_V1: Final = frozenset(
    (
        "/tokenize", "/detokenize", "/score", "/rerank", "/v2/rerank",
    )
)  # fmt: skip


def speaks_openai(path: str) -> bool:
    """Whether a refusal on this path has OpenAI's form."""
    return path.startswith("/v1/") or path in BESIDE_V1


class OpenAIErrorFields(msgspec.Struct, kw_only=True):
    """What went wrong: `param` is the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct):
    """An error, as OpenAI's clients expect it."""

    error: OpenAIErrorFields


class BadField(InvalidRequest):
    """A field of the request is wrong; None: the body as a whole."""

    def __init__(self, field: str | None, problem: str) -> None:
        super().__init__(problem if field is None else f"{field}: {problem}", field=field)


class UnknownModel(InvalidRequest):
    """No model has this name, or the model cannot serve this request."""

    http_status = 404
    grpc_code = "NOT_FOUND"

    def __init__(self, problem: str) -> None:
        super().__init__(problem, field="model")


class UnknownRoute(InvalidRequest):
    """The path may be one of OpenAI's, but is not served here."""

    http_status = 404
    grpc_code = "UNIMPLEMENTED"


class NotKept(InvalidRequest):
    """No response with this id is kept for the client, or it is not kept any more."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class PreviousNotKept(InvalidRequest):
    """The conversation that a request continues is not kept, or not complete any more."""

    def __init__(self, id: str) -> None:
        problem = f"Previous response with id '{id[:80]}' not found: send its items as input"
        super().__init__(problem, field="previous_response_id")


#: The type that goes with a status, as OpenAI names them.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
}


#: The codes by which clients distinguish errors.
CODES = {
    UnknownModel: "model_not_found",
    AdapterNotFound: "model_not_found",
    UnknownRoute: "unknown_url",
    PreviousNotKept: "previous_response_not_found",
    PromptTooLong: "context_length_exceeded",
}


#: Makes a protocol's JSON of an error: the error, its status, message, the field at fault, and the
#: request's id.
ErrorForm = Callable[[Exception | None, int, str, str | None, str], bytes]


def error_object(
    error: Exception | None, status: int, message: str, param: str | None = None, _id: str = ""
) -> bytes:
    """OpenAI's form, which does not hold the request's id."""
    code = next((code for cls, code in CODES.items() if isinstance(error, cls)), None)
    if isinstance(error, WherryError) and status == 429:
        code = "rate_limit_exceeded"
    kind = TYPES.get(status, TYPES[400] if status < 500 else "server_error")
    fields = OpenAIErrorFields(message=message, type=kind, param=param, code=code)
    return msgspec.json.encode(OpenAIError(fields))


def described(
    exchange: Exchange,
    error: Exception,
    named: Callable[[str], str] = str,
    form: ErrorForm = error_object,
) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an error; a bug of ours is logged and not shown.

    `named` maps the model's name of a field to the request's.
    """
    status, message, headers = describe(exchange, error)
    param = error.field if isinstance(error, InvalidRequest) else None
    if param is not None and not isinstance(error, BadField):
        name = named(param)
        for rule in (" must ", ": "):  # the engine's words begin with the model's name
            message = message.replace(f": {param}{rule}", f": {name}{rule}", 1)
        param = name
    request_id = dict(headers)["X-Request-Id"]
    return status, form(error, status, message, param, request_id), list(headers)


def fail(
    exchange: Exchange,
    error: Exception,
    form: ErrorForm = error_object,
) -> None:
    status, body, headers = described(exchange, error, form=form)
    exchange.respond(status, body, headers=headers)
