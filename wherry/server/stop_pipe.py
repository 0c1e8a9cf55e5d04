"""How does a server learn that the program that started it has ended?"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from wherry.core.api import ConfigError


class StopPipe:
    """The descriptor of a pipe or socket whose other end that program holds.

    Without a descriptor every method does nothing.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Call `ended` once, when the other end is closed. In the loop. ConfigError if it is not a
        descriptor that can be waited for."""
        if self._fd is None:
            return
        fd = self._fd
        try:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)
            loop.add_reader(fd, self._read, ended)
        except OSError as error:
            self._fd = None
            raise ConfigError(f"stop_fd {fd}: {error.strerror}") from None
        self._loop = loop

    def close(self) -> None:
        """Watch no more."""
        if self._loop is not None and self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd = None

    def _read(self, ended: Callable[[], None]) -> None:
        assert self._fd is not None
        data = b""
        with contextlib.suppress(ConnectionError):
            try:
                data = os.read(self._fd, 4096)
            except BlockingIOError:
                return
        if not data:
            self.close()
            ended()
