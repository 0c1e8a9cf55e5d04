"""How does the program that started a server learn that it is ready?

It reads the URL, and for an owner of fronts elsewhere a second line, `rows HOST:PORT`. systemd, of
a unit with Type=notify, gets a datagram at NOTIFY_SOCKET (sd_notify(3)).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from wherry.core.api import ConfigError


class ReadyPipe:
    """The descriptor that gets the lines and is then closed, or is closed without one.

    Without a descriptor only systemd is told.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def keep(self) -> None:
        """Keep it from worker processes. ConfigError if it is no descriptor."""
        if self._fd is None:
            return
        try:
            os.set_inheritable(self._fd, False)
        except OSError as error:
            fd, self._fd = self._fd, None
            raise ConfigError(f"ready_fd {fd}: {error.strerror}") from None

    def tell(self, url: str, *, to_systemd: bool = False) -> None:
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
    """Tell the service manager, if there is one. Never blocks; one that is gone is ignored.

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
