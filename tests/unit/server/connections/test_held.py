"""server/connections/held.py: what connections hold, and which of them must go."""

import random

import numpy as np

from wherry.server.connections.held import (
    FREE_BYTES,
    GRAIN,
    KEPT_BYTES,
    LARGEST_BYTES,
    Held,
    HeldBytes,
    KeptBuffers,
)

LENGTH = 600_000


def place(buffer: memoryview) -> int:
    """Where a buffer lies in memory."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_a_buffer_that_nothing_refers_to_is_given_again() -> None:
    buffers = KeptBuffers()
    first = buffers.take(LENGTH)
    where = place(first)
    del first
    again = buffers.take(LENGTH - 1000)
    assert place(again) == where
    assert len(again) == LENGTH - 1000
    assert not again.readonly


def test_a_buffer_is_not_given_again_while_anything_refers_to_it() -> None:
    buffers = KeptBuffers()
    whole = buffers.take(LENGTH)
    part, array = whole[10:20], np.frombuffer(whole, np.float32)[5:]
    where = place(whole)
    del whole
    assert place(buffers.take(LENGTH)) != where
    del part
    assert place(buffers.take(LENGTH)) != where
    del array
    taken = [buffers.take(LENGTH) for _ in range(2)]
    assert where in {place(one) for one in taken}


def test_a_small_body_does_not_get_a_large_buffer() -> None:
    buffers = KeptBuffers()
    where = place(buffers.take(LENGTH))
    assert place(buffers.take(LENGTH // 3)) != where


def test_no_more_is_kept_than_the_bounds() -> None:
    buffers = KeptBuffers()
    held = [buffers.take(LENGTH) for _ in range(KEPT_BYTES // LENGTH + 10)]
    held.append(buffers.take(LARGEST_BYTES + 1))
    assert buffers._bytes <= KEPT_BYTES
    assert sum(buffer.nbytes for buffer in buffers._buffers) == buffers._bytes


def test_what_was_not_taken_between_two_trims_is_given_back() -> None:
    buffers = KeptBuffers()
    held = [buffers.take(LENGTH) for _ in range(3)]
    buffers.trim()
    assert "3 of" in repr(buffers)
    del held
    buffers.take(LENGTH)
    buffers.trim()
    assert "1 of" in repr(buffers)
    buffers.trim()
    assert "0 of 0 bytes" in repr(buffers)


K = FREE_BYTES


def held(limit: int = 10, connection_limit: int = 5) -> Held[str]:
    return Held(limit * K, connection_limit * K)


def test_a_little_is_not_counted() -> None:
    h = held()
    assert h.note("a", K, 0.0) == []
    assert h.total == 0
    assert h.note("a", K + 1, 0.0) == []
    assert h.total == K + 1
    assert repr(h) == f"<Held: {K + 1} of {10 * K} bytes by 1 connections>"
    assert h.note("a", K, 0.0) == []
    assert h.total == 0


def test_beyond_the_limit_the_one_with_the_oldest_bytes_goes() -> None:
    h = held()
    h.note("first", 4 * K, 1.0)
    h.note("second", 4 * K, 2.0)
    assert h.note("third", 3 * K, 3.0) == ["first"]
    assert h.total == 7 * K
    assert h.note("second", 9 * K, 4.0) == ["second"]
    assert h.total == 3 * K


def test_the_one_that_asks_for_more_may_be_the_one_that_goes() -> None:
    h = held()
    h.note("old", 9 * K, 1.0)
    assert h.note("old", 11 * K, 2.0) == ["old"]
    assert h.total == 0


def test_one_that_takes_what_it_is_given_stays_young() -> None:
    h = held()
    h.note("stalls", 4 * K, 5.0)
    for second in range(20):  # since 0.0, but never the same bytes
        h.note("reads", 5 * K, float(second))
        h.note("reads", 2 * K, second + 0.5)
    assert h.note("new", 5 * K, 20.0) == ["stalls"]


def test_a_byte_now_and_then_does_not_make_the_rest_younger() -> None:
    h = held()
    h.note("drips", 6 * K, 0.0)
    h.note("honest", 3 * K, 50.0)
    for second in range(60):
        h.note("drips", 6 * K - second, float(second))
    assert h.note("new", 3 * K, 60.0) == ["drips"]


def test_as_many_go_as_must() -> None:
    h = held()
    for n in range(4):
        h.note(f"{n}", 2 * K, float(n))
    assert h.note("large", 9 * K, 9.0) == ["0", "1", "2", "3"]


def test_one_beyond_its_own_limit_is_full_and_goes_when_it_takes_nothing() -> None:
    h = held()
    h.note("a", 5 * K, 0.0)
    h.note("b", 4 * K, 0.0)
    assert not h.is_full("a")
    h.note("a", 5 * K + 1, 1.0)
    assert h.is_full("a")
    assert not h.is_full("b")
    assert not h.is_full("never seen")
    assert h.stalled(29.0, 30.0) == []
    assert h.stalled(30.0, 30.0) == ["a"]
    h.note("a", 6 * K, 25.0)  # more is no progress
    assert h.stalled(30.0, 30.0) == ["a"]
    h.note("a", 6 * K - 1, 30.0)
    assert h.stalled(31.0, 30.0) == []
    h.forget("a")
    assert h.stalled(100.0, 30.0) == []


def test_the_total_is_what_each_holds_whatever_happens() -> None:
    dice = random.Random(1)
    h = held(40)
    holds: dict[str, int] = {}
    now = 0.0
    for _ in range(5000):
        now += dice.choice([0.0, GRAIN / 3, 1.0])
        who = dice.choice("abcdefgh")
        if dice.random() < 0.1:
            h.forget(who)
            holds.pop(who, None)
            continue
        holds[who] = dice.choice([0, K, K + 1, dice.randrange(20 * K)])
        for gone in h.note(who, holds[who], now):
            del holds[gone]
        assert h.total == sum(count for count in holds.values() if count > K) <= h.limit
        for account in h._accounts.values():
            assert account.waits_since <= now


def test_only_many_bytes_are_noted_and_that_they_are_many_no_more() -> None:
    noted: list[int] = []

    def note(count: int) -> bool:
        noted.append(count)
        return count > 2 * FREE_BYTES

    held = HeldBytes(note)
    held.add(FREE_BYTES)
    assert noted == []
    held.add(2 * FREE_BYTES)
    assert held.is_full
    held.add(-2 * FREE_BYTES)
    assert not held.is_full
    held.add(-FREE_BYTES)
    assert noted == [3 * FREE_BYTES, FREE_BYTES]
    assert held.count == 0


def test_nothing_is_noted_for_a_connection_that_is_gone() -> None:
    held = HeldBytes(lambda count: 1 // 0 > 0)
    held.close()
    held.add(10 * FREE_BYTES)
    assert held.count == 10 * FREE_BYTES
