"""bench/child.py: a run that begins when it is told to."""

from __future__ import annotations

import asyncio
import time

import pytest

from wherry.bench.child import _until


def test_a_run_does_not_begin_early_where_timers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = 100.0

    async def early(seconds: float) -> None:
        nonlocal now
        asked.append(seconds)
        now += max(seconds / 2, 1e-6)

    monkeypatch.setattr(asyncio, "sleep", early)
    monkeypatch.setattr("wherry.bench.child.time.perf_counter", lambda: now)
    asyncio.run(_until(100.01))
    assert now >= 100.01
    assert len(asked) > 1


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    moment = time.perf_counter()
    asyncio.run(_until(moment))
    assert time.perf_counter() - moment < 5
