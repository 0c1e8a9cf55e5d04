"""How do several instances of a model in one process share its weights?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """A value made by its first user and dropped by its last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._value: T | None = None

    def take(self, make: Callable[[], T]) -> T:
        """The value; the first caller makes it while others wait."""
        with self._lock:
            if self._value is None:
                self._value = make()
            self._users += 1
            return self._value

    @property
    def value(self) -> T:
        """The value, for a user between `take` and `give_back`."""
        assert self._value is not None
        return self._value

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._value = None
