"""frontends/grpc/response_sender.py: streams share the client's windows, in turn."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.frontends.grpc.frame_writer import FrameWriter
from wherry.frontends.grpc.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    FLOW_CONTROL_ERROR,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ConnectionFault,
)
from wherry.frontends.grpc.held_bytes import HeldBytes
from wherry.frontends.grpc.response_sender import WRITE_BYTES, ResponseSender


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
    """Sends `size` bytes, and writes down the length of each frame."""

    def __init__(self, sender: ResponseSender, turns: list["Stream"]) -> None:
        self.sender = sender
        self.window = sender.initial_window
        self.left = 0
        self.turns = turns

    def send(self, size: int) -> None:
        self.left += size
        self.sender.wait(self, size)

    @property
    def has_more(self) -> bool:
        return self.left > 0

    def write_some(self, most: int) -> None:
        size = min(most, self.left)
        assert 0 < size <= self.window
        self.left -= size
        self.window -= size
        self.turns.append(self)
        self.sender.write_data([bytes(size)], size)


class Bench:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.writer = FrameWriter(self.kernel)
        self.unsent = HeldBytes(lambda count: False)
        self.sender = ResponseSender(self.writer, self.unsent)
        self.turns: list[Stream] = []

    def stream(self) -> Stream:
        return Stream(self.sender, self.turns)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_streams_take_turns_a_frame_at_a_time(bench: Bench) -> None:
    bench.writer.paused = True
    one, two = bench.stream(), bench.stream()
    one.send(3 * DEFAULT_FRAME_BYTES)
    two.send(2 * DEFAULT_FRAME_BYTES)
    assert bench.turns == []
    bench.writer.paused = False
    bench.sender.pump()
    assert bench.turns == [one, two, one, two]  # and the window of all is empty
    assert len(bench.kernel.written) == DEFAULT_WINDOW


def test_a_stream_without_a_window_lets_others_go_on(bench: Bench) -> None:
    narrow, wide = bench.stream(), bench.stream()
    narrow.window = 10
    narrow.send(100)
    wide.send(1000)
    assert (narrow.left, wide.left) == (90, 0)
    narrow.window += 90
    bench.sender.wake(narrow)
    bench.sender.pump()
    assert narrow.left == 0
    assert bench.unsent.count == 0


def test_what_waits_goes_on_when_the_window_of_all_grows(bench: Bench) -> None:
    streams = [bench.stream() for _ in range(3)]
    for stream in streams:
        stream.send(50_000)
    assert bench.unsent.count == 150_000 - DEFAULT_WINDOW
    bench.sender.widen(MAX_WINDOW)
    bench.sender.pump()
    assert bench.unsent.count == 0
    with pytest.raises(ConnectionFault) as caught:
        bench.sender.widen(MAX_WINDOW)
    assert caught.value.code == FLOW_CONTROL_ERROR


def test_settings_change_the_windows_of_all_streams_below_zero_too(bench: Bench) -> None:
    stream = bench.stream()
    stream.send(1000)
    bench.sender.set({INITIAL_WINDOW_SIZE: 100}, [stream])
    assert stream.window == 100 - 1000
    assert bench.stream().window == 100
    with pytest.raises(ConnectionFault) as caught:
        bench.sender.set({INITIAL_WINDOW_SIZE: MAX_WINDOW}, [bench.stream(), _wide(bench)])
    assert caught.value.code == FLOW_CONTROL_ERROR


def _wide(bench: Bench) -> Stream:
    stream = bench.stream()
    stream.window = MAX_WINDOW
    return stream


def test_there_is_room_for_what_windows_transport_and_frames_take(bench: Bench) -> None:
    sender = bench.sender
    assert sender.room(10) == 10
    assert sender.room(MAX_WINDOW) == DEFAULT_FRAME_BYTES
    sender.set({MAX_FRAME_SIZE: 2**20}, [])
    assert sender.room(MAX_WINDOW) == DEFAULT_WINDOW < WRITE_BYTES
    sender.answer([bytes(60_000)], 60_000)
    assert sender.room(MAX_WINDOW) == DEFAULT_WINDOW - 60_000
    bench.writer.paused = True
    assert sender.room(MAX_WINDOW) == 0


def test_a_change_of_the_clients_table_is_answered_in_the_next_head(bench: Bench) -> None:
    bench.sender.set({HEADER_TABLE_SIZE: 0}, [])
    assert bench.sender.room(1000) == 0  # as what is sent in one go has no place for it
    for _ in range(2):
        bench.sender.write_headers(1, 0, b"block")
    assert bytes(bench.kernel.written).count(b"\x20block") == 1
    assert bench.sender.room(1000) == 1000


def test_a_stream_that_is_forgotten_writes_no_more(bench: Bench) -> None:
    bench.writer.paused = True
    gone, other = bench.stream(), bench.stream()
    gone.send(10)
    other.send(10)
    bench.sender.forget(gone, 10)
    assert bench.unsent.count == 10
    bench.writer.paused = False
    bench.sender.pump()
    assert bench.turns == [other]


def test_nothing_is_sent_while_frames_are_read(bench: Bench) -> None:
    bench.writer.corked = True
    stream = bench.stream()
    stream.send(10)
    assert stream.left == 10
    bench.writer.uncork()
    bench.sender.pump()
    assert stream.left == 0


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "stream window", "window", "initial", "pause", "forget"]),
        st.integers(0, 3),
        st.integers(1, 100_000),
    )
)


@given(STEPS)
def test_no_window_is_overrun_and_no_byte_lost_whatever_happens(steps: list[Step]) -> None:
    bench = Bench()
    streams = [bench.stream() for _ in range(4)]
    asked, granted = 0, DEFAULT_WINDOW
    for what, which, amount in steps:
        stream = streams[which]
        if what == "send":
            asked += amount
            stream.send(amount)
        elif what == "stream window":
            stream.window += amount
            bench.sender.wake(stream)
        elif what == "window":
            granted += amount
            bench.sender.widen(amount)
        elif what == "initial":
            bench.sender.set({INITIAL_WINDOW_SIZE: amount}, streams)
        elif what == "pause":
            bench.writer.paused = not bench.writer.paused
        else:
            bench.sender.forget(stream, stream.left)
            asked, stream.left = asked - stream.left, 0
        bench.sender.pump()
        written = len(bench.kernel.written)
        assert written <= granted
        assert bench.unsent.count == asked - written == sum(stream.left for stream in streams)
        if not bench.writer.paused and written < granted:
            assert [stream for stream in streams if stream.left and stream.window > 0] == []
