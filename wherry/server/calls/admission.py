"""Is a request admitted now?"""

from __future__ import annotations

import sys

from wherry.core.api import (
    Budget,
    InferRequest,
    Overloaded,
    RequestTooLarge,
    Reservation,
    TooManyBytes,
    bytes_of,
)

#: Seconds after which a refused client may try again: a slot is free when one request is done.
RETRY_AFTER = 1.0


#: What each request counts with, for its objects, its headers and a small body.
SMALL_BYTES = 2**16
#: A body of at most this many bytes takes at most SMALL_BYTES in memory, whatever it holds.
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
        self.large = Budget(sys.maxsize if max_bytes is None else max_bytes)

    def limit_bytes(self, max_bytes: int) -> None:
        self.large.limit = max_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes that unanswered requests hold, or a little more. Any thread."""
        return self.large.held + self.in_flight * SMALL_BYTES

    def check(self) -> None:
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
    ) -> None:
        """Count a decoded request; `leave` must follow once it is answered.

        TooManyBytes if there is no room for it; `body_bytes` is its size on the wire, if known.
        What is large in it counts as long as it is there: a batch may run on without its caller.
        """
        large = self.large
        more = 0
        if body_bytes > SMALL_BODY:
            if request.nbytes is None:
                request.nbytes = bytes_of(request.inputs)
            more = request.nbytes - SMALL_BYTES
        most = large.limit - max(0, more) - SMALL_BYTES
        if most < 0:
            raise RequestTooLarge(
                f"the inputs of this request take {more + SMALL_BYTES} bytes with all their rows,"
                f" and all requests may take {large.limit} (max_queue_bytes); send fewer rows at a"
                " time"
            )
        if large.taken + self.in_flight * SMALL_BYTES > most and self.held_bytes > most:
            self.refused += 1
            raise TooManyBytes(
                "the server", "max_queue_bytes", self.held_bytes, large.limit, large.limit - most
            )
        if more > 0:
            large.take(more)
            request.reservations = (Reservation(large, more),)
        self.in_flight += 1

    def enter_small(self, requests: int) -> bool:
        """Count `requests` with small bodies, if there is room for all of them beyond doubt.
        False: `check` and `enter` each."""
        large = self.large
        if (
            self.max_in_flight is not None
            or large.taken + (self.in_flight + requests) * SMALL_BYTES > large.limit
        ):
            return False
        self.in_flight += requests
        return True

    def leave(self) -> None:
        self.in_flight -= 1

    def __repr__(self) -> str:
        return f"<Admission: {self.in_flight} in flight, {self.refused} refused>"
