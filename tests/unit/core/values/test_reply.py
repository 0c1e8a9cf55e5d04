"""Does a request end exactly once, whoever comes first?"""

import threading

import pytest

from tests.fakes import TIMEOUT, threads
from wherry.core.values.errors import Cancelled
from wherry.core.values.reply import LIMIT_BYTES, WINDOW_BYTES, Reply, StreamReply


@pytest.mark.usefixtures("_threads_switch_often")
@pytest.mark.parametrize("stream", [False, True])
def test_of_eight_threads_that_settle_at_once_exactly_one_is_first(stream: bool) -> None:
    rounds = 300
    told: list[list[object]] = [[] for _ in range(rounds)]
    won: list[list[int]] = [[] for _ in range(rounds)]
    replies: list[Reply[int]] = [
        StreamReply(lambda *_: None, lambda reply, n=n: told[n].append(reply.outcome))  # type: ignore[misc] # mypy: defaults
        if stream
        else Reply(lambda reply, n=n: told[n].append(reply.outcome))  # type: ignore[misc] # mypy: defaults
        for n in range(rounds)
    ]

    def settle_all(number: int) -> None:
        for n, reply in enumerate(replies):
            if reply.settle(number):
                won[n].append(number)

    with threads(8, settle_all):
        pass
    assert all(len(winners) == 1 for winners in won)
    assert told == won
    assert [reply.result() for reply in replies] == [winners[0] for winners in won]


def test_a_late_outcome_is_refused_and_changes_nothing() -> None:
    told: list[object] = []
    reply: Reply[int] = Reply(lambda reply: told.append(reply.outcome))
    assert not reply.settled
    assert reply.settle(1)
    assert reply.settled
    assert not reply.settle(2)
    assert not reply.settle(Cancelled("too late"))
    assert (reply.result(), told) == (1, [1])


def test_an_error_is_raised_as_the_result() -> None:
    reply: Reply[int] = Reply(lambda _: None)
    error = Cancelled("gone")
    reply.settle(error)
    with pytest.raises(Cancelled) as raised:
        reply.result()
    assert raised.value is error


def test_who_claims_a_reply_is_the_one_who_may_deliver() -> None:
    told: list[object] = []
    reply: Reply[int] = Reply(lambda reply: told.append(reply.outcome))
    assert reply.claim()
    assert reply.settled
    assert told == []
    assert not reply.claim()
    assert not reply.settle(2)
    reply.deliver(1)
    assert (reply.result(), told) == (1, [1])


class Stream:
    """A stream reply whose responses are collected."""

    def __init__(self, *, window: int, limit: int) -> None:
        self.responses: list[int] = []
        self.reply: StreamReply[int] = StreamReply(
            lambda _, response: self.responses.append(response),
            lambda _: None,
            window=window,
            limit=limit,
        )


def test_responses_come_in_order_before_the_outcome() -> None:
    stream = Stream(window=10, limit=10)
    assert all(stream.reply.send(n) for n in range(5))
    stream.reply.settle(99)
    assert stream.responses == [0, 1, 2, 3, 4]
    assert stream.reply.result() == 99


def test_nothing_is_sent_to_a_caller_who_is_gone() -> None:
    stream = Stream(window=10, limit=10)
    stream.reply.settle(Cancelled("gone"))
    assert not stream.reply.send(1)
    assert stream.responses == []


def test_a_sender_that_does_not_wait_goes_on_to_the_limit_and_no_further() -> None:
    stream = Stream(window=2, limit=4)
    assert [stream.reply.send(n) for n in range(5)] == [True] * 4 + [False]
    assert stream.responses == [0, 1, 2, 3]
    stream.reply.consumed()
    assert stream.reply.send(5)


def patiently(reply: StreamReply[int], response: int) -> bool:
    """As the dispatcher does it for a lone reader."""
    assert reply.wait_for_room(TIMEOUT)
    return reply.send(response, lone=True)


def test_unread_responses_are_bounded_in_bytes_too() -> None:
    """Measured from the second one on: a reader that keeps up costs nothing."""
    stream = Stream(window=100, limit=1000)
    stream.reply.measure = lambda response: response
    assert stream.reply.send(10 * LIMIT_BYTES)
    assert stream.reply.wait_for_room(0)
    assert stream.reply.send(WINDOW_BYTES)
    assert not stream.reply.wait_for_room(0)
    assert not stream.reply.send(1, lone=True)
    assert stream.reply.send(LIMIT_BYTES - WINDOW_BYTES - 1)
    assert stream.reply.send(1)
    assert not stream.reply.send(0)
    assert (stream.reply.unread, len(stream.responses)) == (4, 4)
    stream.reply.consumed()
    assert not stream.reply.send(0)
    stream.reply.consumed()
    assert stream.reply.send(0)
    for _ in range(3):
        stream.reply.consumed()
    assert stream.reply.wait_for_room(0)


def test_a_reader_that_keeps_up_is_not_measured() -> None:
    stream = Stream(window=2, limit=2)
    stream.reply.measure = lambda response: 1 // 0
    for n in range(5):
        assert stream.reply.send(n)
        stream.reply.consumed()


def test_a_sender_does_not_wait_for_ever() -> None:
    stream = Stream(window=1, limit=10)
    assert patiently(stream.reply, 1)
    assert not stream.reply.wait_for_room(0.001)
    assert not stream.reply.send(2, lone=True)


class _Wait:
    """Says when the sender waits for its reader."""

    def __init__(self, reply: StreamReply[int]) -> None:
        self.waits = threading.Event()
        condition = reply._changed
        wait = condition.wait

        def told(timeout: float | None = None) -> bool:
            self.waits.set()
            return wait(timeout)

        condition.wait = told  # type: ignore[method-assign] # the one place where a sender waits


def test_a_sender_waits_for_a_slow_reader_and_goes_on_when_one_response_is_read() -> None:
    stream = Stream(window=2, limit=10)
    sender = _Wait(stream.reply)
    sent: list[bool] = []
    with threads(1, lambda _: sent.extend(patiently(stream.reply, n) for n in range(3))):
        assert sender.waits.wait(TIMEOUT)
        assert stream.responses == [0, 1]
        stream.reply.consumed()
    assert sent == [True] * 3
    assert stream.responses == [0, 1, 2]


def test_a_sender_that_waits_is_woken_when_the_reader_leaves() -> None:
    stream = Stream(window=1, limit=10)
    sender = _Wait(stream.reply)
    sent: list[bool] = []
    with threads(1, lambda _: sent.extend(patiently(stream.reply, n) for n in range(2))):
        assert sender.waits.wait(TIMEOUT)
        stream.reply.settle(Cancelled("the reader left"))
    assert sent == [True, False]
    assert stream.responses == [0]
