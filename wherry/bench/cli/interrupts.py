"""How does `wherry bench` end: by Ctrl-C, by an error, and with which exit code?"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from wherry.core.api import ConfigError, WherryError

MISSED = 1
NOT_MEASURED = 2
INTERRUPTED = 130


class Interrupts:
    """Handlers of Ctrl-C and SIGTERM: the first asks for the end, and the report so far is still
    made; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._requested = False
        self._at_once = False
        #: Whether the end was asked for twice.
        self.insisted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        return self._requested

    def wait(self, seconds: float) -> None:
        """Sleep, until the end is asked for."""
        until = time.monotonic() + seconds
        while not self._requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Have the first signal raise in this block, too: a model may load for minutes."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """Have the first signal raise only at the end of this block, within one of `at_once`."""
        at_once, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = at_once
        if at_once and self._requested:
            raise KeyboardInterrupt

    @contextmanager
    def kept(self, failures: list[str], measured: Callable[[], bool]) -> Iterator[None]:
        """End this block at an error or a signal, and go on with what has been measured by then.

        The error's text is added to `failures`. ConfigError if nothing is `measured`."""
        try:
            yield
        except WherryError as error:
            if isinstance(error, ConfigError) and not measured():
                raise
            failures.append(str(error))
        except KeyboardInterrupt:
            if self.insisted:
                raise

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.insisted = self._requested
        self._requested = True
        if self.insisted or self._at_once:
            raise KeyboardInterrupt


def exit_code(interrupts: Interrupts, not_measured: Iterable[str], missed: Iterable[str]) -> int:
    """Write what is wrong to stderr. Returns the process's exit code."""
    wrong = [*filter(None, not_measured)]
    for line in (*wrong, *missed):
        sys.stderr.write(f"wherry: {line}\n")
    if interrupts.requested():
        return INTERRUPTED
    return NOT_MEASURED if wrong else MISSED if missed else 0
