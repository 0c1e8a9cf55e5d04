"""Are calls beside the calling thread all made, and waited for?"""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.fakes import TIMEOUT, no_new_threads
from wherry.core.runtime.threads import ThreadGroup, ThreadPool, in_thread, side_by_side


def start_timeout() -> float:
    return TIMEOUT


def test_join_waits_for_what_was_started() -> None:
    group, may_end, ended = ThreadGroup(), threading.Event(), list[str]()

    def run() -> None:
        assert may_end.wait(TIMEOUT)
        ended.append(threading.current_thread().name)

    group.start(run, "first")
    group.join(lambda: 0.0)
    assert ended == []
    may_end.set()
    group.join(start_timeout)
    assert ended == ["first"]


def test_a_pool_runs_all_calls_in_at_most_so_many_threads() -> None:
    pool, together = ThreadPool("pool", 2), threading.Barrier(2)
    lock, running, most, calls = threading.Lock(), 0, 0, 8

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(TIMEOUT)  # two are never less
        with lock:
            running -= 1

    for _ in range(calls):
        pool.run(call)
    pool.join(start_timeout)
    assert (running, most) == (0, 2)
    done = threading.Event()
    pool.run(done.set)  # the threads have ended: there comes a new one
    assert done.wait(TIMEOUT)
    pool.join(start_timeout)


@pytest.mark.parametrize("most", [1, 2, 9])
def test_side_by_side_calls_all_and_raises_the_first_error_at_the_end(most: int) -> None:
    called: set[int] = set()

    def call(number: int) -> None:
        called.add(number)
        if number == 1:
            raise ValueError(f"not {number}")

    with pytest.raises(ValueError, match="not 1"):
        side_by_side(call, range(6), most, "beside")
    assert called == set(range(6))
    side_by_side(call, [], most, "beside")


def test_one_thing_alone_needs_no_thread() -> None:
    called: list[threading.Thread] = []
    side_by_side(lambda _: called.append(threading.current_thread()), [1], 4, "beside")
    assert called == [threading.current_thread()]


def test_an_interrupt_ends_it() -> None:
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, range(6), 1, "beside")
    assert called == [0]


def test_a_loop_goes_on_while_a_thread_blocks_and_has_what_it_gave_or_raised() -> None:
    async def main() -> None:
        may_end = threading.Event()
        blocked = in_thread(lambda: may_end.wait(TIMEOUT), "blocked")
        failed = in_thread(lambda: 1 // 0, "failed")
        with pytest.raises(ZeroDivisionError):
            await failed
        assert not blocked.done()
        may_end.set()
        assert await blocked is True

    asyncio.run(main())


def test_a_loop_waits_for_the_system_to_have_a_thread_again_if_it_is_to() -> None:
    async def main() -> None:
        with no_new_threads(times=2):
            assert await in_thread(lambda: "done", "late", start_timeout=TIMEOUT) == "done"
        with no_new_threads():
            abandoned = in_thread(lambda: "never", "never", start_timeout=1e-9)
            with pytest.raises(RuntimeError, match="new thread"):
                await abandoned
            with pytest.raises(RuntimeError, match="new thread"):
                in_thread(lambda: "never", "never")

    asyncio.run(main())


def test_a_pool_that_gets_no_thread_says_so_and_works_later() -> None:
    pool, told = ThreadPool("pool", 2), list[str]()
    for _ in range(3):
        with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
            pool.run(lambda: told.append("never"))
    pool.join(start_timeout)
    pool.run(lambda: told.append("later"))
    pool.join(start_timeout)
    assert told == ["later"]


def test_a_pool_that_gets_no_second_thread_goes_on_with_the_first() -> None:
    pool, told = ThreadPool("pool", 2), list[str]()
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert may_end.wait(TIMEOUT)

    pool.run(first)
    assert begun.wait(TIMEOUT)
    with no_new_threads():
        pool.run(lambda: told.append("second"))
    may_end.set()
    pool.join(start_timeout)
    assert told == ["second"]
