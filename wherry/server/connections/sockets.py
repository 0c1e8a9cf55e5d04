"""What does the kernel report about a socket that the event loop does not?"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

_TCP_CLOSE: Final = 7  # of the kernel's tcp_states.h


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes of the peer have arrived that were not read yet. False where it is unknown."""
    return bool(_count(transport.get_extra_info("socket"), "FIONREAD"))


def unacknowledged(transport: asyncio.BaseTransport) -> int | None:
    """Bytes that were written and the peer's kernel has not got; the stream's end is one, too.
    None where it is unknown."""
    return unacknowledged_by(transport.get_extra_info("socket"))


def unacknowledged_by(sock: socket.socket) -> int | None:
    """The same for a socket that belongs to no event loop."""
    return _count(sock, "TIOCOUTQ")


def was_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has reset the connection, which an event loop that does not read is not
    told. False where it is unknown."""
    sock: socket.socket = transport.get_extra_info("socket")
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except (AttributeError, OSError):  # no Linux, or no TCP
        return False
    return state[0] == _TCP_CLOSE


def _count(sock: socket.socket, name: str) -> int | None:
    """One of the kernel's counts of bytes; None if it does not tell."""
    try:
        import fcntl
        import termios

        answer = fcntl.ioctl(sock.fileno(), getattr(termios, name), bytes(4))
        return int.from_bytes(answer, sys.byteorder)
    except (ImportError, AttributeError, OSError, ValueError):
        return None


def address_text(address: object) -> str | None:
    """host:port of an internet address; nothing for the nameless end of a unix socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) if address else None
