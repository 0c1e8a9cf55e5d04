"""When has a client been silent, or slow to complete what it began, for too long?

Pure: time is an argument.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

KEEPALIVE_TIME: Final = 60.0
"""Seconds without progress after which the client is sent a PING."""
KEEPALIVE_TIMEOUT: Final = 20.0
"""Seconds the client then has to answer."""


class TimeoutAction(Enum):
    NONE = auto()
    PING = auto()
    ABORT = auto()


class ConnectionTimeouts:
    """Decides what must be done about a connection, from what each sweep sees of it.

    `header_timeout` bounds what must be read whole: the preface with the first SETTINGS, a frame,
    a header block.
    """

    __slots__ = (
        "_header_timeout", "_pinged", "_progress", "_quiet_since", "_unfinished",
        "_unfinished_since",
    )  # fmt: skip

    def __init__(self, header_timeout: float, unfinished: object, now: float) -> None:
        self._header_timeout = header_timeout
        self._progress = 0
        self._quiet_since = now
        self._pinged = False
        self._unfinished = unfinished
        self._unfinished_since = now

    def quiet(self, now: float) -> float:
        """Seconds without progress."""
        return now - self._quiet_since

    def see(self, progress: int, unfinished: object, now: float) -> None:
        """Note the bytes moved since the connection began, and the object, if any, that stands for
        what was begun and is not whole."""
        if progress > self._progress:
            self._progress, self._quiet_since, self._pinged = progress, now, False
        if unfinished is not self._unfinished:
            self._unfinished, self._unfinished_since = unfinished, now

    def action(self, now: float) -> TimeoutAction:
        """What must be done now. PING comes once for each silence."""
        quiet = self.quiet(now)
        if quiet >= KEEPALIVE_TIME + KEEPALIVE_TIMEOUT:
            return TimeoutAction.ABORT
        if self._unfinished is not None and now - self._unfinished_since >= self._header_timeout:
            return TimeoutAction.ABORT
        if quiet >= KEEPALIVE_TIME and not self._pinged:
            self._pinged = True
            return TimeoutAction.PING
        return TimeoutAction.NONE
