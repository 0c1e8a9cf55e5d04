"""Which streams has a client begun, and which may it believe to be open?"""

from __future__ import annotations

from typing import Final

from wherry.frontends.grpc.frames import PROTOCOL_ERROR, ConnectionFault

MAX_CUT: Final = 1024
"""Streams that are remembered as cut off; the oldest are forgotten first."""


class StreamIds:
    """Remembers how far a client has counted, and the streams that the server ended first.

    Frames of those may still come, as the client has not heard of it yet; frames of other streams
    that are not open are faults.
    """

    __slots__ = ("_cut", "last", "served")

    def __init__(self) -> None:
        #: The last that the client has begun.
        self.last = 0
        #: The last whose call was served, as GOAWAY names it.
        self.served = 0
        self._cut: dict[int, None] = {}

    def __repr__(self) -> str:
        return f"<StreamIds: {self.last} begun, {len(self._cut)} cut off>"

    def check_begun(self, stream_id: int) -> None:
        """ConnectionFault if the client has not begun this stream."""
        if not stream_id & 1 or stream_id > self.last:
            raise ConnectionFault(PROTOCOL_ERROR, f"stream {stream_id} has not begun")

    def cut_off(self, stream_id: int) -> None:
        """Remember that the server has ended a stream before its client."""
        self._cut[stream_id] = None
        if len(self._cut) > MAX_CUT:
            del self._cut[next(iter(self._cut))]

    def is_cut_off(self, stream_id: int) -> bool:
        return stream_id in self._cut
