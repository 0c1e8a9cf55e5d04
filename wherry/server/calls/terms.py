"""What do the headers of a request set: its timeout, its tenant, parameters for its model?"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wherry.core.api import InvalidRequest, Tag


class SentName(str):
    """The name of a header in lower case, which knows how it was sent."""

    __slots__ = ("sent",)

    #: With its capitals.
    sent: str


def name_with_capitals(raw: bytes | str) -> str:
    """A header's name in lower case: a SentName if it was sent with capitals."""
    sent = raw if isinstance(raw, str) else raw.decode("latin-1")
    lower = sent.lower()
    if lower == sent:
        return lower
    name = SentName(lower)
    name.sent = sent
    return name


def as_sent(name: str) -> str:
    """A header's name as it was sent, as far as that is known."""
    return name.sent if isinstance(name, SentName) else name


#: What names the tenant of a request: a Gateway's endpoint picker sets the first.
NAMES_TENANT: Final = ("x-gateway-inference-fairness-id", "x-tenant-id")
REQUEST_ID: Final = "x-request-id"
MAX_ID_CHARS: Final = 128
#: A year: the system's own timers cannot wait for every number that JSON allows.
_LONGEST: Final = 365 * 86400.0


class Terms(msgspec.Struct, frozen=True):
    """What headers set. Requests with the same head may share it."""

    #: Seconds; None: the model's own.
    timeout: float | None = None
    #: The tenant that is named; else one for the API key; else "". Not one for the connection: a
    #: proxy's carries the requests of all its clients.
    tenant: str = ""
    #: Whether the tenant is named: then an API key that was checked here does not give it.
    names_tenant: bool = False
    parameters: Mapping[str, str] | None = None
    #: The RequestTrace of the one request that these are of; None: it is not traced.
    trace: Any = None


_PREFIX: Final = os.urandom(6).hex()
_numbers = itertools.count(1)


def new_request_id() -> str:
    """Return a unique id: a random part for the process, then a count."""
    return f"{_PREFIX}-{next(_numbers):x}"


def client_request_id(headers: Mapping[str, str]) -> str:
    """The client's X-Request-Id; "" if it gave none that may go into a header or a log."""
    request_id = headers.get(REQUEST_ID, "")
    return (
        request_id
        if len(request_id) <= MAX_ID_CHARS and request_id.isascii() and request_id.isprintable()
        else ""
    )


def terms_of(
    headers: Mapping[str, str],
    tenant_key: bytes,
    parameters: Mapping[str, str] | None = None,
    trace: Any = None,
) -> Terms:
    """Read the headers of a request; InvalidRequest if its timeout is not valid. `parameters` are
    those of the headers that are for the model.

    With the same `tenant_key`, of at most 64 bytes, the same API key is the same tenant.
    """
    for name in NAMES_TENANT:
        if name in headers:
            return Terms(_timeout(headers), headers[name], True, parameters, trace)
    # A key that is not ours to check (a proxy does) counts without its text: the tenant may be
    # shown.
    key = headers.get("authorization") or headers.get("x-api-key")
    return Terms(
        _timeout(headers), _tenant(key, tenant_key) if key else "", False, parameters, trace
    )


def shorter_timeout(timeout: float | None, parameters: Mapping[str, Any]) -> float | None:
    """The timeout of a request whose body has parameters: the shorter of `timeout` and theirs.

    That is Triton's parameter: microseconds, and 0 means none.
    """
    if "timeout" not in parameters:
        return timeout
    microseconds = parameters["timeout"]
    if type(microseconds) is not int or not 0 <= microseconds < 2**64:
        raise InvalidRequest(
            "parameter 'timeout' must be a whole number of microseconds, of at most 64 bits",
            tag=Tag.JSON,
        )
    seconds = min(microseconds * 1e-6, _LONGEST) or None
    if timeout is None or seconds is None:
        return timeout or seconds
    return min(timeout, seconds)


def _tenant(key: str, tenant_key: bytes) -> str:
    data = key.encode("utf-8", "surrogateescape")
    return "#" + hashlib.blake2b(data, digest_size=8, key=tenant_key).hexdigest()


def _timeout(headers: Mapping[str, str]) -> float | None:
    header = headers.get("x-request-timeout")
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidRequest(f"X-Request-Timeout must be seconds above 0, not {header!r}")
    return min(seconds, _LONGEST)
