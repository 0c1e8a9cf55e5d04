"""In which ways are models served, that must make no difference to clients?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import wherry
from tests.fakes import until

#: Parameters of a fixture that gives each to `served`. Where every server of the tests has fronts,
#: there is one way.
WAYS: Sequence[Any] = (
    "one process",
    pytest.param("two fronts", marks=pytest.mark.slow),
    pytest.param("two owners", marks=pytest.mark.slow),
)[: 1 if os.environ.get("WHERRY_FRONTS") else None]


@contextmanager
def served(
    way: str,
    models: Callable[[], Sequence[Any]],
    warm: Callable[[wherry.Runtime], object] = lambda _: None,
) -> Iterator[wherry.Server]:
    """The server that clients call. `models` is called for each owner, and `warm` with each
    runtime that has loaded them."""
    with ExitStack() as stack:

        def started(*of: Any, **options: Any) -> wherry.Server:
            server = stack.enter_context(wherry.Server(*of, port=0, **options))
            if of:
                warm(server.runtime)
            return server

        if way == "two owners":
            owners = [started(*models(), rows_port=0) for _ in range(2)]
            front = started(replicas=",".join(owner.rows_address for owner in owners))
            pool = front.pool
            assert pool is not None
            # It is ready with its first owner: a later link would be a socket that a test made.
            until(lambda: all(one.state == "ready" for one in pool.replicas()))
            yield front
        else:
            yield started(*models(), fronts=2 if way == "two fronts" else 0)
