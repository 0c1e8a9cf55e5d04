"""server/grpc/frame_reader.py: bytes become frames, however they are cut."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.connections.held import HeldBytes
from wherry.server.grpc import frames
from wherry.server.grpc.call import Call
from wherry.server.grpc.frame_reader import (
    FRAME_BYTES,
    PLACED_BYTES,
    FrameReader,
    receive_buffer,
)
from wherry.server.grpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    ConnectionFault,
    frame,
    window_update,
)
from wherry.server.grpc.sender import FrameSender
from wherry.server.grpc.streams import Streams
from wherry.server.grpc.work import TURN_WORK, ClientWork, TurnBudget

BEGIN = PREFACE + frame(SETTINGS, 0, 0, b"")
MAX_HEADER_BYTES = 4000


class Taker(Call):
    """Takes the content of one stream. It goes into `into`, where there is such a place."""

    def __init__(self, sink: "Sink", stream_id: int) -> None:
        self.sink = sink
        self.id = stream_id

    def feed(self, data: memoryview, ends: bool) -> None:
        content = self.sink.content
        content[self.id] = content.get(self.id, b"") + bytes(data)
        if ends:
            self.half_close()

    def place(self) -> memoryview | None:
        return self.sink.into

    def placed(self, count: int, ends: bool) -> None:
        assert self.sink.into is not None
        self.feed(self.sink.into[:count], ends)

    def half_close(self) -> None:
        self.sink.told.append(("end_stream", self.id))


class Sink(Streams):
    """Writes down what it is told."""

    def __init__(self) -> None:
        transport = asyncio.Transport()
        self.sender = FrameSender(transport, HeldBytes(lambda count: False))
        self.told: list[tuple[object, ...]] = []
        self.content: dict[int, bytes] = {}
        self.into: memoryview | None = None

    def header_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        self.told.append(("header_block", stream_id, ends, block))

    def begin_data(self, stream_id: int, length: int) -> Call | None:
        self.told.append(("begin_data", stream_id, length))
        return Taker(self, stream_id)

    def window_update(self, stream_id: int, increment: int) -> None:
        self.told.append(("window_update", stream_id, increment))

    def reset_by_client(self, stream_id: int) -> None:
        self.told.append(("reset_by_client", stream_id))

    def settings(self, values: dict[int, int]) -> None:
        self.told.append(("settings", values))

    def ping(self, payload: bytes) -> None:
        self.told.append(("ping", payload))

    def pong(self, payload: bytes) -> None:
        self.told.append(("pong", payload))

    def stream_fault(self, stream_id: int, code: int) -> None:
        self.told.append(("stream_fault", stream_id, code))


class Source:
    """A reader with its sink, fed as a loop does it."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.work = ClientWork(TurnBudget())
        self.reader = FrameReader(self.sink, self.work, receive_buffer(), MAX_HEADER_BYTES)

    def feed(self, data: bytes, at_once: int = 10**9) -> "Source":
        while data:
            self.work.begin_turn()
            buffer = self.reader.buffer()
            count = min(len(buffer), at_once, len(data))
            buffer[:count] = data[:count]
            self.reader.received(count)
            data = data[count:]
        return self


MIXTURE = (
    frame(HEADERS, 0, 1, b"one")
    + frame(CONTINUATION, 0, 1, b" and")
    + frame(CONTINUATION, END_HEADERS, 1, b" two")
    + frame(DATA, 0, 1, b"content")
    + frame(PING, 0, 0, b"12345678")
    + frame(99, 0, 1, b"of some extension")
    + frame(DATA, PADDED, 1, b"\x05" + b"more" + bytes(5))
    + frame(DATA, PADDED, 1, b"\x03" + bytes(3))
    + window_update(0, 77)
    + frame(HEADERS, END_HEADERS | END_STREAM, 3, b"three")
    + frame(DATA, END_STREAM, 1, b"")
    + frames.reset(3, 8)
    + frame(PING, frames.ACK, 0, b"87654321")
)  # fmt: skip
TOLD: list[tuple[object, ...]] = [
    ("settings", {}),
    ("header_block", 1, False, b"one and two"),
    ("begin_data", 1, 7),
    ("ping", b"12345678"),
    ("begin_data", 1, 10),
    ("begin_data", 1, 4),
    ("window_update", 0, 77),
    ("header_block", 3, True, b"three"),
    ("begin_data", 1, 0),
    ("end_stream", 1),
    ("reset_by_client", 3),
    ("pong", b"87654321"),
]


@given(st.integers(1, 200))
def test_frames_are_the_same_however_they_are_cut(at_once: int) -> None:
    source = Source().feed(BEGIN + MIXTURE, at_once)
    assert source.sink.told == TOLD
    assert source.sink.content == {1: b"contentmore"}
    assert source.reader.is_between
    assert source.reader.unfinished is None


@given(st.integers(0, len(BEGIN + MIXTURE) - 1))
def test_what_has_begun_is_known_until_it_is_whole(end: int) -> None:
    data = BEGIN + MIXTURE
    source = Source().feed(data[:end])
    ends = {0, len(PREFACE)}  # between two frames nothing is half read
    position = len(PREFACE)
    while position < len(data):
        position += 9 + int.from_bytes(data[position : position + 3])
        ends.add(position)
    blocks = len(BEGIN) < end < len(BEGIN + MIXTURE[: MIXTURE.index(b"content") - 9])
    assert source.reader.is_between == (end in ends and not blocks)
    source.feed(data[end:])
    assert source.sink.told == TOLD


SETTINGS_FRAME = frame(SETTINGS, 0, 0, b"")
BLOCK = frame(HEADERS, 0, 1, b"a block")


@pytest.mark.parametrize(
    ("begun", "more", "rest"),
    [
        (b"", PREFACE, SETTINGS_FRAME),
        (PREFACE, SETTINGS_FRAME[:5], SETTINGS_FRAME[5:]),
        (BEGIN + BLOCK, frame(CONTINUATION, 0, 1, b""), frame(CONTINUATION, END_HEADERS, 1, b"")),
        (BEGIN + window_update(0, 7)[:10], window_update(0, 7)[10:11], window_update(0, 7)[11:]),
    ],
    ids=["the preface", "the first frame", "a header block", "a frame"],
)
def test_what_must_come_whole_is_one_thing_until_it_has(
    begun: bytes, more: bytes, rest: bytes
) -> None:
    source = Source().feed(begun)
    unfinished = source.reader.unfinished
    assert unfinished is not None
    assert source.feed(more).reader.unfinished is unfinished
    assert source.feed(rest).reader.unfinished is None


def test_many_bytes_of_data_go_straight_into_their_place() -> None:
    source = Source()
    source.feed(BEGIN + frames.head(3 * PLACED_BYTES, DATA, END_STREAM, 1))
    place = source.sink.into = memoryview(bytearray(10 * PLACED_BYTES))
    buffer = source.reader.buffer()
    assert buffer.obj is place.obj
    assert len(buffer) == 3 * PLACED_BYTES  # and nothing of the next frame
    buffer[: 2 * PLACED_BYTES + 1] = b"x" * (2 * PLACED_BYTES + 1)
    source.reader.received(2 * PLACED_BYTES + 1)
    assert source.reader.buffer().obj is not place.obj  # too few are left
    source.feed(b"y" * (PLACED_BYTES - 1))
    assert source.sink.content[1] == b"x" * (2 * PLACED_BYTES + 1) + b"y" * (PLACED_BYTES - 1)
    assert source.sink.told[-1] == ("end_stream", 1)


def test_a_buffer_that_was_not_filled_may_be_asked_for_again() -> None:
    source = Source()
    source.feed(BEGIN + frames.head(2 * PLACED_BYTES, DATA, 0, 1))
    source.sink.into = memoryview(bytearray(2 * PLACED_BYTES))
    source.reader.buffer()
    source.sink.into = None  # the call has ended meanwhile
    source.feed(b"x" * 10)
    assert source.sink.content[1] == b"x" * 10


def test_what_one_turn_does_not_read_waits_for_the_next() -> None:
    source = Source()
    source.feed(BEGIN)
    pings = TURN_WORK + 10
    source.feed(frame(PING, 0, 0, b"12345678") * pings)
    assert source.reader.unread
    seen = len(source.sink.told)
    buffer = source.reader.buffer()
    buffer[:17] = frame(PING, 0, 0, b"the last")
    source.reader.received(17)
    assert len(source.sink.told) == seen  # it is kept for the turn that is to come
    source.work.begin_turn()
    source.reader.read_on()
    assert not source.reader.unread
    assert source.sink.told[1:] == [("ping", b"12345678")] * pings + [("ping", b"the last")]


def test_a_sink_that_is_closed_is_told_nothing_more() -> None:
    source = Source()
    source.feed(BEGIN)
    source.sink.sender.closed = True
    source.feed(MIXTURE)
    assert source.sink.told == TOLD[:1]
    assert not source.reader.unread


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n12345678", frames.PROTOCOL_ERROR),
        (PREFACE + frame(PING, 0, 0, b"12345678"), frames.PROTOCOL_ERROR),
        (PREFACE + frame(SETTINGS, frames.ACK, 0, b""), frames.PROTOCOL_ERROR),
        (BEGIN + frames.head(FRAME_BYTES + 1, DATA, 0, 1), frames.FRAME_SIZE_ERROR),
        (BEGIN + frames.head(MAX_HEADER_BYTES + 1, HEADERS, 0, 1), frames.FRAME_SIZE_ERROR),
        (BEGIN + frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
        (BEGIN + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 4, 3, b""), frames.PROTOCOL_ERROR),
        (
            BEGIN + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(4000)) * 2,
            frames.ENHANCE_YOUR_CALM,
        ),
        (BEGIN + frame(DATA, PADDED, 1, b"\x05" + bytes(4)), frames.PROTOCOL_ERROR),
        (BEGIN + frame(DATA, 0, 1, b"") * 20_000, frames.ENHANCE_YOUR_CALM),
        (BEGIN + frame(99, 0, 0, b"") * 20_000, frames.ENHANCE_YOUR_CALM),
    ],
)
def test_a_client_that_breaks_the_protocol_is_read_no_further(data: bytes, code: int) -> None:
    with pytest.raises(ConnectionFault) as caught:
        Source().feed(data, 16_000)
    assert caught.value.code == code


def test_a_fault_within_a_stream_is_told_and_reading_goes_on() -> None:
    source = Source().feed(BEGIN + frame(frames.PRIORITY, 0, 1, b"") + window_update(0, 1))
    assert source.sink.told[1:] == [
        ("stream_fault", 1, frames.FRAME_SIZE_ERROR),
        ("window_update", 0, 1),
    ]
