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
    return parsed(_decode_object, body)


def parsed(decode: Callable[[Buffer], T], body: Buffer) -> T:
    """What `decode` makes of a body, which may have the literals NaN and Infinity. InvalidRequest
    says where it is wrong."""
    try:
        try:
            return decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            loose = with_quoted_literals(bytes(body))
            if loose is None:
                raise
            return decode(loose)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(malformed(error)) from None
