"""Which keys were typed while a screen is shown?"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from types import FrameType
from typing import Any

#: What ends the program when the terminal is gone.
GONE = "q"


class Keys:
    """The terminal's keys, one by one and without echo, inside the `with` block. SIGTERM and SIGHUP
    end the block as an exception does, so that the terminal is left as it was.

    For the main thread; `wake` may be called from any.
    """

    def __enter__(self) -> Keys:
        self._terminal = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        if self._terminal is not None:
            self._before = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal)
        self._handlers: dict[int, Any] = {
            number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGHUP)
        }
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        os.close(self._woken)
        os.close(self._wakes)

    def wake(self) -> None:
        """Have `typed` return."""
        with contextlib.suppress(OSError):  # it is awake, or gone
            os.write(self._wakes, b"!")

    def typed(self) -> str:
        """Wait for keys, or for `wake`, or for another size of the terminal. "" without a key."""
        files = [self._woken] + ([] if self._terminal is None else [self._terminal])
        ready, _, _ = select.select(files, [], [])
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._terminal is None or self._terminal not in ready:
            return ""
        try:
            keys = os.read(self._terminal, 1024)
        except OSError:
            return GONE
        # An arrow or a function key is no letter.
        return "" if keys.startswith(b"\x1b") else keys.decode("ascii", "replace") or GONE

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self.wake()

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
