"""How does a connection end without losing a call? (RFC 9113, 6.8)

Without I/O: the methods return the frames to write.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from wherry.server.grpc import frames

ANNOUNCEMENT: Final = 2.0
"""Seconds a client has to answer the first GOAWAY's PING, before the second is sent anyway."""
LINGER: Final = 2.0
"""Seconds a client has to close its end, once all is written and the server's end is closed."""

_PING: Final = b"goodbye!"


class ShutdownPhase(Enum):
    SERVING = auto()
    ANNOUNCED = auto()  # the first GOAWAY is written; new calls are still served
    REFUSING = auto()  # the second GOAWAY has named the last call; later ones are ignored
    CLOSED = auto()  # nothing more is read or written


class GracefulShutdown:
    """Makes the two GOAWAY frames of a graceful shutdown, and knows its phase.

    The first GOAWAY asks the client to open no more calls, with a PING behind it. The client's
    answer shows that it has read both, so the second GOAWAY can name the last call that is served.
    """

    __slots__ = ("is_refusing", "phase", "since")

    def __init__(self, now: float) -> None:
        self.phase = ShutdownPhase.SERVING
        #: Whether the client has been told which call is the last.
        self.is_refusing = False
        #: When the connection was announced to end, or closed.
        self.since = now

    def announce(self, now: float) -> bytes:
        """The first GOAWAY and its PING; nothing if the shutdown has begun."""
        if self.phase is not ShutdownPhase.SERVING:
            return b""
        self.phase, self.since = ShutdownPhase.ANNOUNCED, now
        return frames.goaway(
            frames.MAX_STREAM_ID, frames.NO_ERROR, "the server stops"
        ) + frames.frame(frames.PING, 0, 0, _PING)

    def is_acknowledged(self, payload: bytes) -> bool:
        """Whether this answer to a PING means that the client has read the first GOAWAY."""
        return self.phase is ShutdownPhase.ANNOUNCED and payload == _PING

    def is_overdue(self, now: float) -> bool:
        """Whether that answer has been waited for long enough."""
        return self.phase is ShutdownPhase.ANNOUNCED and now - self.since >= ANNOUNCEMENT

    def refuse(self, last_stream_id: int) -> bytes:
        """The second GOAWAY; nothing if it is written, or the connection closed."""
        if self.phase in (ShutdownPhase.REFUSING, ShutdownPhase.CLOSED):
            return b""
        self.phase = ShutdownPhase.REFUSING
        self.is_refusing = True
        return frames.goaway(last_stream_id, frames.NO_ERROR)

    def close(self, now: float) -> None:
        self.phase, self.since = ShutdownPhase.CLOSED, now
