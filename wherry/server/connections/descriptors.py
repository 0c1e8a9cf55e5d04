"""How many file descriptors may connections take?

The system gives each new one the lowest free number. A connection that gets one of the highest is
refused: those are for workers that start again, files that models open, and answers of refusal.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

#: Kept free: a quarter of the descriptors, and at most this many.
MOST_RESERVED = 128


def for_connections() -> int:
    """The lowest number that no connection may have unless another one makes room for it."""
    limit = _limits()[0]
    return limit - min(MOST_RESERVED, limit // 4)


def never_for_connections() -> int:
    """The lowest number that no connection may have, even if another one makes room for it: the
    newest keeps its own number, which is higher."""
    limit = _limits()[0]
    return limit - min(MOST_RESERVED, limit // 4) // 2


def raise_limit(connections: int) -> bool:
    """Raise the soft limit of open files as far as `connections` need it and the system allows.

    False if `connections` do not fit all the same."""
    soft, hard = _limits()
    # Each of several listeners may have `connections`.
    target = min(hard, max(soft, 4 * connections + 4 * MOST_RESERVED))
    if sys.platform != "win32" and target > soft:
        _, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, unchanged))
    return for_connections() > connections


def _limits() -> tuple[int, int]:
    if sys.platform == "win32":
        return sys.maxsize, sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = [sys.maxsize if one == resource.RLIM_INFINITY else one for one in (soft, hard)]
    return most[0], most[1]
