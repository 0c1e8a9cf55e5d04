"""What does the log say of errors that are wherry's own?

The traceback of the first of each cause in a minute, as of a model's own errors, whoever's request
it was: no client can fill the log with them.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from typing import Final

from wherry.core.observability.once import MOST_TRACEBACK, OncePerCause, cut

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
