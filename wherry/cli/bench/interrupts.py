"""What do Ctrl-C and SIGTERM do while `wherry bench` measures?"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Ctrl-C (or SIGTERM) asks for the end: the report so far is still made. A second one ends
    everything at once."""

    def __init__(self) -> None:
        self._asked = False
        self._at_once = False
        #: It was said twice.
        self.insisted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        return self._asked

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the end is asked for."""
        until = time.monotonic() + seconds
        while not self._asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block the first one ends what is done, too: a model that loads for minutes."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """In this block within `at_once` the first one waits for the block's end."""
        at_once, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = at_once
        if at_once and self._asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self._asked
        self._asked = True
        if self.insisted or self._at_once:
            raise KeyboardInterrupt
