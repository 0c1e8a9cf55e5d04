"""In which ways are models served, that must make no difference to clients?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import wherry

#: Parameters of a fixture that gives each to `served`.
WAYS: Sequence[Any] = ("one process", pytest.param("two fronts", marks=pytest.mark.slow))


@contextmanager
def served(
    way: str,
    models: Callable[[], Sequence[Any]],
    warm: Callable[[wherry.Runtime], object] = lambda _: None,
) -> Iterator[wherry.Server]:
    """The server that clients call. `warm` is called with the runtime that has
    loaded the models."""
    server = wherry.Server(*models(), port=0, fronts=2 if way == "two fronts" else 0)
    with server:
        warm(server.runtime)
        yield server
