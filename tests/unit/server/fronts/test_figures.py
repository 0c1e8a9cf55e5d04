"""Are the figures of fronts summed right when fronts end, and when they do not answer?"""

import asyncio
from typing import Any

from wherry.core.observability.fronts import (
    BUCKETS,
    FrontFigures,
    LoopStall,
    ProcessFigures,
    of_all_loops,
)
from wherry.server.fronts.link_protocol import FrontMeasured, Measure
from wherry.server.fronts.processes import FiguresOfFronts


class FakeConnection:
    """Keeps what the owner sends; `tells` answers as the front would."""

    has_models = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.on_measured: Any = None

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def tells(self, refused: int, stalls: int) -> None:
        counts = [stalls] + [0] * len(BUCKETS)
        process = ProcessFigures(1.0, 2, 3)
        self.on_measured(FrontMeasured(FrontFigures(1, 0, refused, counts, 0.5, 0.1, process)))


def two_fronts() -> tuple[FiguresOfFronts, FakeConnection, FakeConnection]:
    figures, one, two = FiguresOfFronts(), FakeConnection(), FakeConnection()
    figures.begun(0, one)  # type: ignore[arg-type]
    figures.begun(1, two)  # type: ignore[arg-type]
    return figures, one, two


def test_one_question_is_for_all_that_wait_and_ends_with_the_last_answer() -> None:
    async def scrapes() -> list[str]:
        done: list[str] = []
        figures, one, two = two_fronts()
        figures.measure(lambda: done.append("first"))
        figures.measure(lambda: done.append("second"))
        assert one.sent == two.sent == [Measure()]
        one.tells(1, 1)
        assert not done
        two.tells(2, 1)
        return done

    assert asyncio.run(scrapes()) == ["first", "second"]


def test_a_front_is_silent_from_the_first_question_that_it_does_not_answer_until_it_does() -> None:
    async def ask(figures: FiguresOfFronts, answers: FakeConnection) -> None:
        ended = asyncio.Event()
        figures.measure(ended.set)
        answers.tells(1, 1)
        await ended.wait()

    async def watch() -> None:
        figures, one, two = two_fronts()
        assert figures.silent_for(0.0) == []
        await ask(figures, one)
        assert figures.silent_for(0.0) == [1]
        assert figures.silent_for(1000.0) == []
        two.tells(1, 1)  # late
        assert figures.silent_for(0.0) == []
        await ask(figures, two)
        assert figures.silent_for(0.0) == [0]
        figures.ended(0)
        assert figures.silent_for(0.0) == []

    asyncio.run(watch())


def test_a_front_that_is_silent_is_waited_for_for_a_moment_only() -> None:
    async def scrape() -> FiguresOfFronts:
        figures, one, _ = two_fronts()
        ended = asyncio.Event()
        figures.measure(ended.set)
        one.tells(1, 1)
        await ended.wait()
        return figures

    assert list(asyncio.run(scrape()).figures) == [0]


def test_a_scrape_ends_when_the_front_that_it_waits_for_does() -> None:
    async def scrape() -> list[str]:
        done: list[str] = []
        figures, one, _ = two_fronts()
        figures.measure(lambda: done.append("done"))
        one.tells(1, 1)
        figures.ended(1)
        return done

    assert asyncio.run(scrape()) == ["done"]


def test_no_counter_falls_when_a_front_is_replaced() -> None:
    figures, one, two = two_fronts()
    one.tells(5, 2)
    two.tells(7, 3)
    own = LoopStall()
    own.seconds.observe((0.0,))

    def counts() -> tuple[int, int, float]:
        whole = of_all_loops(0, own, figures)
        return whole.refused, whole.stalls.counts[0], whole.stalls.total

    before = counts()
    assert before == (12, 6, 1.0)
    figures.ended(0)
    assert (figures.restarts, figures.running) == (1, 1)
    assert counts() == before
