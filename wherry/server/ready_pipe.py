"""How does the program that started a server learn that it is ready?"""

from __future__ import annotations

import contextlib
import os

from wherry.values.errors import ConfigError


class ReadyPipe:
    """The descriptor that gets the URL, and is closed then. Closed without it: there will be none.

    Without a descriptor every method does nothing.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def keep(self) -> None:
        """Keep it from workers, which would hold it open. ConfigError if it is no descriptor."""
        if self._fd is None:
            return
        try:
            os.set_inheritable(self._fd, False)
        except OSError as error:
            fd, self._fd = self._fd, None
            raise ConfigError(f"ready_fd {fd}: {error.strerror}") from None

    def tell(self, url: str) -> None:
        """Write the URL. A reader that is gone is no reason not to serve."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, f"{url}\n".encode())
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
