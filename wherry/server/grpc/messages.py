"""How are messages framed in the bytes of a stream, and how are they compressed?"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge
from wherry.server.calls import compression
from wherry.server.connections.kept_buffers import KeptBuffers
from wherry.server.grpc.rpc import Metadata

#: Whether it is compressed, and its bytes, which no other object changes.
Message = tuple[bool, Buffer]

#: In front of each message: whether it is compressed, and its length.
PREFIX: Final = struct.Struct(">BL")

FIRST_ROOM: Final = 2**18
"""Bytes of new room for a message of which only the length has come: sending a length costs
nothing."""
KEPT_BYTES: Final = 2**17
"""Messages of at least as many bytes come into kept buffers: small ones cost no fresh pages."""
GROWTH: Final = 4
"""The room grows to this multiple of what has come; all copies add up to a third of a message."""


class BadMessage(Exception):
    """The client sent no valid message, or a refused one. Has a gRPC status code and a text."""

    def __init__(self, code: str, text: str, metadata: Metadata = ()) -> None:
        super().__init__(text)
        self.code = code
        self.metadata = metadata


class Assembly:
    """Assembles the messages of a stream from pieces of any length."""

    __slots__ = (
        "_buffers", "_compressed", "_filled", "_length", "_max_bytes", "_message", "_prefix",
    )  # fmt: skip

    def __init__(self, max_bytes: int, buffers: KeptBuffers) -> None:
        self._max_bytes = max_bytes
        self._buffers = buffers
        self._prefix = b""
        self._compressed = False
        self._message: memoryview | None = None  # as much of it as there is room for by now
        self._length = 0
        self._filled = 0

    @property
    def missing(self) -> int:
        """How many bytes of a message that has begun are still to come."""
        return 0 if self._message is None else self._length - self._filled

    @property
    def filled(self) -> int:
        """How many bytes there are of a message that has begun."""
        return 0 if self._message is None else self._filled

    @property
    def between(self) -> bool:
        """Whether no message has begun."""
        return self._message is None and not self._prefix

    def fill(self, data: memoryview) -> bool:
        """Add to a message that has begun bytes that do not complete it.

        Returns whether that is done; if not, `feed` must take them.
        """
        message = self._message
        if message is None:
            return False
        filled = self._filled + len(data)
        if filled >= len(message):
            return False
        message[self._filled : filled] = data
        self._filled = filled
        return True

    def feed(self, data: memoryview) -> Iterator[Message]:
        """The messages that these bytes complete. BadMessage if one is too large, or malformed."""
        while data:
            if self._message is not None:
                piece = data[: len(self._message) - self._filled]
                self._message[self._filled : self._filled + len(piece)] = piece
                data = data[len(piece) :]
                yield from self.placed(len(piece))
                continue
            if self._prefix or len(data) < PREFIX.size:
                missing_bytes = PREFIX.size - len(self._prefix)
                self._prefix += data[:missing_bytes]
                data = data[missing_bytes:]
                if len(self._prefix) < PREFIX.size:
                    return
                flag, length = PREFIX.unpack(self._prefix)
                self._prefix = b""
            else:
                flag, length = PREFIX.unpack_from(data)
                data = data[PREFIX.size :]
            if flag > 1:
                raise BadMessage("INTERNAL", f"a message with the flag {flag}")
            if length > self._max_bytes:
                raise BadMessage(
                    "RESOURCE_EXHAUSTED",
                    f"received message larger than max ({length} vs. {self._max_bytes} bytes): send"
                    " less at a time, or raise the server's --max-body-size",
                )
            if length <= len(data):
                yield flag == 1, bytes(data[:length])
                data = data[length:]
            else:
                self._compressed = flag == 1
                self._length = length
                again = self._buffers.again(length) if length >= KEPT_BYTES else None
                self._message = self._room(FIRST_ROOM) if again is None else again
                self._filled = 0

    def place(self) -> memoryview | None:
        """Return room for the next bytes of a message, of which `placed` must be told."""
        return None if self._message is None else self._message[self._filled :]

    def placed(self, count: int) -> Iterator[Message]:
        """Take `count` bytes that were put into `place`: the message that they complete, if any."""
        self._filled += count
        message = self._message
        if message is None or self._filled < len(message):
            return
        if self._filled < self._length:
            self._message = self._room(GROWTH * self._filled)
            self._message[: self._filled] = message
            return
        self._message = None
        yield self._compressed, message

    def _room(self, most: int) -> memoryview:
        """Room for the whole message, or for as much as `most` of it."""
        length = self._length
        if KEPT_BYTES <= length <= most:
            return self._buffers.new(length)
        # Not bytearray(n): that writes n zeros first.
        return np.empty(min(length, most), np.uint8).data


def unpacked(message: Buffer, coding: str, max_bytes: int) -> Buffer:
    """A message as it was before it was compressed. BadMessage; never more than `max_bytes` are
    unpacked."""
    if coding == "identity":
        raise BadMessage("INTERNAL", "a compressed message without a grpc-encoding")
    try:
        return compression.decompressed(message, coding, max_bytes)
    except RequestTooLarge:
        raise BadMessage(
            "RESOURCE_EXHAUSTED",
            f"received message larger than max ({max_bytes} bytes) once it is unpacked",
        ) from None
    except InvalidRequest as error:
        raise BadMessage("INTERNAL", str(error)) from None


def packed(message: Sequence[Buffer], coding: str) -> tuple[bytes, Sequence[Buffer], int]:
    """The prefix of a message, the message's pieces, and the length of both together.

    Short and long ones are not compressed.
    """
    size = sum(map(len, message))
    if coding != "identity" and compression.MIN_BYTES <= size <= compression.MAX_BYTES_IN_LOOP:
        whole = compression.compressed(b"".join(message), coding)
        return PREFIX.pack(1, len(whole)), (whole,), len(whole) + PREFIX.size
    return PREFIX.pack(0, size), message, size + PREFIX.size
