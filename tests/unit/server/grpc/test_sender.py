"""server/grpc/sender.py: small frames leave together, and streams share the client's windows."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.connections.held import HeldBytes
from wherry.server.grpc.frames import (
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    FLOW_CONTROL_ERROR,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ConnectionFault,
)
from wherry.server.grpc.sender import FRAME_BYTES, WRITE_BYTES, FrameSender


class Kernel(asyncio.Transport):
    """A transport that takes everything, and writes down the pieces. Without `eof` it cannot close
    one half."""

    def __init__(self, *, eof: bool = True) -> None:
        super().__init__()
        self.told: list[bytes | str] = []
        self.written = 0
        self.eof = eof

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.told.append(bytes(data))
        self.written += len(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return self.eof

    def write_eof(self) -> None:
        self.told.append("eof")

    def close(self) -> None:
        self.told.append("close")


class Stream:
    """Sends `size` bytes, and writes down the length of each frame."""

    def __init__(self, sender: FrameSender, turns: list["Stream"]) -> None:
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

    def write_some(self, most: int, frame_bytes: int) -> None:
        size = min(most, self.left)
        assert 0 < size <= self.window
        self.left -= size
        self.window -= size
        self.turns += [self] * -(-size // frame_bytes)
        self.sender.write_data([bytes(size)], size, size)


class Bench:
    def __init__(self, *, eof: bool = True) -> None:
        self.kernel = Kernel(eof=eof)
        self.unsent = HeldBytes(lambda count: False)
        self.sender = FrameSender(self.kernel, self.unsent)
        self.turns: list[Stream] = []

    def stream(self) -> Stream:
        return Stream(self.sender, self.turns)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_streams_take_turns_a_frame_at_a_time(bench: Bench) -> None:
    bench.sender.paused = True
    one, two = bench.stream(), bench.stream()
    one.send(3 * DEFAULT_FRAME_BYTES)
    two.send(2 * DEFAULT_FRAME_BYTES)
    assert bench.turns == []
    bench.sender.paused = False
    bench.sender.pump()
    assert bench.turns == [one, two, one, two]  # and the window of all is empty
    assert bench.kernel.written == DEFAULT_WINDOW


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
    bench.sender.apply({INITIAL_WINDOW_SIZE: 100}, [stream])
    assert stream.window == 100 - 1000
    assert bench.stream().window == 100
    with pytest.raises(ConnectionFault) as caught:
        bench.sender.apply({INITIAL_WINDOW_SIZE: MAX_WINDOW}, [bench.stream(), _wide(bench)])
    assert caught.value.code == FLOW_CONTROL_ERROR


def _wide(bench: Bench) -> Stream:
    stream = bench.stream()
    stream.window = MAX_WINDOW
    return stream


def test_there_is_room_for_what_windows_transport_and_frames_take(bench: Bench) -> None:
    sender = bench.sender
    assert sender.room(10) == 10
    assert sender.room(MAX_WINDOW) == DEFAULT_FRAME_BYTES
    sender.apply({MAX_FRAME_SIZE: 2**20}, [])
    assert sender.room(MAX_WINDOW) == DEFAULT_WINDOW < FRAME_BYTES
    sender.write_answer(bytes(60_000), 60_000)
    assert sender.room(MAX_WINDOW) == DEFAULT_WINDOW - 60_000
    bench.sender.paused = True
    assert sender.room(MAX_WINDOW) == 0


def test_a_change_of_the_clients_table_is_answered_in_the_next_head(bench: Bench) -> None:
    bench.sender.apply({HEADER_TABLE_SIZE: 0}, [])
    assert bench.sender.room(1000) == 0  # as what is sent in one go has no place for it
    for _ in range(2):
        bench.sender.write_headers(1, 0, b"block")
    assert [b"\x20block" in told for told in bench.kernel.told] == [True, False]
    assert bench.sender.room(1000) == 1000


def test_a_stream_that_is_forgotten_writes_no_more(bench: Bench) -> None:
    bench.sender.paused = True
    gone, other = bench.stream(), bench.stream()
    gone.send(10)
    other.send(10)
    bench.sender.forget(gone, 10)
    assert bench.unsent.count == 10
    bench.sender.paused = False
    bench.sender.pump()
    assert bench.turns == [other]


def test_nothing_is_sent_while_frames_are_read(bench: Bench) -> None:
    bench.sender.corked = True
    stream = bench.stream()
    stream.send(10)
    assert stream.left == 10
    bench.sender.uncork()
    assert stream.left == 0


def test_what_is_written_while_corked_leaves_in_one_piece(bench: Bench) -> None:
    sender = bench.sender
    sender.write(b"1")
    sender.corked = True
    sender.write(b"2")
    sender.write(b"3")
    assert bench.kernel.told == [b"1"]
    sender.uncork()
    assert bench.kernel.told == [b"1", b"23"]
    assert sender.written == 3


def test_no_more_than_so_much_is_held_back(bench: Bench) -> None:
    bench.sender.corked = True
    for _ in range(3):
        bench.sender.write(bytes(WRITE_BYTES // 2))
    assert bench.kernel.told == [bytes(WRITE_BYTES)]


@pytest.mark.parametrize(("eof", "end"), [(True, "eof"), (False, "close")])
def test_the_end_comes_behind_what_was_held_back_and_nothing_behind_it(eof: bool, end: str) -> None:
    bench = Bench(eof=eof)
    bench.sender.corked = True
    bench.sender.write(b"the last")
    bench.sender.finish()
    bench.sender.finish()
    bench.sender.write(b"too late")
    bench.stream().send(10)
    bench.sender.uncork()
    assert bench.kernel.told == [b"the last", end]
    assert bench.sender.written == 8


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
            bench.sender.apply({INITIAL_WINDOW_SIZE: amount}, streams)
        elif what == "pause":
            bench.sender.paused = not bench.sender.paused
        else:
            bench.sender.forget(stream, stream.left)
            asked, stream.left = asked - stream.left, 0
        bench.sender.pump()
        written = bench.kernel.written
        assert written <= granted
        assert bench.unsent.count == asked - written == sum(stream.left for stream in streams)
        if not bench.sender.paused and written < granted:
            assert [stream for stream in streams if stream.left and stream.window > 0] == []
