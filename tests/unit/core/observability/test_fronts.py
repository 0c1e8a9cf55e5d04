"""core/observability/fronts.py: a loop that is held up is seen."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from tests.fakes import ManualClock
from wherry.core.observability.fronts import IDLE_INTERVAL, INTERVAL, WINDOW, LoopStall


class Loop:
    """Keeps the one timer until the test fires it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.clock.now + delay, callback))

    def fire(self, late: float = 0.0) -> None:
        ((due, callback),) = self.timers
        self.timers.clear()
        self.clock.now = due + late
        callback()


def watched(idle: bool = False) -> tuple[LoopStall, Loop]:
    clock = ManualClock()
    loop, stall = Loop(clock), LoopStall(clock)
    stall.start(cast(Any, loop), lambda: idle)
    return stall, loop


def test_a_late_wake_up_is_a_stall() -> None:
    stall, loop = watched()
    loop.fire()
    loop.fire(late=0.3)
    loop.fire(late=0.004)
    assert abs(stall.longest - 0.3) < 1e-9
    assert sum(stall.seconds.counts) == 3
    assert stall.seconds.counts[stall.seconds.bounds.index(0.5)] == 1


def test_the_longest_stall_is_forgotten_after_two_windows() -> None:
    stall, loop = watched()
    loop.fire(late=0.3)

    def pass_a_window() -> None:
        ends = loop.clock.now + WINDOW
        while loop.clock.now <= ends:
            loop.fire()

    pass_a_window()
    assert stall.longest > 0.2
    pass_a_window()
    assert stall.longest < 1e-6


def test_an_idle_loop_is_woken_once_a_second() -> None:
    _, idle = watched(idle=True)
    _, busy = watched()
    assert idle.timers[0][0] == IDLE_INTERVAL
    assert busy.timers[0][0] == INTERVAL


def test_a_loop_that_a_test_holds_up_says_so() -> None:
    async def hold() -> float:
        stall = LoopStall()
        stall.start(asyncio.get_running_loop(), lambda: False)
        time.sleep(INTERVAL + 0.05)  # noqa: ASYNC251 - the stall that is to be seen
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stall.stop()
        return stall.longest

    assert asyncio.run(hold()) >= 0.04
