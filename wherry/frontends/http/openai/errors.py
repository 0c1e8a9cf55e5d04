"""How does an error look to OpenAI's clients?"""

from __future__ import annotations

import msgspec

from wherry.errors import InvalidRequest, WherryError
from wherry.frontends.http.answers import describe
from wherry.frontends.http.exchange import Exchange


class BadField(InvalidRequest):
    """A field of the request is wrong; None: it is the body as a whole."""

    def __init__(self, field: str | None, problem: str) -> None:
        super().__init__(problem if field is None else f"{field}: {problem}")
        self.field = field


class UnknownModel(InvalidRequest):
    """There is no such model, or it is none for this."""

    http_status = 404
    grpc_code = "NOT_FOUND"


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


def error_object(error: Exception | None, status: int, message: str) -> bytes:
    code: str | None = None
    if isinstance(error, UnknownModel):
        code = "model_not_found"
    elif isinstance(error, WherryError) and status == 429:
        code = "rate_limit_exceeded"
    return msgspec.json.encode(
        {
            "error": {
                "message": message,
                "type": TYPES.get(status, "server_error"),
                "param": error.field if isinstance(error, BadField) else None,
                "code": code,
            }
        }
    )


def described(exchange: Exchange, error: Exception) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Status, body and headers of an error; a bug of ours is logged and not shown."""
    status, body, headers = describe(exchange, error)
    message = msgspec.json.decode(body)["error"]
    return status, error_object(error, status, message), list(headers)


def fail(exchange: Exchange, error: Exception) -> None:
    status, body, headers = described(exchange, error)
    exchange.respond(status, body, headers=headers)
