"""May a request come in now, until when must it be answered, and on whose behalf does it come?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wherry.errors import InvalidRequest, Overloaded

#: Seconds after which a refused client may try again: a slot is free when one request is done.
RETRY_AFTER = 1.0


class Admission:
    """Counts the requests that one server has taken and not answered, and refuses beyond a limit.

    Used by one event loop.
    """

    def __init__(self, max_in_flight: int | None = None) -> None:
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.refused = 0

    def check(self) -> None:
        """Overloaded if there are too many requests already."""
        if self.max_in_flight is not None and self.in_flight >= self.max_in_flight:
            self.refused += 1
            raise Overloaded(
                f"the server is at its limit of {self.max_in_flight} requests in flight;"
                " retry later, or raise max_in_flight",
                RETRY_AFTER,
            )

    def enter(self) -> None:
        """A request that was checked is taken; `leave` must follow."""
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def __repr__(self) -> str:
        return f"<Admission: {self.in_flight} in flight, {self.refused} refused>"


def timeout_of(headers: Mapping[str, str], parameters: Mapping[str, Any] | None) -> float | None:
    """The request's own timeout in seconds: the shorter of its header and its parameter.

    The parameter is Triton's: microseconds, and 0 means none.
    """
    timeout: float | None = None
    if parameters and "timeout" in parameters:
        microseconds = parameters["timeout"]
        if type(microseconds) is not int or microseconds < 0:
            raise InvalidRequest("parameter 'timeout' must be a whole number of microseconds")
        timeout = min(microseconds * 1e-6, _LONGEST) or None
    header = headers.get("x-request-timeout")
    if header is not None:
        try:
            seconds = float(header)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise InvalidRequest(f"X-Request-Timeout must be seconds above 0, not {header!r}")
        seconds = min(seconds, _LONGEST)
        timeout = seconds if timeout is None else min(timeout, seconds)
    return timeout


#: A year: the system's own timers cannot wait for every number that JSON can say.
_LONGEST = 365 * 86400.0


def tenant_of(headers: Mapping[str, str], caller: str = "") -> str:
    """Whom the request is for, if it says so; else whose key it has, by the key's name; else "".

    A key that is not ours to check (a proxy does) counts, too, without its text: the tenant may be
    shown. Not the connection: a proxy's are everybody's.
    """
    tenant = headers.get("x-tenant-id")
    if tenant is not None:
        return tenant
    if caller:
        return caller
    key = headers.get("authorization") or headers.get("x-api-key")
    return f"#{hash(key):x}" if key else ""
