"""server/grpc/response_messages.py: what one call sends, without a connection."""

import asyncio
from collections.abc import Iterable

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.grpc.raw import messages_in
from wherry.server.connections.held import HeldBytes
from wherry.server.grpc.frames import DEFAULT_WINDOW
from wherry.server.grpc.heads import trailers
from wherry.server.grpc.response_messages import JOINED_BYTES, OK, ResponseMessages
from wherry.server.grpc.sender import FrameSender


class Kernel(asyncio.Transport):
    """A transport that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))


class Stream:
    """The messages of one call, and what its client got."""

    def __init__(self, coding: str = "identity") -> None:
        self.kernel = Kernel()
        self.unsent = HeldBytes(lambda count: False)
        self.sender = FrameSender(self.kernel, self.unsent)
        self.messages = ResponseMessages(5, self.sender, coding)
        self.ends = 0

    def end(self) -> None:
        self.ends += 1

    def frames(self) -> list[Frame]:
        data, found = bytes(self.kernel.written), []
        while data:
            frame, length = Frame.parse_frame_header(memoryview(data[:9]))
            frame.parse_body(memoryview(data[9 : 9 + length]))
            assert frame.stream_id == 5
            found.append(frame)
            data = data[9 + length :]
        return found

    @property
    def got(self) -> list[bytes]:
        return messages_in(b"".join(f.data for f in self.frames() if isinstance(f, DataFrame)))

    def take(self, size: int) -> None:
        """The client gives room for more."""
        self.messages.window += size
        self.sender.widen(size)
        self.sender.wake(self.messages)
        self.sender.pump()


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_a_short_answer_is_written_whole(stream: Stream) -> None:
    assert stream.messages.respond((b"hel", b"lo"), stream.end)
    assert stream.got == [b"hello"]
    head, _, last = stream.frames()
    assert isinstance(head, HeadersFrame)
    assert isinstance(last, HeadersFrame)
    assert "END_STREAM" in last.flags
    assert stream.unsent.count == 0


@pytest.mark.parametrize("size", [JOINED_BYTES, JOINED_BYTES + 1, 2 * DEFAULT_WINDOW])
def test_an_answer_for_which_there_is_no_room_comes_in_frames(stream: Stream, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert not stream.messages.respond((b"begin", message, message), stream.end)
    while stream.ends == 0:
        stream.take(1000)
    assert stream.got == [b"begin" + message + message]
    assert "END_STREAM" in stream.frames()[-1].flags
    assert stream.unsent.count == 0


def test_a_call_without_a_message_has_one_header_block(stream: Stream) -> None:
    stream.messages.end(trailers("NOT_FOUND", "no such thing"), stream.end)
    (only,) = stream.frames()
    assert isinstance(only, HeadersFrame)
    assert "END_STREAM" in only.flags
    assert stream.ends == 1


def test_each_message_says_when_the_client_has_taken_it(stream: Stream) -> None:
    taken: list[int] = []
    stream.messages.window = 0
    for n in range(3):
        stream.messages.send((bytes(100),), lambda n=n: taken.append(n))  # type: ignore[misc]
    stream.take(105)
    assert taken == [0]
    stream.take(209)
    assert taken == [0, 1]
    assert stream.unsent.count == 1
    stream.take(1)
    assert taken == [0, 1, 2]


def test_what_is_dropped_holds_nothing_and_is_never_sent(stream: Stream) -> None:
    stream.messages.window = 10
    stream.messages.send((bytes(100),), None)
    stream.messages.end(OK, stream.end)
    assert stream.unsent.count == 95
    written = len(stream.kernel.written)
    stream.messages.drop()
    assert stream.unsent.count == 0
    assert not stream.messages.has_more
    stream.take(1000)
    assert len(stream.kernel.written) == written
    assert stream.ends == 0


@examples(2)
@given(
    st.lists(st.integers(0, 40_000), max_size=8),
    st.lists(st.integers(1, 50_000)),
    st.sampled_from(["identity", "gzip"]),
)
def test_messages_leave_in_order_and_the_end_behind_them(
    sizes: list[int], windows: list[int], coding: str
) -> None:
    stream = Stream(coding)
    stream.messages.window = 0
    for size in sizes:
        stream.messages.send((bytes(size),), None)
    stream.messages.end(OK, stream.end)
    for window in windows:
        stream.take(window)
        assert stream.ends == (not stream.messages.has_more)
    stream.take(400_000)
    assert stream.ends == 1
    assert stream.unsent.count == 0
    if coding == "identity":
        assert stream.got == [bytes(size) for size in sizes]
    assert len(stream.got) == len(sizes)
