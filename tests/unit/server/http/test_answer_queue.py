"""How do answers, given in any order, leave in the order of their requests?"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.http.raw import MemoryTransport
from wherry.server.connections.held import FREE_BYTES
from wherry.server.http.answer_queue import AnswerQueue, PipelinedExchange
from wherry.server.http.exchange import HttpRequest, RequestHead, plain_form
from wherry.server.http.wire import FirstLines, WholeHeads


@dataclass
class Conversation:
    """A connection, as far as exchanges know it."""

    transport: MemoryTransport = field(default_factory=MemoryTransport)
    unsent: list[int] = field(default_factory=list)
    limit: int = 10**9
    regulated: int = 0
    ends: bool = False

    def __post_init__(self) -> None:
        self.turn: list[Callable[[], None]] = []
        self.answers = AnswerQueue(self.transport, 2, self.note_unsent, self.turn.append)
        self.whole_heads = WholeHeads(FirstLines())
        self.refusal_form = plain_form

    def note_unsent(self, count: int) -> bool:
        self.unsent.append(count)
        return count > self.limit

    def ask(self, path: str = "/") -> PipelinedExchange:
        exchange = PipelinedExchange(HttpRequest(RequestHead("GET", path)), self, http10=False)
        self.answers.exchanges.append(exchange)
        return exchange

    def end_turn(self) -> None:
        """As the loop does: call what was to be called soon."""
        while self.turn:
            self.turn.pop(0)()

    def first_lines(self, status: int, content_type: str, exchange: PipelinedExchange) -> bytes:
        return b"%d\r\n" % status

    def answered(self, exchange: PipelinedExchange, rest: bytes = b"") -> None:
        self.answers.finish(exchange, rest)

    def close_after(self, exchange: PipelinedExchange) -> None:
        self.answers.drop_behind(exchange)

    def regulate(self) -> None:
        self.regulated += 1

    def abort(self) -> None:
        self.transport.abort()


@given(st.integers(1, 8), st.randoms(use_true_random=False))
def test_answers_leave_in_the_order_of_requests_whatever_order_they_are_given_in(
    count: int, dice: random.Random
) -> None:
    connection = Conversation()
    exchanges = [connection.ask(f"/{n}") for n in range(count)]
    unfinished = list(exchanges)
    while unfinished:
        exchange = dice.choice(unfinished)
        body = b"<%b>" % exchange.request.path.encode()
        if dice.random() < 0.5:
            exchange.respond(200, body)
        else:
            exchange.start(200)
            exchange.send(body)
            exchange.finish()
        unfinished.remove(exchange)
        if dice.random() < 0.5:
            connection.end_turn()
            assert not connection.answers.unsent_bytes
        written = bytes(connection.transport.written)
        places = [written.find(b"</%d>" % n) for n in range(count)]
        there = [place for place in places if place >= 0]
        assert there == sorted(there)
        assert places == there + [-1] * (count - len(there))
    assert len(there) == count
    assert not connection.answers.exchanges


def test_a_full_queue_is_one_with_too_many_answers_or_too_many_bytes() -> None:
    connection = Conversation(limit=100_000)
    first, second, third = (connection.ask() for _ in range(3))
    assert connection.answers.is_full
    first.respond(200)
    connection.end_turn()
    assert not connection.answers.is_full
    third.respond(200, 200_000 * b"x")
    assert connection.answers.is_full
    assert connection.regulated == 1
    second.respond(200)
    assert not connection.answers.is_full
    assert connection.unsent[-1] <= FREE_BYTES


def test_a_client_that_reads_nothing_is_asked_for_nothing_more_when_all_is_answered() -> None:
    connection = Conversation()
    exchange = connection.ask()
    connection.answers.writing_paused = True
    assert not connection.answers.is_full
    exchange.respond(200)
    assert connection.answers.is_full
    connection.answers.resume_writing()
    assert not connection.answers.is_full


def test_small_answers_are_not_counted() -> None:
    connection = Conversation()
    connection.ask()
    connection.ask().respond(200, (FREE_BYTES // 2) * b"x")
    assert connection.unsent == []
    assert connection.regulated == 0


def test_an_exchange_whose_answer_waits_is_congested_until_its_turn() -> None:
    connection = Conversation()
    first, second = connection.ask(), connection.ask()
    drained: list[bool] = []
    second.on_drain = lambda: drained.append(second.congested)
    second.start(200)
    second.send(b"early")
    assert second.congested
    first.respond(200)
    assert drained == [False]
    connection.end_turn()
    assert b"early" in connection.transport.written


def test_what_stands_behind_the_last_answer_is_told_that_the_client_left() -> None:
    connection = Conversation()
    first, second = connection.ask(), connection.ask()
    left: list[str] = []
    second.on_disconnect = lambda: left.append("second")
    first.be_the_last()
    assert left == ["second"]
    assert list(connection.answers.exchanges) == [first]


def test_a_client_that_leaves_holds_nothing_any_more() -> None:
    connection = Conversation()
    connection.ask()
    connection.ask().respond(200, 100_000 * b"x")
    assert connection.unsent[-1] > 100_000
    connection.answers.close()
    assert connection.unsent[-1] == 0
    assert not connection.answers.exchanges


def test_an_application_that_fails_within_a_stream_ends_the_connection() -> None:
    connection = Conversation()
    exchange = connection.ask()
    exchange.start(200)
    exchange.give_up()
    assert connection.transport.is_closing()
