"""Is what came back an answer of a V2 server, and all of it?"""

from __future__ import annotations

import http.client
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from wherry.core.values.errors import WherryError

READ_BYTES: Final = 2**16


@contextmanager
def no_answer(url: str) -> Iterator[None]:
    """Raise WherryError for what decoding an answer raises: another program may have sent it."""
    try:
        yield
    except WherryError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        msgspec.MsgspecError,
        struct.error,
    ) as error:
        raise WherryError(
            f"{url}: this is no answer of a V2 server: {type(error).__name__}: {error}"
        ) from error


def check_status(response: http.client.HTTPResponse, url: str) -> None:
    """WherryError for a status that no V2 server answers with: a redirect, or no content."""
    if response.status not in (200, 201, 202):
        where = response.headers.get("Location")
        to = f" to {where[:200]!r}" if where else ""
        raise WherryError(
            f"{url}: this is no answer of a V2 server: {response.status} {response.reason[:80]}{to}"
        )


def events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the data of each server-sent event.

    ValueError if it is no stream of events, IncompleteRead if it is cut off. Blocks.
    """
    kind = response.headers.get_content_type()
    if kind != "text/event-stream":
        raise ValueError(f"{kind} instead of text/event-stream")
    rest = bytearray()  # a line that has not come in full
    # Not by readline(): it takes a connection that ended between two chunks for the stream's end.
    while data := response.read1(READ_BYTES):
        searched = len(rest)
        rest += data
        end = rest.rfind(b"\n", searched) + 1
        for line in bytes(rest[:end]).splitlines():
            if line.startswith(b"data:"):
                yield msgspec.json.decode(line[5:])
        del rest[:end]
    if rest or response.length:
        raise http.client.IncompleteRead(bytes(rest), response.length or None)
