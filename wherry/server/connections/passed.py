"""How does a descriptor that another program has passed become a listening socket?"""

from __future__ import annotations

import os
import socket

from wherry.core.api import ConfigError


def passed_socket(fd: int, setting: str) -> socket.socket:
    """Make the socket, which the caller closes. ConfigError if `fd` cannot be listened on.

    Closing it closes this copy: a process that has passed it on, and keeps it, loses no connection.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"{setting} {fd}: {error.strerror}") from None
    try:
        if sock.type != socket.SOCK_STREAM or not _has_address(sock) or _is_connected(sock):
            raise ConfigError(f"{setting} {fd}: not a socket that can listen; bind a TCP one first")
        os.set_inheritable(fd, False)  # a worker must not hold it open
    except BaseException:
        sock.detach()  # the descriptor stays open for its owner
        raise
    return sock


def _has_address(sock: socket.socket) -> bool:
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        return bool(sock.getsockname()[1])
    unix = getattr(socket, "AF_UNIX", None)
    return sock.family == unix and bool(sock.getsockname())


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
