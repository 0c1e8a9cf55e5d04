"""What do the frames of an HTTP/2 connection look like, and what may be wrong with one?

RFC 9113, as bytes alone: no connection.
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its first frame."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION: Final = 9

ACK: Final = 0x1  # of SETTINGS and PING
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

DEFAULT_WINDOW: Final = 2**16 - 1
DEFAULT_FRAME_BYTES: Final = 2**14
MAX_WINDOW: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1

HEAD_BYTES: Final = 9
#: Length (its upper eight bits, its lower sixteen), type, flags, stream.
HEAD: Final = struct.Struct(">BHBBL")
_SETTING: Final = struct.Struct(">HL")
_PRIORITY_BYTES: Final = 5


class _Fault(Exception):
    def __init__(self, code: int, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class ConnectionFault(_Fault):
    """The client broke the protocol: the connection ends with a GOAWAY for this reason."""


class StreamFault(_Fault):
    """The client broke the protocol within one stream, which is reset."""


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return head(len(payload), kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last_stream_id, code) + text.encode())


def reset(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4))


def header_frames(stream_id: int, flags: int, block: bytes, max_frame_bytes: int) -> bytes:
    if len(block) <= max_frame_bytes:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    pieces = [block[i : i + max_frame_bytes] for i in range(0, len(block), max_frame_bytes)]
    frames = [frame(HEADERS, flags, stream_id, pieces[0])]
    frames += [frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]))
    return b"".join(frames)


def read_settings(payload: bytes) -> dict[int, int]:
    """The last value of each setting, unknown ones included. ConnectionFault for one that is not
    allowed."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS of no whole number of settings")
    found = list(_SETTING.iter_unpack(payload))
    for name, value in found:
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value < 2**24:
            raise ConnectionFault(PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
    return dict(found)


def header_fragment(flags: int, payload: bytes) -> bytes:
    padding = 0
    if flags & PADDED:
        padding, payload = payload[0] if payload else 1, payload[1:]
    if flags & WITH_PRIORITY:
        if len(payload) < _PRIORITY_BYTES:
            raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
        payload = payload[_PRIORITY_BYTES:]
    if padding > len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "HEADERS has more padding than it is long")
    return payload[: len(payload) - padding]


def widened(window: int, increment: int, fault: type[ConnectionFault] | type[StreamFault]) -> int:
    """The window after a WINDOW_UPDATE. `fault` if it is not possible."""
    increment &= MAX_WINDOW
    if not increment:
        raise fault(PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
    if window + increment > MAX_WINDOW:
        raise fault(FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
    return window + increment


def number(payload: bytes, what: str) -> int:
    if len(payload) != 4:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"{what} of {len(payload)} bytes, not 4")
    return int.from_bytes(payload)


def check_length(kind: int, count: int) -> None:
    """Check the bytes of a PING, GOAWAY or PRIORITY, a wrong one of which resets its stream."""
    if (kind == PING and count != 8) or (kind == GOAWAY and count < 8):
        raise ConnectionFault(FRAME_SIZE_ERROR, f"frame type {kind} of {count} bytes")
    if kind == PRIORITY and count != _PRIORITY_BYTES:
        raise StreamFault(FRAME_SIZE_ERROR, f"PRIORITY of {count} bytes")


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
    """Makes the two GOAWAY frames of a graceful shutdown (RFC 9113, 6.8), and knows its phase.

    The first GOAWAY has the client open no more calls, with a PING behind it. The client's
    answer shows that it has read both, so the second GOAWAY can name the last call that is served.
    """

    __slots__ = ("is_refusing", "phase", "since")

    def __init__(self, now: float) -> None:
        self.phase = ShutdownPhase.SERVING
        self.is_refusing = False
        #: When the connection was announced to end, or closed.
        self.since = now

    def announce(self, now: float) -> bytes:
        """The first GOAWAY and its PING; nothing if the shutdown has begun."""
        if self.phase is not ShutdownPhase.SERVING:
            return b""
        self.phase, self.since = ShutdownPhase.ANNOUNCED, now
        return goaway(MAX_STREAM_ID, NO_ERROR, "the server stops") + frame(PING, 0, 0, _PING)

    def is_acknowledged(self, payload: bytes) -> bool:
        """Whether this answer to a PING means that the client has read the first GOAWAY."""
        return self.phase is ShutdownPhase.ANNOUNCED and payload == _PING

    def is_overdue(self, now: float) -> bool:
        return self.phase is ShutdownPhase.ANNOUNCED and now - self.since >= ANNOUNCEMENT

    def refuse(self, last_stream_id: int) -> bytes:
        """The second GOAWAY; nothing if it is written, or the connection closed."""
        if self.phase in (ShutdownPhase.REFUSING, ShutdownPhase.CLOSED):
            return b""
        self.phase = ShutdownPhase.REFUSING
        self.is_refusing = True
        return goaway(last_stream_id, NO_ERROR)

    def close(self, now: float) -> None:
        self.phase, self.since = ShutdownPhase.CLOSED, now
