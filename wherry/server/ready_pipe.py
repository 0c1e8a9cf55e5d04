"""How does the program that started a server learn that it is ready?"""

from __future__ import annotations

import contextlib
import os

from wherry.values.errors import ConfigError


class ReadyPipe:
    """The descriptor that gets the URL and is then closed, or is closed without one.

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

    def tell(self, url: str) -> None:
        """Write the URL and close. A reader that is gone is ignored."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, f"{url}\n".encode())
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
