"""How does a socket between two machines become a link that carries messages?

Everything happens in an event loop and blocks nothing. `greet_owner` and `admit_front` do the
handshake, one frame at a time; what comes after it is for `message_socket`.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from wherry.remote.handshake import (
    MOST_BYTES,
    NONCE_BYTES,
    Challenge,
    FrontHandshake,
    HandshakeFailed,
    Identity,
    OwnerHandshake,
    Proof,
    Unwelcome,
    Welcome,
    parsed,
)
from wherry.workers.encoding import MessageDecoder, MessageEncoder
from wherry.workers.frames import FrameBuffer, Garbage, header
from wherry.workers.message_socket import FrameSocket

#: Seconds that a handshake may take, and those to connect before it.
HANDSHAKE: Final = 5.0
CONNECT: Final = 3.0
#: Seconds after which a peer is gone whose kernel does not acknowledge what was sent.
GONE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one side shows and asks for."""

    identity: Identity
    #: Empty: none, for links within one machine.
    token: bytes


def set_up(sock: socket.socket) -> None:
    """Send at once, and notice a peer that is gone after GONE seconds, in silence or not."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {
        "TCP_KEEPIDLE": 1,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": int(GONE) - 1,
        "TCP_USER_TIMEOUT": int(GONE * 1000),
    }.items():
        with suppress(AttributeError, OSError):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def message_socket(
    sock: socket.socket, message_type: Any, *, receives: int, sends: int
) -> FrameSocket:
    """The socket for messages with their arrays in them; `receives` and `sends` are the most bytes
    of one."""
    encoder = MessageEncoder(inline=True, most=sends)
    decoder = MessageDecoder(message_type, copies=False)
    messages = FrameSocket(sock, sock, encoder, decoder, most=receives)
    messages.takes_files = False
    return messages


async def connected(host: str, port: int) -> socket.socket:
    """A connection to an owner. OSError, or TimeoutError after CONNECT seconds."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for family, _, _, _, address in found:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                set_up(sock)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
    raise failure or OSError(f"{host} has no address")


def round_trip(sock: socket.socket) -> float:
    """Seconds that the network takes there and back, as the kernel has measured; 0.0 where it does
    not tell."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (AttributeError, OSError):
        return 0.0
    return int.from_bytes(info[68:72], sys.byteorder) * 1e-6  # tcpi_rtt of struct tcp_info


async def greet_owner(sock: socket.socket, credentials: Credentials) -> Identity:
    """Do the handshake as a front. Returns the owner's identity. Raises HandshakeFailed, Garbage,
    OSError, EOFError or TimeoutError."""
    async with asyncio.timeout(HANDSHAKE):
        shake = FrontHandshake(credentials.identity, credentials.token, _nonce())
        await _send(sock, shake.prove(await _receive(sock, Challenge)))
        answer: Welcome | Unwelcome = await _receive(sock, Welcome | Unwelcome)
        return shake.check(answer)


async def admit_front(sock: socket.socket, credentials: Credentials) -> Identity:
    """Do the handshake as an owner. Returns the front's identity. Raises as `greet_owner`."""
    async with asyncio.timeout(HANDSHAKE):
        shake = OwnerHandshake(credentials.identity, credentials.token, _nonce())
        await _send(sock, shake.challenge)
        proof: Proof = await _receive(sock, Proof)
        try:
            welcome = shake.answer(proof)
        except HandshakeFailed as error:
            await _send(sock, Unwelcome(str(error)))
            raise
        await _send(sock, welcome)
        return proof.front


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


async def _send(sock: socket.socket, step: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(step)
    data = memoryview(header(len(body), most=MOST_BYTES) + body)
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            await _when(sock, loop.add_writer, loop.remove_writer)


async def _receive(sock: socket.socket, kind: Any) -> Any:
    """One step. Nothing follows it until the next one is sent."""
    buffer = FrameBuffer(MOST_BYTES)
    while True:
        try:
            size = sock.recv_into(buffer.space(), MOST_BYTES)
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            await _when(sock, loop.add_reader, loop.remove_reader)
            continue
        if not size:
            raise EOFError("it closed the connection in the handshake")
        frames = buffer.received(size)
        if not frames:
            continue
        (body, shared_bytes, flags), *others = frames
        if others or shared_bytes or flags or not buffer.is_empty:
            raise Garbage("no handshake")
        return parsed(bytes(body), kind)


async def _when(
    sock: socket.socket, add: Callable[..., object], remove: Callable[[int], object]
) -> None:
    """Wait until the loop says that the socket may be used."""
    may: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    file = sock.fileno()
    add(file, _tell, may)
    try:
        await may
    finally:
        remove(file)


def _tell(may: asyncio.Future[None]) -> None:
    if not may.done():
        may.set_result(None)
