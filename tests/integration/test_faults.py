"""Is nothing lost while processes and links of a server die? In short; the long form is
`python -m benchmarks.faults`."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.faults.__main__ import run

pytestmark = pytest.mark.full


@pytest.mark.parametrize("server", ["fronts", "pool"])
def test_nothing_is_lost_that_could_be_saved(server: str) -> None:
    (result,) = asyncio.run(run(20.0, seed=11, only=server))
    assert not result.wrong, "\n".join(result.wrong)
    assert sum(result.harm.values()) > 5
