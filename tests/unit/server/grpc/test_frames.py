"""server/grpc/frames.py: what it writes, read by another implementation."""

import pytest
from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.grpc import frames
from wherry.server.grpc.frames import ANNOUNCEMENT, GracefulShutdown, ShutdownPhase

SERVING, ANNOUNCED = ShutdownPhase.SERVING, ShutdownPhase.ANNOUNCED
REFUSING, CLOSED = ShutdownPhase.REFUSING, ShutdownPhase.CLOSED


def read(data: bytes) -> list[Frame]:
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


def test_the_first_goaway_names_no_call_and_asks_for_an_answer() -> None:
    goaway, ping = read(GracefulShutdown(0.0).announce(0.0))
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.last_stream_id == 2**31 - 1
    assert isinstance(ping, PingFrame)


def test_the_answer_to_its_ping_and_no_other_acknowledges_it() -> None:
    shutdown = GracefulShutdown(0.0)
    _, ping = read(shutdown.announce(0.0))
    assert isinstance(ping, PingFrame)
    assert not shutdown.is_acknowledged(b"keepaliv")
    assert shutdown.is_acknowledged(ping.opaque_data)
    (goaway,) = read(shutdown.refuse(7))
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.last_stream_id == 7
    assert not shutdown.is_acknowledged(ping.opaque_data)


def test_a_client_that_does_not_answer_is_waited_for_no_longer() -> None:
    shutdown = GracefulShutdown(0.0)
    assert not shutdown.is_overdue(1000.0)
    shutdown.announce(10.0)
    assert not shutdown.is_overdue(10.0 + 0.99 * ANNOUNCEMENT)
    assert shutdown.is_overdue(10.0 + ANNOUNCEMENT)
    shutdown.refuse(1)
    assert not shutdown.is_overdue(1000.0)


#: By phase and event: what is written, and the phase that follows.
TABLE = {
    (SERVING, "announce"): (2, ANNOUNCED), (SERVING, "refuse"): (1, REFUSING),
    (SERVING, "close"): (0, CLOSED),
    (ANNOUNCED, "announce"): (0, ANNOUNCED), (ANNOUNCED, "refuse"): (1, REFUSING),
    (ANNOUNCED, "close"): (0, CLOSED),
    (REFUSING, "announce"): (0, REFUSING), (REFUSING, "refuse"): (0, REFUSING),
    (REFUSING, "close"): (0, CLOSED),
    (CLOSED, "announce"): (0, CLOSED), (CLOSED, "refuse"): (0, CLOSED),
    (CLOSED, "close"): (0, CLOSED),
}  # fmt: skip


def act(shutdown: GracefulShutdown, event: str, now: float) -> int:
    """Do it; returns how many frames it writes."""
    if event == "announce":
        return len(read(shutdown.announce(now)))
    if event == "refuse":
        return len(read(shutdown.refuse(1)))
    shutdown.close(now)
    return 0


@pytest.mark.parametrize("phase", ShutdownPhase)
@pytest.mark.parametrize("event", ["announce", "refuse", "close"])
def test_each_event_in_each_phase(phase: ShutdownPhase, event: str) -> None:
    shutdown = GracefulShutdown(0.0)
    for step in {SERVING: (), ANNOUNCED: ("announce",), REFUSING: ("refuse",), CLOSED: ("close",)}[
        phase
    ]:
        act(shutdown, step, 0.0)
    assert shutdown.phase is phase
    assert (act(shutdown, event, 1.0), shutdown.phase) == TABLE[phase, event]


@given(st.lists(st.sampled_from(["announce", "refuse", "close"])))
def test_whatever_happens_the_client_hears_of_the_last_call_at_most_once(events: list[str]) -> None:
    shutdown = GracefulShutdown(0.0)
    phases = list(ShutdownPhase)
    finals = 0
    for event in events:
        before = phases.index(shutdown.phase)
        finals += act(shutdown, event, 0.0) == 1
        assert phases.index(shutdown.phase) >= before
        assert shutdown.is_refusing == (finals > 0)
    assert finals <= 1


def parsed(data: bytes) -> list[Frame]:
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


def test_frames_are_read_by_others_as_they_are_meant() -> None:
    settings, goaway, reset, update = parsed(
        frames.settings({frames.INITIAL_WINDOW_SIZE: 5, frames.MAX_FRAME_SIZE: 2**20})
        + frames.goaway(7, frames.PROTOCOL_ERROR, "why")
        + frames.reset(3, frames.REFUSED_STREAM)
        + frames.window_update(9, 2**31 - 1)
    )
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {4: 5, 5: 2**20}
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code, goaway.additional_data) == (7, 1, b"why")
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (3, 7)
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (9, 2**31 - 1)


@pytest.mark.parametrize("length", [1, 100, 101, 200, 950])
def test_a_long_header_block_goes_on_in_continuations(length: int) -> None:
    block = bytes(range(250)) * 4
    found = parsed(frames.header_frames(5, frames.END_STREAM, block[:length], 100))
    assert b"".join(frame.data for frame in found) == block[:length]  # type: ignore[attr-defined]
    assert [type(frame).__name__ for frame in found] == [
        "HeadersFrame",
        *["ContinuationFrame"] * (len(found) - 1),
    ]
    assert all(len(frame.data) <= 100 for frame in found)  # type: ignore[attr-defined]
    assert ["END_HEADERS" in frame.flags for frame in found] == [
        *[False] * (len(found) - 1),
        True,
    ]
    assert "END_STREAM" in found[0].flags


def test_of_a_setting_that_is_repeated_the_last_value_holds() -> None:
    payload = b"\0\x04\0\0\0\1" + b"\0\x99\0\0\0\1" + b"\0\x04\0\0\0\2"
    assert frames.read_settings(payload) == {4: 2, 0x99: 1}
