"""Which JSON does an error have in answers to Anthropic's clients?"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from wherry.core.api import PromptTooLong


class AnthropicErrorFields(msgspec.Struct):
    """What went wrong, and the field that is to blame."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    """An error, as Anthropic's clients expect it."""

    type: Literal["error"]
    error: AnthropicErrorFields
    request_id: str | None


#: The type that goes with a status, as Anthropic names them.
TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(
    error: Exception | None, status: int, message: str, _field: str | None = None, id: str = ""
) -> bytes:
    """Anthropic's form, which names the field in the message alone."""
    other = "invalid_request_error" if status < 500 or status == 501 else "api_error"
    if isinstance(error, PromptTooLong):
        message = f"prompt is too long: {message}"  # by which clients know to shorten it
    fields = AnthropicErrorFields(TYPES.get(status, other), message)
    return msgspec.json.encode(AnthropicError(type="error", error=fields, request_id=id or None))
