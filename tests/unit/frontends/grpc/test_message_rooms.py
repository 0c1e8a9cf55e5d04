"""frontends/grpc/message_rooms.py: a room is used again once nothing refers to it."""

import numpy as np
import pytest

from wherry.frontends.grpc.message_rooms import KEPT_BYTES, MAX_KEPT_BYTES, MessageRooms

SIZE = 2 * KEPT_BYTES


def address(room: memoryview) -> int:
    return np.frombuffer(room, np.uint8).ctypes.data


@pytest.fixture
def rooms() -> MessageRooms:
    return MessageRooms()


def test_a_free_room_is_used_again_for_as_much_or_a_little_less(rooms: MessageRooms) -> None:
    where = address(rooms.new(SIZE, whole=True))
    for size in (SIZE, SIZE - 1, SIZE // 2):
        room = rooms.kept(size)
        assert room is not None
        assert (address(room), len(room)) == (where, size)
        del room
    assert rooms.kept(SIZE + 1) is None
    assert rooms.kept(SIZE // 2 - 1) is None


@pytest.mark.parametrize(
    "use",
    [
        lambda room: room[5:10],
        lambda room: np.frombuffer(room, np.float32).reshape(2, -1),
        lambda room: np.frombuffer(room[4:8], np.uint8)[1:].view(np.int8),
        lambda room: [*np.frombuffer(room, np.float32).reshape(8, -1)][3],
        lambda room: np.frombuffer(room, np.uint8)[:10].data.cast("h"),
    ],
)
def test_a_room_is_not_free_while_anything_is_a_view_of_it(
    rooms: MessageRooms, use: object
) -> None:
    assert callable(use)
    view = use(rooms.new(SIZE, whole=True))
    assert rooms.kept(SIZE) is None
    del view
    assert rooms.kept(SIZE) is not None


def test_two_messages_at_once_have_a_room_each(rooms: MessageRooms) -> None:
    made = [rooms.new(SIZE, whole=True), rooms.new(SIZE, whole=True)]
    both = {address(room) for room in made}
    made.clear()
    taken = [room for room in (rooms.kept(SIZE), rooms.kept(SIZE)) if room is not None]
    assert {address(room) for room in taken} == both
    assert rooms.kept(SIZE) is None


def test_what_is_short_or_grows_or_is_too_much_is_not_kept(rooms: MessageRooms) -> None:
    rooms.new(KEPT_BYTES - 1, whole=True)
    assert rooms.kept(KEPT_BYTES - 1) is None
    rooms.new(SIZE, whole=False)
    assert rooms.kept(SIZE) is None
    rooms.new(MAX_KEPT_BYTES - 10, whole=True)
    rooms.new(SIZE, whole=True)
    assert rooms.kept(SIZE) is None


def test_rooms_that_are_used_no_more_are_forgotten_and_make_place(rooms: MessageRooms) -> None:
    rooms.new(SIZE, whole=True)
    rooms.new(MAX_KEPT_BYTES - SIZE, whole=True)
    rooms.sweep()
    assert rooms.kept(SIZE) is not None
    rooms.sweep()
    assert rooms.kept(MAX_KEPT_BYTES - SIZE) is None
    rooms.new(SIZE, whole=True)
    assert rooms.kept(SIZE) is not None
    rooms.sweep()
    rooms.sweep()
    assert rooms.kept(SIZE) is None
