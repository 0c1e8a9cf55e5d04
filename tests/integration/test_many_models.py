"""More models than fit, on a real server, with workers that are killed and clients that leave."""

from __future__ import annotations

import pytest

from benchmarks.many_models import run


@pytest.mark.slow
def test_no_request_is_lost_at_a_swap() -> None:
    found = run(seconds=8.0, clients=6, kills=3)
    assert (found["lost"], found["mixed up"], found["cut"]) == (0, 0, 0), found["errors"]
    assert found["answered"] > 20
    assert found["wakes"] > 3
