"""Is a request admitted now, what is its timeout, and which tenant does it belong to?"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from wherry.values.budget import Budget, Loan
from wherry.values.errors import InvalidRequest, Overloaded, TooManyBytes
from wherry.values.request import InferRequest, bytes_of

#: Seconds after which a refused client may try again: a slot is free when one request is done.
RETRY_AFTER = 1.0


#: What each request counts with, for its objects, its headers and a small body.
SMALL_BYTES = 2**16
#: A body of at most this many bytes takes at most SMALL_BYTES in memory, whatever it says.
SMALL_BODY = 2**11


class Admission:
    """Counts the requests that one server has taken and not answered, and what they hold in memory,
    and refuses beyond a limit of either.

    Used by one event loop. `max_bytes` None: no limit.
    """

    def __init__(self, max_in_flight: int | None = None, max_bytes: int | None = None) -> None:
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.refused = 0
        #: What large requests hold; each request counts with SMALL_BYTES beside that.
        self._large = Budget(sys.maxsize if max_bytes is None else max_bytes)

    def limit_bytes(self, max_bytes: int) -> None:
        """Refuse beyond `max_bytes` from now on."""
        self._large.limit = max_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes that unanswered requests hold, or a little more. Any thread."""
        return self._large.held + self.in_flight * SMALL_BYTES

    def check(self) -> None:
        """Raise Overloaded if `max_in_flight` requests are unanswered."""
        if self.max_in_flight is not None and self.in_flight >= self.max_in_flight:
            self.refused += 1
            raise Overloaded(
                f"the server is at its limit of {self.max_in_flight} requests in flight;"
                " retry later, or raise max_in_flight",
                RETRY_AFTER,
            )

    def enter_body(self) -> None:
        """Count a request that is still to be decoded; `leave` must follow."""
        self.in_flight += 1

    def enter(
        self,
        request: InferRequest,
        body_bytes: int = SMALL_BODY + 1,
        held_bytes: int | None = None,
    ) -> None:
        """Count a decoded request; `leave` must follow once it is answered.

        TooManyBytes if there is no room for it; `body_bytes` is its size on the wire, if known, and
        `held_bytes` that of its inputs, if they were counted already.
        What is large in it counts as long as it is there: a batch may run on without its caller.
        """
        more = 0
        if body_bytes > SMALL_BODY:
            more = (bytes_of(request.inputs) if held_bytes is None else held_bytes) - SMALL_BYTES
        most = self._large.limit - max(0, more) - SMALL_BYTES
        if self._large.taken + self.in_flight * SMALL_BYTES > most and self.held_bytes > most:
            self.refused += 1
            limit = self._large.limit
            raise TooManyBytes(
                "the server", "max_queue_bytes", self.held_bytes, limit, limit - most
            )
        if more > 0:
            self._large.take(more)
            request.loans = (Loan(self._large, more),)
        self.in_flight += 1

    def enter_all(self, requests: Sequence[InferRequest]) -> None:
        """`enter` all of them, or none."""
        for count, request in enumerate(requests):
            try:
                self.enter(request)
            except TooManyBytes:
                for _ in range(count):
                    self.leave()
                raise

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
    """The tenant that the request names; else the name of its API key; else "".

    A key that is not ours to check (a proxy does) counts, too, without its text: the tenant may be
    shown. Not the connection: a proxy's carries the requests of all its clients.
    """
    tenant = headers.get("x-tenant-id")
    if tenant is not None:
        return tenant
    if caller:
        return caller
    key = headers.get("authorization") or headers.get("x-api-key")
    return f"#{hash(key):x}" if key else ""
