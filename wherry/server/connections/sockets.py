"""What does a server do with sockets that the event loop does not?

Sockets that another program has passed, unix sockets' names, several buffers written as one, and
what the kernel reports.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wherry.core.api import Buffer, ConfigError


def passed_socket(fd: int, setting: str) -> socket.socket:
    """Make the socket, which the caller closes. ConfigError if `fd` cannot be listened on.

    Closing it closes this copy: a process that has passed it on, and keeps it, loses no connection.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"{setting} {fd}: {error.strerror}") from None
    try:
        if sock.type != socket.SOCK_STREAM or not _is_bound(sock):
            raise ConfigError(f"{setting} {fd}: not a socket that can listen; bind a TCP one first")
        os.set_inheritable(fd, False)  # a worker must not hold it open
    except BaseException:
        sock.detach()  # the descriptor stays open for its owner
        raise
    return sock


def _is_bound(sock: socket.socket) -> bool:
    """Whether it has an address, and no peer."""
    with suppress(OSError):
        sock.getpeername()
        return False
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        return bool(sock.getsockname()[1])
    return sock.family == getattr(socket, "AF_UNIX", None) and bool(sock.getsockname())


class UnixName:
    """The name of one unix socket in the file system. Its methods block."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._inode: int | None = None

    def bind(self) -> socket.socket:
        """A socket of this name, which does not listen yet. OSError if a server listens there, or
        if what lies there is no socket."""
        _remove_stale(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(self._path))
            self._inode = self._path.stat().st_ino
        except BaseException:
            sock.close()
            raise
        return sock

    def remove(self) -> None:
        """Remove the name, unless a successor has taken it."""
        inode, self._inode = self._inode, None
        if inode is not None:
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == inode:
                    self._path.unlink()


def _remove_stale(path: Path) -> None:
    """Make way for a new socket, unless a process listens there or it is not a socket at all."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "not a socket; choose another path", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Never block the loop: a listener with a full queue is a listener too.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another server listens on this unix socket", str(path))


# asyncio's own socket transport never calls `pause_writing` for what `writelines` leaves unsent, in
# Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 (CVE-2024-12254): answers to a client that does not
# read would pile up without a bound. Its `write` does call it, in every version. uvloop's
# transports and those of TLS are not concerned.
_FORGETS: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    (3, 13) <= sys.version_info < (3, 13, 2)
)


def gathered_write(
    transport: asyncio.Transport, *, forgets: bool = _FORGETS
) -> Callable[[Sequence[Buffer]], None]:
    """The function that writes buffers to `transport` as one.

    With `forgets`, a transport of asyncio's own gets them joined: one copy more.
    """
    if forgets and type(transport).__module__.startswith("asyncio."):
        return lambda buffers: transport.write(b"".join(buffers))
    return transport.writelines


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
    """Whether the peer has reset the connection, which an event loop that does not read does not
    notice. False where it is unknown."""
    sock: socket.socket = transport.get_extra_info("socket")
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except (AttributeError, OSError):  # not Linux, or not TCP
        return False
    return state[0] == _TCP_CLOSE


def _count(sock: socket.socket, name: str) -> int | None:
    """One of the kernel's counts of bytes; None if it is not known."""
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
