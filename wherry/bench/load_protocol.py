"""What do the command and its load processes say to each other? (Frames over stdin and stdout.)"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from wherry.bench.connection import Encoded, Wire
from wherry.bench.plan import Plan


class RunLoad(msgspec.Struct, tag=True, kw_only=True):
    """Prepare this run. The answer is `LoadReady`."""

    plan: Plan
    wire: Wire
    requests: list[Encoded]
    offset: int = 0
    phase: float = 0.0


class Begin(msgspec.Struct, tag=True):
    """Begin at this moment of the machine's monotonic clock."""

    at: float


class StopLoad(msgspec.Struct, tag=True):
    """End now. The answer is `Done`."""

    because: str


class LoadReady(msgspec.Struct, tag=True):
    pass


class LoadProgress(msgspec.Struct, tag=True, kw_only=True):
    """How far a run is. `recent`: some of the latencies (seconds) since the report before."""

    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    recent: list[float] = []


class Done(msgspec.Struct, tag=True, kw_only=True):
    """The run is over: its time was up, or after a `StopLoad`."""

    records: dict[str, Any]
    samples: dict[str, str] = {}
    stopped_because: str = ""
    #: Of the process, while it ran.
    cpu_seconds: float = 0.0
    seconds: float = 0.0


class ChildFailed(msgspec.Struct, tag=True):
    """The load process has raised: a mistake in wherry."""

    traceback: str


ToChild = RunLoad | Begin | StopLoad
FromChild = LoadReady | LoadProgress | Done | ChildFailed

_LENGTH: Final = struct.Struct("<Q")


def frame(message: ToChild | FromChild) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Reads messages from bytes as they come."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        self._buffer += data
        found = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            found.append(self._decoder.decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return found
