"""server/grpc/h2.py: what sweeps see of a connection, and what follows."""

import pytest

from wherry.server.grpc.h2 import (
    KEEPALIVE_TIME,
    KEEPALIVE_TIMEOUT,
    ConnectionTimeouts,
    TimeoutAction,
)

NONE, PING, ABORT = TimeoutAction.NONE, TimeoutAction.PING, TimeoutAction.ABORT
HEADER_TIMEOUT = 30.0


@pytest.fixture
def timeouts() -> ConnectionTimeouts:
    return ConnectionTimeouts(HEADER_TIMEOUT, None, 0.0)


def test_silence_is_asked_about_once_and_then_ended(timeouts: ConnectionTimeouts) -> None:
    actions = []
    for now in (1.0, KEEPALIVE_TIME, KEEPALIVE_TIME + 1, KEEPALIVE_TIME + KEEPALIVE_TIMEOUT):
        timeouts.see(0, None, now)
        actions.append(timeouts.action(now))
    assert actions == [NONE, PING, NONE, ABORT]


def test_progress_ends_the_silence_and_the_next_one_is_asked_about_again(
    timeouts: ConnectionTimeouts,
) -> None:
    assert timeouts.action(KEEPALIVE_TIME) is PING
    timeouts.see(17, None, KEEPALIVE_TIME + 1)
    assert timeouts.quiet(KEEPALIVE_TIME + 3) == 2.0
    assert timeouts.action(KEEPALIVE_TIME + KEEPALIVE_TIMEOUT) is NONE
    assert timeouts.action(2 * KEEPALIVE_TIME + 1) is PING


def test_less_than_was_seen_before_is_no_progress(timeouts: ConnectionTimeouts) -> None:
    timeouts.see(100, None, 1.0)
    timeouts.see(50, None, 2.0)
    timeouts.see(100, None, 3.0)
    assert timeouts.quiet(4.0) == 3.0


def test_what_is_begun_must_be_whole_in_time_even_if_bytes_come(
    timeouts: ConnectionTimeouts,
) -> None:
    frame = object()
    for second in range(int(HEADER_TIMEOUT)):
        timeouts.see(second, frame, float(second))
        assert timeouts.action(float(second)) is NONE
    timeouts.see(1000, frame, HEADER_TIMEOUT)
    assert timeouts.action(HEADER_TIMEOUT) is ABORT


def test_another_thing_that_is_begun_has_its_own_time(timeouts: ConnectionTimeouts) -> None:
    for second in range(0, 100, 20):
        timeouts.see(second, object(), float(second))
        assert timeouts.action(second + HEADER_TIMEOUT - 1) is NONE


def test_a_client_must_begin_in_time() -> None:
    timeouts = ConnectionTimeouts(HEADER_TIMEOUT, "the preface", 5.0)
    assert timeouts.action(5.0 + HEADER_TIMEOUT - 1) is NONE
    assert timeouts.action(5.0 + HEADER_TIMEOUT) is ABORT
