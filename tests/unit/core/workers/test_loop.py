"""How other threads reach an event loop."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.fakes import TIMEOUT
from wherry.core.values.errors import ConfigError
from wherry.core.workers.loop import LoopCalls, WorkerLoop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    loop = made()
    yield loop
    loop.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop do what is due."""
    loop.call_soon(loop.stop)
    loop.run_forever()


class Waking(LoopCalls):
    """Counts how often the loop is woken up."""

    wake_ups = 0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        wake = loop.call_soon_threadsafe

        class Loop:
            def call_soon_threadsafe(_, callback: Callable[[], object]) -> None:
                self.wake_ups += 1
                wake(callback)

            def __getattr__(_, name: str) -> object:
                return getattr(loop, name)

        self.loop = Loop()  # type: ignore[assignment]


def test_calls_are_made_in_order_with_one_wake_up(loop: asyncio.AbstractEventLoop) -> None:
    calls, made = Waking(loop), list[int]()

    def many() -> None:
        for number in range(100):
            calls.call(made.append, number)

    thread = threading.Thread(target=many)
    thread.start()
    thread.join()
    assert made == []
    turn(loop)

    assert made == list(range(100))
    assert calls.wake_ups == 1
    calls.call(made.append, 100)
    turn(loop)
    assert (made[-1], calls.wake_ups) == (100, 2)


def test_what_is_handed_in_while_a_file_is_read_needs_no_wake_up(
    loop: asyncio.AbstractEventLoop,
) -> None:
    calls, made = Waking(loop), list[bytes]()
    out, into = os.pipe()
    os.set_blocking(out, False)
    calls.add_reader(out, lambda: calls.call(made.append, os.read(out, 10)))
    os.write(into, b"a")
    turn(loop)
    calls.remove_reader(out)
    os.close(into)
    turn(loop)
    os.close(out)

    assert (made, calls.wake_ups) == ([b"a"], 0)


def test_a_call_that_raises_leaves_the_others_to_be_made(loop: asyncio.AbstractEventLoop) -> None:
    raised = list[object]()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    calls, made = LoopCalls(loop), list[int]()
    calls.call(made.remove, 5)
    calls.call(made.append, 1)
    turn(loop)
    turn(loop)

    assert made == [1]
    assert isinstance(raised[0], ValueError)


def test_a_closed_loop_says_so() -> None:
    loop = asyncio.new_event_loop()
    calls, made = LoopCalls(loop), list[int]()
    assert not calls.is_closed
    loop.close()
    calls.call(made.append, 1)

    assert calls.is_closed
    assert made == []


def test_the_thread_starts_when_it_is_asked_for_and_knows_itself() -> None:
    io = WorkerLoop("wherry-test-io")
    io.close()
    before = threading.active_count()
    calls = io.calls()
    here: list[bool] = []
    done = threading.Event()

    def note(_: object) -> None:
        here.append(calls.thread == threading.get_ident())
        done.set()

    calls.call(note, None)
    assert done.wait(TIMEOUT)
    assert here == [True]
    assert calls.thread != threading.get_ident()
    assert io.calls() is calls
    assert threading.active_count() == before + 1
    io.close()
    assert calls.is_closed


def test_where_threads_are_greenlets_a_loop_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "get_native_id", lambda: 1)  # so it is in all of them
    io = WorkerLoop("wherry-test-io")
    with pytest.raises(ConfigError, match=r"green .*use isolation='thread'"):
        io.calls()
    io.close()
