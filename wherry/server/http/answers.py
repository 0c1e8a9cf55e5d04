"""What does every answer have: the request's id, compression, an error's status and JSON?"""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

from wherry.core.api import WherryError, log_internal_error
from wherry.server.calls.compression import (
    MAX_BYTES_IN_LOOP,
    MIN_BYTES,
    UnknownCoding,
    best_coding,
    compressed,
)
from wherry.server.calls.json_text import encode_json
from wherry.server.calls.terms import client_request_id
from wherry.server.http.exchange import JSON, Body, Exchange, Headers, error_body

_PREFIX = os.urandom(6).hex()
_numbers = itertools.count(1)


def new_request_id() -> str:
    """Return a unique id: a random part for the process, then a count."""
    return f"{_PREFIX}-{next(_numbers):x}"


def request_id_of(exchange: Exchange) -> str:
    """The client's X-Request-Id, or an id that is made once for each request."""
    request = exchange.request
    if request_headers := client_request_id(request.headers):
        return request_headers
    request.own_id = request.own_id or new_request_id()
    return request.own_id


def respond(
    exchange: Exchange,
    body: Body,
    *,
    status: int = 200,
    content_type: str = JSON,
    headers: Headers = (),
    compress: bool = True,
) -> None:
    """Answer in one piece: with the client's request id, compressed if the client wants that."""
    request_headers = exchange.request.headers
    if "x-request-id" in request_headers and (request_id := client_request_id(request_headers)):
        headers = (*headers, ("X-Request-Id", request_id))
    if compress and "accept-encoding" in request_headers and status < 300:
        body, extra = packed(body, request_headers["accept-encoding"], MAX_BYTES_IN_LOOP)
        headers = (*headers, *extra)
    exchange.respond(status, body, content_type=content_type, headers=headers)


def respond_json(exchange: Exchange, value: Any) -> None:
    """Answer with a value as JSON, uncompressed."""
    # As Triton: its asyncio client asks for gzip everywhere, and unpacks the answers of infer only.
    respond(exchange, encode_json(value), compress=False)


def fail(exchange: Exchange, error: Exception) -> None:
    """Answer with an error: its own status and text, or a neutral 500 for a bug of ours."""
    status, message, headers = describe(exchange, error)
    exchange.respond(status, error_body(message), headers=headers)


def describe(exchange: Exchange, error: Exception) -> tuple[int, str, Headers]:
    """Status, message and headers of an error; a bug of ours is logged and not shown."""
    request_id = request_id_of(exchange)
    headers = [("X-Request-Id", request_id)]
    if not isinstance(error, WherryError):
        logged = log_internal_error(error, request_id=request_id, path=exchange.request.path)
        where = f"it under request id {request_id}" if logged else "one like it"
        return 500, f"internal error; the server's log has {where}", headers
    if error.retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(error.retry_after))))
    if isinstance(error, UnknownCoding):
        headers.append(("Accept-Encoding", "gzip, deflate"))
    status, text = exchange.outcome_of(error)
    return status, _encodable(text), headers


def _encodable(text: str) -> str:
    """Replace lone surrogates, which an error text may quote and UTF-8 cannot carry."""
    return text.encode(errors="replace").decode()


def packed(
    body: Body, accept_encoding: str, most: int, *, least: int = MIN_BYTES
) -> tuple[Body, Headers]:
    """Compress a body if the client accepts it; return it with the headers that say so.

    Below `least` bytes, and above `most`, it stays as it is.
    """
    size = len(body) if isinstance(body, bytes) else sum(len(part) for part in body)
    if not least <= size <= most:
        return body, ()
    coding = best_coding(accept_encoding)
    if coding is None:
        return body, (("Vary", "Accept-Encoding"),)
    whole = body if isinstance(body, bytes) else b"".join(body)
    extra = (("Content-Encoding", coding), ("Vary", "Accept-Encoding"))
    return compressed(whole, coding), extra
