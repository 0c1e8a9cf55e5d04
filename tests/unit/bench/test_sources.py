"""When a source sends, on which connection, and when it has no more to send."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from wherry.bench.connection import LoadConnection
from wherry.bench.plan import Closed, Rate
from wherry.bench.sources import LONGEST_PAUSE, PAUSE, Arrivals, Callers


class Sent:
    """A sender that writes down what it is told, and answers when the test says so."""

    def __init__(self, requests: float = float("inf")) -> None:
        self.requests = requests
        self.in_flight = 0
        self.sent: list[tuple[int, object]] = []
        self.calls: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []
        self.asked_if_over = 0

    def take(self) -> bool:
        if self.requests <= 0:
            return False
        self.requests -= 1
        return True

    def send(
        self, caller: int, connection: LoadConnection | None, intended: float | None = None
    ) -> None:
        self.in_flight += 1
        self.sent.append((caller, connection))

    def later(self, wait: float, call: Callable[..., None], *arguments: object) -> None:
        self.calls.append((wait, call, arguments))

    def end_if_over(self) -> None:
        self.asked_if_over += 1

    def answer(self, source: Callers | Arrivals, connection: LoadConnection) -> None:
        self.in_flight -= 1
        source.free(connection)

    def call_next(self) -> float:
        wait, call, arguments = self.calls.pop(0)
        call(*arguments)
        return wait


class Open(LoadConnection):
    """A connection that is open, or not, as the test says."""

    def __init__(self, caller: int = 0, *, is_open: bool = True) -> None:
        super().__init__(None, caller)
        self.transport = cast(Any, self) if is_open else None

    def is_closing(self) -> bool:
        return False


def arrivals(sender: Sent, connections: int = 2) -> Arrivals:
    """All that `sender` may send is due at once, if it begins a second ago."""
    load = Rate(rate=1000.0, arrivals="constant")
    return Arrivals(load, sender, seed=0, phase=0.0, connections=connections)


def test_a_caller_sends_again_on_its_own_connection_as_often_as_it_may() -> None:
    sender = Sent()
    callers = Callers(Closed(callers=2, loops=2), sender)
    callers.begin(0.0)
    assert sender.sent == [(0, None), (1, None)]
    own = Open(caller=1)
    sender.answer(callers, own)
    assert sender.sent[2:] == [(1, own)]
    sender.answer(callers, own)
    assert len(sender.sent) == 3
    assert sender.asked_if_over == 1
    assert not callers.exhausted  # caller 0 has one more
    sender.answer(callers, Open(caller=0))
    assert callers.exhausted


def test_a_caller_thinks_before_it_sends_again() -> None:
    sender = Sent()
    callers = Callers(Closed(callers=1, think=3.0), sender)
    callers.begin(0.0)
    sender.answer(callers, Open())
    assert len(sender.sent) == 1
    assert sender.call_next() == 3.0
    assert len(sender.sent) == 2


def test_a_caller_that_cannot_connect_tries_again_after_pauses_that_double() -> None:
    sender = Sent()
    callers = Callers(Closed(callers=1), sender)
    callers.begin(0.0)
    pauses = []
    for _ in range(7):
        callers.not_connected(0)
        pauses.append(sender.call_next())
    assert pauses[:3] == [PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
    callers.free(Open())
    callers.not_connected(0)
    assert sender.call_next() == PAUSE


def test_an_arrival_waits_for_a_connection_where_all_are_busy() -> None:
    async def main() -> None:
        sender = Sent(3)
        source = arrivals(sender)
        source.begin(perf_counter() - 1.0)
        try:
            assert (len(sender.sent), source.waiting) == (2, 1)
            first = Open()
            sender.answer(source, first)
            assert sender.sent[2:] == [(0, first)]
            assert source.waiting == 0
        finally:
            source.close()

    asyncio.run(main())


def test_an_arrival_that_waits_too_long_is_taken_out_with_its_moment() -> None:
    async def main() -> None:
        sender = Sent(3)
        source = arrivals(sender, connections=1)
        at = perf_counter() - 1.0
        source.begin(at)
        try:
            assert source.overdue(at + 0.0015) == [at + 0.001]
            assert source.waiting == 1
        finally:
            source.close()

    asyncio.run(main())


def test_an_idle_connection_that_was_lost_is_not_used() -> None:
    async def main() -> None:
        sender = Sent(2)
        source = arrivals(sender, connections=1)
        source.begin(perf_counter() - 1.0)
        try:
            lost, closed = Open(), Open(is_open=False)
            sender.answer(source, lost)  # sends the second request on it
            sender.answer(source, lost)
            source.lost(lost)
            sender.answer(source, closed)
            assert sender.sent == [(0, None), (0, lost)]
            assert source._idle == []
        finally:
            source.close()

    asyncio.run(main())


@given(
    connections=st.integers(1, 8),
    requests=st.integers(0, 30),
    answers=st.integers(0, 40),
)
def test_no_more_are_in_flight_than_connections_and_none_is_sent_twice(
    connections: int, requests: int, answers: int
) -> None:
    async def main() -> None:
        sender = Sent(requests)
        source = arrivals(sender, connections)
        source.begin(perf_counter() - 1.0)
        try:
            for _ in range(min(answers, len(sender.sent))):
                assert sender.in_flight <= connections
                sender.answer(source, Open())
            taken = requests - sender.requests
            assert len(sender.sent) + source.waiting == taken
        finally:
            source.close()

    asyncio.run(main())
