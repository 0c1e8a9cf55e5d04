"""Who wakes the dispatchers, and what can stop it?"""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.fakes import TIMEOUT, no_new_threads
from wherry.core.instances.timer import Timer


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer(time.monotonic)
    yield timer
    timer.close()


def test_callbacks_come_in_the_order_of_their_moments(timer: Timer) -> None:
    told: list[str] = []
    done = threading.Event()
    now = time.monotonic()

    def second() -> None:
        told.append("second")
        done.set()

    def begin() -> None:  # in the timer's thread: neither can run before both are there
        timer.wake_at(now + 0.02, second)
        timer.wake_at(now + 0.01, lambda: told.append("first"))

    timer.wake_at(now, begin)
    assert done.wait(TIMEOUT)
    assert told == ["first", "second"]


def test_a_moment_in_the_past_is_now(timer: Timer) -> None:
    done = threading.Event()
    timer.wake_at(0.0, done.set)
    assert done.wait(TIMEOUT)


@pytest.mark.parametrize("far", [1e9, 1e10, 1e300, float("inf")])
def test_a_moment_in_the_far_future_does_not_end_the_timer(timer: Timer, far: float) -> None:
    """Python refuses waits of more than 292 years; a client may send any timeout."""
    done = threading.Event()
    timer.wake_at(far, lambda: None)
    timer.wake_at(time.monotonic() + 0.01, done.set)
    assert done.wait(TIMEOUT)


def test_a_callback_that_raises_does_not_end_the_timer(
    timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("a bug of ours")

    done = threading.Event()
    timer.wake_at(0.0, broken)
    timer.wake_at(time.monotonic() + 0.01, done.set)
    assert done.wait(TIMEOUT)
    assert "a bug of ours" in caplog.text


def test_a_closed_timer_calls_nobody() -> None:
    timer = Timer(time.monotonic)
    timer.wake_at(time.monotonic() + 1000, lambda: None)
    timer.close()
    timer.wake_at(0.0, lambda: pytest.fail("called after close"))
    timer.close()


def test_a_timer_that_got_no_thread_tries_again(timer: Timer) -> None:
    done = threading.Event()
    with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
        timer.start()
    timer.wake_at(time.monotonic(), done.set)
    assert done.wait(TIMEOUT)
