"""How are new connections led to another process that listens on the same port?

The kernel spreads the connections of a port among the sockets that are bound to it with
SO_REUSEPORT. A program attached to these sockets decides instead; it can only name a socket by its
place among them, which the kernel does not tell. A connection to the port, made here, shows whether
a place belongs to this process. Handshakes that have begun are not asked again: they end where they
have begun.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from wherry.server.connections.sockets import unacknowledged_by

#: Seconds for a connection to our own port: on this machine, but the loop may be busy.
PROBE: Final = 1.0

_SO_ATTACH_FILTER: Final = 26
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_SO_DETACH_REUSEPORT_BPF: Final = 68
_INSTRUCTION: Final = struct.Struct("=HBBI")
#: Drop what has the SYN flag (in byte 13 of the TCP header), take everything else.
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is the flag set?
    (0x06, 0, 0, 0),  # take nothing
    (0x06, 0, 0, 2**32 - 1),  # take all
)


def let_no_more_in(listening: socket.socket) -> None:
    """Have the kernel drop the first packet of new connections, where it can do that: their clients
    try again a second later, and find the port closed, or a successor."""
    if _has_programs(listening):
        with suppress(OSError):
            _attach(listening, _SO_ATTACH_FILTER, _NO_SYN)


async def lead_elsewhere(listening: socket.socket) -> tuple[bool, list[socket.socket]]:
    """Have the kernel give new connections to another process on the same port until `lead_back`.

    False if there is none, or it cannot be found out. Also what had to be accepted meanwhile. No
    other may accept from this socket.
    """
    accepted: list[socket.socket] = []
    if not _has_programs(listening):
        return False, accepted
    for place in (0, 1):  # one of the two belongs to another process
        try:
            _attach(listening, _SO_ATTACH_REUSEPORT_CBPF, ((0x06, 0, 0, place),))
            name = await _connect(listening)
        except (OSError, TimeoutError):
            break
        ours = False
        for connection in accept_all(listening):
            if _peer_of(connection) == name:
                connection.close()
                ours = True
            else:
                accepted.append(connection)
        if not ours:
            return True, accepted
    lead_back(listening)
    return False, accepted


def lead_back(listening: socket.socket) -> None:
    """Have the kernel spread new connections as before."""
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)


def accept_all(listening: socket.socket) -> list[socket.socket]:
    """The connections that the kernel has accepted."""
    listening.setblocking(False)
    accepted = []
    with suppress(OSError):
        while True:
            accepted.append(listening.accept()[0])
    for connection in accepted:
        connection.setblocking(False)
    return accepted


async def _connect(listening: socket.socket) -> object:
    """Connect to the port and leave. The connection's name, once the other side has it whole."""
    with socket.socket(listening.family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        async with asyncio.timeout(PROBE):
            await asyncio.get_running_loop().sock_connect(probe, listening.getsockname())
            name = probe.getsockname()
            probe.shutdown(socket.SHUT_WR)
            # Its end is acknowledged by a connection that can be accepted, not by a handshake.
            while unacknowledged_by(probe) != 0:  # noqa: ASYNC110 - the kernel tells no event
                await asyncio.sleep(0.001)
        return name


def _peer_of(connection: socket.socket) -> object:
    with suppress(OSError):
        return connection.getpeername()
    return None


def _has_programs(listening: socket.socket) -> bool:
    """Whether the kernel runs programs for this socket's new connections."""
    return sys.platform == "linux" and listening.family != socket.AF_UNIX


def _attach(
    listening: socket.socket, option: int, steps: Sequence[tuple[int, int, int, int]]
) -> None:
    program = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*step) for step in steps))
    described = struct.pack("HP", len(steps), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, option, described)
