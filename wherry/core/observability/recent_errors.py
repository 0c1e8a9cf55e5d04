"""What were the last errors of each kind, in bounded memory?"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wherry.core.values.errors import WherryError

#: Errors that are kept of each kind: a flood of one kind hides no other.
KEPT: Final = 4
#: Characters of a text that are kept: it may quote a request.
MOST_TEXT: Final = 1 << 10


class RecentError(NamedTuple):
    """One error. `at` is a Unix time in seconds."""

    at: float
    kind: type[WherryError]
    text: str
    #: How many there were of its kind since the load.
    times: int


@dataclass(slots=True)
class _ErrorKind:
    count: int = 0
    last: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))


class Failures(Counter[str]):
    """Failed requests by Triton's reason, and the texts of the last ones by the error's class.
    No lock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[type[WherryError], _ErrorKind] = {}

    def add(self, error: WherryError) -> None:
        self[error.reason] += 1
        kind = self._kinds.get(type(error)) or self._kinds.setdefault(type(error), _ErrorKind())
        kind.count += 1
        # Text only: an exception would keep alive what its traceback refers to.
        kind.last.append((time.time(), str(error)[:MOST_TEXT]))

    def last(self, most: int) -> list[RecentError]:
        """The last errors, newest first. A client that left is no error."""
        found = sorted(self._each(), key=lambda one: -one.at)
        return found[:most]

    def _each(self) -> Iterator[RecentError]:
        for kind, kept in self._kinds.items():
            if kind.reason != "CANCELED":
                for at, text in kept.last:
                    yield RecentError(at, kind, text, kept.count)
