"""How do a server and the program that started it learn that the one is ready, the other has ended?

systemd, of a unit with Type=notify, gets a datagram at NOTIFY_SOCKET (sd_notify(3)).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping

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


class ReadyPipe:
    """The descriptor that gets the lines and is then closed, or is closed without one.

    Without a descriptor only systemd is notified.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def keep(self) -> None:
        """Keep it from worker processes. ConfigError if it is not a descriptor."""
        if self._fd is None:
            return
        try:
            os.set_inheritable(self._fd, False)
        except OSError as error:
            fd, self._fd = self._fd, None
            raise ConfigError(f"ready_fd {fd}: {error.strerror}") from None

    def report(self, url: str, *, to_systemd: bool = False) -> None:
        """Write the URL and close. A reader that is gone is ignored. `to_systemd`: this program may
        be the service that it waits for."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, f"{url}\n".encode())
        self.close()
        if to_systemd:
            notify(f"READY=1\nSTATUS=serving at {url}")

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def notify(state: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Notify the service manager, if there is one. Never blocks; one that is gone is ignored.

    Processes that are started afterwards do not know of it: they are not the service.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract one
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.setblocking(False)
        manager.sendto(state.encode(), address)
