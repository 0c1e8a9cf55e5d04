"""server/grpc/shutdown.py: GOAWAY twice, as a state machine without a connection."""

import pytest
from hyperframe.frame import Frame, GoAwayFrame, PingFrame
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.grpc.shutdown import ANNOUNCEMENT, GracefulShutdown, ShutdownPhase

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
