"""How does the program that started a server learn that it is ready?

It reads the URL, and for an owner of fronts elsewhere a second line, `rows HOST:PORT`.
"""

from __future__ import annotations

import contextlib
import os

from wherry.values.errors import ConfigError


class ReadyPipe:
    """The descriptor that gets the lines and is then closed, or is closed without one.

    Without a descriptor every method does nothing.
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

    def tell(self, url: str, rows: str = "") -> None:
        """Write the URL, and the address for fronts if there is one, and close. A reader that is
        gone is ignored."""
        if self._fd is not None:
            lines = f"{url}\nrows {rows}\n" if rows else f"{url}\n"
            with contextlib.suppress(OSError):
                os.write(self._fd, lines.encode())
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
