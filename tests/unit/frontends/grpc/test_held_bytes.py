"""frontends/grpc/held_bytes.py: few bytes are counted here alone, many are noted."""

from wherry.frontends.connections.held import FREE_BYTES
from wherry.frontends.grpc.held_bytes import HeldBytes


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
