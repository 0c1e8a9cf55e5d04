"""What does the log say of errors that are wherry's own?

The traceback of the first of each cause in a minute, as of a model's own errors, whoever's request
it was: no client can fill the log with them.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Hashable
from typing import Final

#: Seconds in which one cause is logged at most once.
INTERVAL = 60.0
#: Causes counted separately; all others count as one.
MOST = 64
#: Characters of a traceback that are logged: it may quote a request.
MOST_TRACEBACK = 16 << 10


class OncePerCause:
    """Limits how often a cause is logged. Pure: time is an argument. Not thread-safe."""

    def __init__(self, interval: float = INTERVAL, most: int = MOST) -> None:
        self.interval = interval
        self._most = most
        #: When each cause was logged, and how often it has occurred since.
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def came(self, cause: Hashable, now: float) -> int | None:
        """Count an occurrence. If it is to be logged, the number of occurrences since the last
        logged one; else None."""
        if cause not in self._logged and len(self._logged) >= self._most:
            self._forget(now)
            if len(self._logged) >= self._most:
                cause = None
        logged_at, more = self._logged.get(cause, (now - self.interval, 0))
        if now - logged_at < self.interval:
            self._logged[cause] = (logged_at, more + 1)
            return None
        self._logged[cause] = (now, 0)
        return more

    def untold(self) -> dict[Hashable, int]:
        """The number of occurrences not logged, by cause; resets them."""
        left = {cause: more for cause, (_, more) in self._logged.items() if more}
        self._logged = {cause: (logged_at, 0) for cause, (logged_at, _) in self._logged.items()}
        return left

    def _forget(self, now: float) -> None:
        """Forget causes without occurrences left to log."""
        self._logged = {
            cause: (logged_at, more)
            for cause, (logged_at, more) in self._logged.items()
            if more or now - logged_at < self.interval
        }


def cut(text: str, most: int) -> str:
    """Its begin and its end, if it is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"


log = logging.getLogger("wherry")


class _InternalErrors:
    """The log is the process's, and so is what it holds already. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._causes = OncePerCause()

    def came(self, error: BaseException) -> int | None:
        frames = traceback.extract_tb(error.__traceback__, -1)
        where = [(frame.filename, frame.lineno) for frame in frames]
        with self._lock:
            return self._causes.came((type(error), *where), time.monotonic())


_errors: Final = _InternalErrors()


def log_internal_error(error: BaseException, **fields: str) -> bool:
    """Log it with these fields; False if one like it was logged within a minute."""
    more = _errors.came(error)
    if more is None:
        return False
    if more:
        fields["like_it_before"] = str(more)
    text = "".join(traceback.format_exception(error)).rstrip()
    log.error("internal error", extra={**fields, "traceback": cut(text, MOST_TRACEBACK)})
    return True
