"""What does the log say of a model's own errors?

The traceback of the first of each cause in a minute, and how many like it there were: callers get
the error's text only. A cause is the exception's type with the innermost line of the user's code.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wherry.core.observability.once import MOST_TRACEBACK, OncePerCause, cut

log = logging.getLogger("wherry")

#: Characters of an error's text that are logged: it may quote a request.
MOST_TEXT = 1 << 10

_LIBRARIES = ("/site-packages/", "/dist-packages/", "<frozen ")
_OURS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What failed, and where in the user's code."""

    error: str
    place: str = ""


class FailureLog:
    """Tells of the failures of one model version. Safe from any thread."""

    def __init__(self, model: str, version: str, clock: Callable[[], float]) -> None:
        self._fields = {"model": model, "version": version}
        self._clock = clock
        self._lock = threading.Lock()
        self._causes = OncePerCause()

    def tell(self, text: str, traceback: str, *, request_id: str = "", instance: str = "") -> None:
        """One request has failed with this."""
        cause = cause_of(traceback or text)
        with self._lock:
            more = self._causes.came(cause, self._clock())
        if more is None:
            return
        fields = {**self._fields, "instance": instance, "request_id": request_id}
        fields = {name: value for name, value in fields.items() if value}
        fields["why"] = cut(text, MOST_TEXT)
        if more:
            fields["like_it_before"] = str(more)
        if traceback:
            fields["traceback"] = cut(traceback.rstrip(), MOST_TRACEBACK)
        log.error("model failed", extra=fields)

    def close(self) -> None:
        """Tell how many there were that nothing was said of."""
        with self._lock:
            left = self._causes.untold()
        for cause, more in left.items():
            fields = {**self._fields, "like_it": str(more)}
            if isinstance(cause, Cause):
                fields |= {"why": cause.error, "place": cause.place}
            log.error("model failed more often", extra=fields)


def cause_of(text: str) -> Cause:
    """By the first exception of a traceback: in a chain, what began it.

    Reads no further than to the exception's name: what stands behind that may be a client's.
    """
    place = library = ""
    for line in _lines(text):
        if line.startswith('  File "'):
            if any(part in line for part in _LIBRARIES) or line.startswith(_OURS, 8):
                library = line
            else:
                place = line
        elif not line.startswith((" ", "Traceback (")):
            if not place and not library:  # no traceback: what says it begins with the model's name
                return Cause(":".join(line.split(":", 2)[:2])[:200])
            return Cause(line.partition(":")[0][:200], (place or library).strip()[:500])
    return Cause("", (place or library).strip()[:500])


def _lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start : min(end, start + 1000)]
        start = end + 1
