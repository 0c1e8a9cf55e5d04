"""How is a JSON body read, and what is the client told of one that is none?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from wherry.frontends.v2.json_elements import with_quoted_literals
from wherry.frontends.v2.json_errors import malformed
from wherry.values.buffer import Buffer
from wherry.values.errors import InvalidRequest

T = TypeVar("T")

_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


def parse_object(body: Buffer) -> dict[str, Any]:
    """The members of a JSON object. InvalidRequest if the body is none."""
    try:
        return _decode_object(body)
    except (ValueError, RecursionError) as error:
        return decoded_again(_decode_object, body, error)


def decoded_again(decode: Callable[[Buffer], T], body: Buffer, error: Exception) -> T:
    """What `decode` makes of a body that it has refused with `error`, where this was for the
    literals NaN and Infinity. InvalidRequest says what else is wrong."""
    loose = None
    if not isinstance(error, msgspec.ValidationError):
        loose = with_quoted_literals(bytes(body))
    if loose is not None:
        try:
            return decode(loose)
        except (ValueError, RecursionError) as other:
            error = other
    raise InvalidRequest(malformed(error)) from None
