"""server/grpc/request_messages.py: the messages of one stream, without a connection."""

import asyncio
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.grpc.raw import looped, prefixed, turned
from wherry.core.values.datatypes import Buffer
from wherry.server.calls.offload import Offload
from wherry.server.connections.held import FREE_BYTES, HeldBytes, KeptBuffers
from wherry.server.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault
from wherry.server.grpc.request_messages import (
    MESSAGE_BYTES,
    PACKED_BYTES,
    MessageReading,
    RequestMessages,
)
from wherry.server.grpc.work import (
    CALL_WORK,
    MAX_NOISE,
    MAX_RESETS,
    TURN_WORK,
    ClientWork,
    TurnBudget,
)


@looped
async def test_each_turn_has_its_work_anew() -> None:
    budget = TurnBudget()
    assert budget.share == TURN_WORK
    budget.spend(TURN_WORK)
    assert budget.is_spent
    assert budget.share == CALL_WORK  # one call may always be begun
    await asyncio.sleep(0)
    assert not budget.is_spent
    assert budget.share == TURN_WORK


@looped
async def test_what_goes_on_in_the_next_turn_has_its_share_of_this_one() -> None:
    budget, called = TurnBudget(), list[int]()
    for n in range(3):
        budget.later(lambda n=n: called.append(n))  # type: ignore[misc]
    assert (budget.behind, called) == (3, [])
    assert budget.share == TURN_WORK // 4
    await asyncio.sleep(0)
    assert (budget.behind, called) == (0, [0, 1, 2])


@looped
async def test_the_work_of_a_read_is_spent_when_it_ends() -> None:
    budget = TurnBudget()
    work = ClientWork(budget)
    work.begin_turn()
    assert work.share == TURN_WORK
    work.done += 500
    budget.spend(work.done)
    assert budget.share == TURN_WORK - 500
    await asyncio.sleep(0)


def test_resets_and_noise_have_a_limit_each() -> None:
    work = ClientWork(TurnBudget())
    work.note_reset(MAX_RESETS)
    work.note_noise(MAX_NOISE)
    for note in (work.note_reset, work.note_noise):
        with pytest.raises(ConnectionFault) as caught:
            note()
        assert caught.value.code == ENHANCE_YOUR_CALM


def test_a_sweep_begins_to_count_anew() -> None:
    work = ClientWork(TurnBudget())
    for _ in range(3):
        work.note_reset(MAX_RESETS)
        work.note_noise(MAX_NOISE)
        work.sweep()


MAX_BYTES = 100_000


class Receiver:
    """A call that writes down what it gets."""

    def __init__(self, *, one: bool = False, coding: str = "identity", full: int = 10**9) -> None:
        self.ended = False
        self.got: list[bytes] = []
        self.ends = 0
        self.grants = 0
        self.refused = ""
        self.reading = MessageReading(MAX_BYTES, TurnBudget(), Offload(), KeptBuffers())
        self.received = HeldBytes(lambda count: count > full)
        self.messages = RequestMessages(self, coding, self.reading, self.received, one=one)

    def take_message(self, message: Buffer) -> None:
        self.got.append(bytes(message))

    def take_end(self) -> None:
        self.ends += 1

    def grant(self) -> None:
        self.grants += 1

    def refuse(self, code: str, text: str, metadata: object = ()) -> None:
        self.refused = code
        self.ended = True
        self.messages.cancel()

    def feed(self, data: bytes) -> None:
        self.messages.feed(memoryview(data))
        self.messages.recount()


@looped
async def test_a_stream_that_is_paused_gets_its_messages_and_its_end_later() -> None:
    call = Receiver()
    call.feed(prefixed(b"1"))
    call.messages.pause()
    call.feed(prefixed(b"2") + prefixed(b"3"))
    call.messages.end()
    assert (call.got, call.ends) == ([b"1"], 0)
    assert call.received.count == 2 * (1 + MESSAGE_BYTES)
    call.messages.resume()
    assert call.got == [b"1"]  # not at once
    await turned(lambda: call.ends == 1)
    assert call.got == [b"1", b"2", b"3"]
    assert call.received.count == 0


@looped
async def test_one_message_is_given_when_the_stream_has_ended() -> None:
    call = Receiver(one=True)
    call.feed(prefixed(b"all of it"))
    assert call.got == []
    assert call.received.count == 9
    call.messages.end()
    assert (call.got, call.ends, call.received.count) == ([b"all of it"], 1, 0)


@pytest.mark.parametrize(
    ("data", "ends", "code"),
    [
        (b"", True, "UNIMPLEMENTED"),
        (prefixed(b"1") + prefixed(b"2"), False, "UNIMPLEMENTED"),
        (prefixed(b"1")[:-1], True, "INTERNAL"),
        (prefixed(b"1", flag=1), False, "INTERNAL"),
        (prefixed(b"1", flag=7), False, "INTERNAL"),
        (b"\0" + (MAX_BYTES + 1).to_bytes(4), False, "RESOURCE_EXHAUSTED"),
    ],
    ids=["none", "two", "a part", "packed by nothing", "a flag", "too large"],
)
@looped
async def test_what_is_no_message_refuses_the_call_and_holds_nothing(
    data: bytes, ends: bool, code: str
) -> None:
    call = Receiver(one=True)
    call.feed(data)
    if ends:
        call.messages.end()
    assert (call.refused, call.got, call.received.count) == (code, [], 0)


@looped
async def test_more_than_its_connection_may_hold_refuses_the_call() -> None:
    call = Receiver(full=FREE_BYTES + 1)
    call.feed(prefixed(bytes(FREE_BYTES + 10))[:-9])
    assert call.refused == ""
    call.feed(b"x")
    assert call.refused == "RESOURCE_EXHAUSTED"
    assert call.received.count == 0


@looped
async def test_a_turn_hands_on_no_more_than_its_share() -> None:
    call = Receiver()
    most = TURN_WORK // CALL_WORK
    call.feed(prefixed(b"x") * (most + 3))
    assert len(call.got) == most
    assert call.messages.must_wait
    await turned(lambda: call.reading.turns.behind == 0)
    assert len(call.got) == most + 3
    assert not call.messages.must_wait
    assert call.grants == 1


@looped
async def test_a_call_that_is_stuck_is_known_by_what_it_holds() -> None:
    call = Receiver(one=True)
    assert not call.messages.is_stuck(0.0, 30.0)
    assert not call.messages.is_stuck(29.0, 30.0)
    call.feed(prefixed(b"123")[:6])
    assert not call.messages.is_stuck(30.0, 30.0)
    assert not call.messages.is_stuck(59.0, 30.0)
    assert call.messages.is_stuck(60.0, 30.0)


@looped
async def test_a_message_that_is_being_unpacked_is_not_stuck_and_holds_up_the_others() -> None:
    call = Receiver(coding="gzip")
    large = bytes(range(256)) * 390
    packed = gzip.compress(large, 0)
    assert len(packed) > PACKED_BYTES
    call.feed(prefixed(packed, flag=1) + prefixed(b"next"))
    assert call.got == []
    assert not call.messages.is_stuck(1e9, 1.0)
    await turned(lambda: len(call.got) == 2)
    assert call.got == [large, b"next"]
    assert call.received.count == 0


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.integers(1, 400),
    st.sets(st.integers(0, 50)),
)
def test_whenever_it_pauses_the_messages_and_their_end_come_in_order(
    texts: list[bytes], at_once: int, pauses: set[int]
) -> None:
    async def main() -> None:
        call = Receiver()
        data = b"".join(map(prefixed, texts))
        for n, begin in enumerate(range(0, len(data), at_once)):
            (call.messages.pause if n in pauses else call.messages.resume)()
            call.feed(data[begin : begin + at_once])
            if n % 3 == 0:
                await asyncio.sleep(0)
            assert call.got == texts[: len(call.got)]
        call.messages.end()
        call.messages.resume()
        await turned(lambda: call.ends == 1)
        assert call.got == texts
        assert call.received.count == 0
        await asyncio.sleep(0)
        assert call.ends == 1

    asyncio.run(main())
