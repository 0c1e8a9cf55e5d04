"""How does an event loop wake up on time? (Event loops count in milliseconds.)

On Linux a timerfd, which is precise to some tens of microseconds; elsewhere the loop's own timer.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class PreciseTimer:
    """Calls `callback` at a moment of time.perf_counter; one moment at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._file: int | None = None
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            file = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if file >= 0:
                self._file = file
                self._settime = libc.timerfd_settime
                loop.add_reader(file, self._expired)

    def set(self, moment: float) -> None:
        """Wake at `moment`; one that has passed is now. The earlier setting is forgotten."""
        if self._file is None:
            if self._handle is not None:
                self._handle.cancel()
            wait = max(0.0, moment - time.perf_counter())
            self._handle = self._loop.call_later(wait, self._callback)
            return
        seconds = int(moment)
        nanoseconds = int((moment - seconds) * 1e9)
        # interval, then value; a value of 0 would switch it off
        setting = struct.pack("qqqq", 0, 0, seconds, max(1, nanoseconds))
        self._settime(self._file, _ABSOLUTE, setting, None)

    def close(self) -> None:
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None
        if self._handle is not None:
            self._handle.cancel()

    def _expired(self) -> None:
        assert self._file is not None
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was set again in the meantime
        self._callback()
