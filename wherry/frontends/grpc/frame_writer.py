"""How do frames reach the transport, with few system calls?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from wherry.frontends.connections.gathered import gathered_write
from wherry.values.buffer import Buffer

CORKED_BYTES: Final = 2**16
"""Most bytes that are held back."""


class FrameWriter:
    """Writes to the transport of one connection, until it is closed.

    While it is corked, as it is while frames are read, small frames are held back and leave in one
    piece: a client that is sent many answers at once costs one system call.
    """

    __slots__ = (
        "_held", "_held_bytes", "_transport", "_write_gathered", "closed", "corked", "paused",
        "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write_gathered = gathered_write(transport)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.corked = False
        #: Whether the transport has asked to be given no more.
        self.paused = False
        #: Whether what is written is dropped: the connection has ended.
        self.closed = False
        #: Bytes that were given to `write` and `write_buffers`.
        self.written = 0

    def __repr__(self) -> str:
        return f"<FrameWriter: {self.written} bytes{', closed' if self.closed else ''}>"

    @property
    def unsent(self) -> int:
        """Bytes that the transport has not given to the kernel."""
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self.closed:
            return
        self.written += len(data)
        if not self.corked:
            self._transport.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= CORKED_BYTES:
            self._release()

    def write_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Write large data, as one piece. Not while corked."""
        if not self.closed:
            self.written += sum(map(len, buffers))
            self._write_gathered(buffers)

    def uncork(self) -> None:
        """Write what was held back."""
        self.corked = False
        if self._held:
            self._release()

    def _release(self) -> None:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self._transport.write(data)

    def finish(self) -> None:
        """End this side of the connection behind what is written."""
        if self.closed:
            return
        self.uncork()
        self.closed = True
        # To close with bytes unread would reset the connection: the client could lose the last
        # frames.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
