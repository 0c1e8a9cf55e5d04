"""How does a connection end so that the client can read its last answer?

Closing on unread bytes resets the connection, and the client may lose the answer (RFC 9112, 9.6).
So our half is closed first, and what still comes is read and dropped until the client has closed,
or has got all, or time is up.
"""

from __future__ import annotations

import asyncio
from typing import Final

from wherry.server.connections.sockets import has_unread, unacknowledged

LINGER: Final = 2.0
"""Seconds that a refused client may go on sending, so that it can read the answer."""


class LingeringClose:
    """Closes one connection after its last answer."""

    __slots__ = ("_dropped_bytes", "_max_bytes", "_transport", "is_refused", "sends_no_more")

    def __init__(self, transport: asyncio.Transport, max_bytes: int) -> None:
        """`max_bytes` is the most that is read and dropped before the connection is aborted."""
        self._transport = transport
        self._max_bytes = max_bytes
        self._dropped_bytes = 0
        #: The client sends, or may send, what is not wanted: it gets the whole LINGER.
        self.is_refused = False
        #: The client has closed its sending half.
        self.sends_no_more = False

    def begin(self) -> None:
        """Close the sending half, behind all that was written; all of it if the client's is."""
        if self._transport.can_write_eof() and not self.sends_no_more:
            self._transport.write_eof()
        else:
            self._transport.close()

    def drop(self, nbytes: int) -> None:
        """Count `nbytes` that were read and dropped."""
        self.is_refused = True
        self._dropped_bytes += nbytes
        if self._dropped_bytes > self._max_bytes:
            self._transport.abort()

    def is_complete(self) -> bool:
        """Whether it may be closed early: the client's kernel has all we wrote, and no unread byte
        would make a reset."""
        if self.is_refused or has_unread(self._transport):
            return False
        return unacknowledged(self._transport) == 0
