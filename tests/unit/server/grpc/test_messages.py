"""server/grpc/messages.py"""

import asyncio
import zlib
from collections.abc import Iterable

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.grpc.raw import messages_in, prefixed
from wherry.server.connections.held import HeldBytes, KeptBuffers
from wherry.server.grpc.frames import DEFAULT_WINDOW
from wherry.server.grpc.heads import trailers
from wherry.server.grpc.messages import (
    JOINED_BYTES,
    OK,
    Assembly,
    BadMessage,
    Message,
    ResponseMessages,
    packed,
    unpacked,
)
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


@examples(2)
@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(1, 20), max_size=40))
def test_however_a_stream_is_cut_its_messages_are_the_same(
    texts: list[bytes], cuts: list[int]
) -> None:
    assembly = Assembly(50, KeptBuffers())
    data = b"".join(map(prefixed, texts))
    found: list[Message] = []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        place = assembly.place()
        if place is not None and len(piece) % 2:
            fits = piece[: len(place)]
            place[: len(fits)] = fits
            found += assembly.placed(len(fits))
            piece = piece[len(fits) :]
        found += assembly.feed(memoryview(piece))
    assert [(flag, bytes(message)) for flag, message in found] == [(False, t) for t in texts]
    assert assembly.between
    assert assembly.missing == 0


def test_a_message_says_what_it_lacks() -> None:
    assembly = Assembly(1000, KeptBuffers())
    assert list(assembly.feed(memoryview(b"\0\0"))) == []
    assert (assembly.between, assembly.missing) == (False, 0)
    assert list(assembly.feed(memoryview(b"\0\0\x0aab"))) == []
    assert (assembly.between, assembly.missing) == (False, 8)


def test_a_message_over_the_limit_is_refused_at_its_length() -> None:
    with pytest.raises(BadMessage, match=r"larger than max \(101 vs. 100 bytes\)"):
        list(Assembly(100, KeptBuffers()).feed(memoryview(b"\0\0\0\0\x65")))
    assert list(Assembly(100, KeptBuffers()).feed(memoryview(prefixed(bytes(100))))) == [
        (False, bytes(100))
    ]


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(BadMessage, match="larger than max") as caught:
        unpacked(bomb, "deflate", 1000)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert unpacked(zlib.compress(bytes(1000)), "deflate", 1000) == bytes(1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_packed_is_unpacked_again_and_short_ones_are_left(coding: str) -> None:
    text = b"text" * 1000
    prefix, (payload,), size = packed([text[:5], text[5:]], coding)
    assert prefix == bytes([1]) + len(payload).to_bytes(4)
    assert size == len(prefix) + len(payload)
    assert len(payload) < 1000
    assert unpacked(payload, coding, 4000) == text
    assert packed([b"short"], coding) == (b"\0\0\0\0\x05", [b"short"], 10)
    assert packed([text], "identity") == (b"\0\0\0\x0f\xa0", [text], 4005)
