"""When does a client make work that leads to nothing, and must be cut off?

Counts between two sweeps of the listener, twice a second.
"""

from __future__ import annotations

from typing import Final

from wherry.frontends.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault

MAX_CALLS: Final = 1024
"""Calls open at once on one connection (MAX_CONCURRENT_STREAMS)."""

MAX_RESETS: Final = 2 * MAX_CALLS
"""Calls that were reset or refused: opening and cancelling them costs a client little (rapid
reset, CVE-2023-44487)."""

RESETS_OF_A_FAULT: Final = 16
"""Resets that a stream counts for that the server had to reset. gRPC clients cause none, and they
would get around a client's own limit of open calls."""

MAX_NOISE: Final = 10_000
"""Frames that move no call: PING, SETTINGS, PRIORITY, empty DATA, late headers, unknown ones."""


class FloodLimits:
    """Counts resets and noise of one connection. ConnectionFault above the limits."""

    __slots__ = ("_noise", "_resets")

    def __init__(self) -> None:
        self._noise = self._resets = 0

    def __repr__(self) -> str:
        return f"<FloodLimits: {self._resets} resets, {self._noise} frames of noise>"

    def note_reset(self, count: int = 1) -> None:
        self._resets += count
        if self._resets > MAX_RESETS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many calls that come to nothing")

    def note_noise(self, count: int = 1) -> None:
        self._noise += count
        if self._noise > MAX_NOISE:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move no call")

    def clear(self) -> None:
        """Begin to count anew: a sweep has come."""
        self._noise = self._resets = 0
