"""server/calls/offload.py: work that would hold up the event loop is done beside it."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fakes import TIMEOUT, no_new_threads, until
from wherry.core.values.errors import InvalidRequest, ServerBusy
from wherry.server.calls.offload import LARGE_BYTES, Offload
from wherry.server.v2.output_codec import is_large


class Port:
    """The way back: what comes is told when the test asks for it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[Any], None], Any]] = []

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        self.calls.append((callback, argument))

    def deliver(self, count: int = 1) -> None:
        until(lambda: len(self.calls) >= count)
        calls, self.calls = self.calls, []
        for callback, argument in calls:
            callback(argument)


class Held:
    """Work that says when it has begun, and waits for the test."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(TIMEOUT)
        return "done"


def test_work_is_done_in_another_thread_and_its_outcome_told_through_the_port() -> None:
    offload, port = Offload(), Port()
    told: list[Any] = []
    offload.submit(threading.get_ident, 10, port, told.append)
    assert told == []
    port.deliver()
    assert told != [threading.get_ident()]
    assert offload.bytes_in_work == 0


def test_an_exception_is_an_outcome_too() -> None:
    offload, port = Offload(), Port()
    told: list[Any] = []
    offload.submit(lambda: 1 // 0, 10, port, told.append)
    port.deliver()
    assert isinstance(told[0], ZeroDivisionError)


def test_a_refused_body_is_let_go_without_the_collector() -> None:
    class Body:
        pass

    offload, port = Offload(), Port()
    kept = Body()
    gone = weakref.ref(kept)

    def read(body: Body = kept) -> None:
        held = body  # by the frame
        raise InvalidRequest(f"no {type(held).__name__}")

    told: list[Any] = []
    gc.disable()
    try:
        offload.submit(read, 10, port, lambda outcome: told.append(str(outcome)))
        del read, kept
        port.deliver()
        until(lambda: gone() is None)
    finally:
        gc.enable()
    assert told == ["no Body"]


def test_beyond_the_bytes_work_is_refused_until_some_is_told() -> None:
    offload, port, held = Offload(max_bytes=100), Port(), Held()
    told: list[Any] = []
    offload.submit(held, 1000, port, told.append)  # alone it is taken, whatever its size
    with pytest.raises(ServerBusy, match="retry later") as refused:
        offload.submit(held, 1, port, told.append)
    assert refused.value.http_status == 503
    assert refused.value.retry_after
    offload.submit(str, 0, port, told.append)  # an answer is always written
    held.may_end.set()
    port.deliver(2)
    offload.submit(str, 100, port, told.append)
    port.deliver()
    assert sorted(told) == ["", "", "done"]
    assert offload.bytes_in_work == 0


def test_what_its_client_left_is_not_begun_and_gives_its_bytes_back() -> None:
    offload, port, held = Offload(threads=1), Port(), Held()
    told: list[Any] = []
    offload.submit(held, 10, port, told.append)
    assert held.begun.wait(TIMEOUT)
    ran: list[int] = []
    waiting = offload.submit(lambda: ran.append(1), 20, port, told.append)
    waiting.cancel()
    assert offload.bytes_in_work == 10
    held.may_end.set()
    port.deliver()
    assert (told, ran) == (["done"], [])


def test_what_its_client_left_while_it_ran_is_not_delivered() -> None:
    offload, port, held = Offload(), Port(), Held()
    told: list[Any] = []
    job = offload.submit(held, 10, port, told.append)
    assert held.begun.wait(TIMEOUT)
    job.cancel()
    held.may_end.set()
    port.deliver()
    assert told == []
    assert offload.bytes_in_work == 0


def test_there_are_threads_only_while_there_is_work() -> None:
    offload, port = Offload(threads=2), Port()
    held = [Held() for _ in range(3)]
    told: list[Any] = []
    for work in held:
        offload.submit(work, 10, port, told.append)
    assert held[0].begun.wait(TIMEOUT)
    assert held[1].begun.wait(TIMEOUT)
    assert not held[2].begun.is_set()
    for work in held:
        work.may_end.set()
    port.deliver(3)
    until(lambda: not any(t.name == "wherry-offload" for t in threading.enumerate()))


def test_large_is_what_has_many_elements_or_bytes() -> None:
    assert not is_large({})
    assert not is_large({"x": ["a"], "y": np.zeros(10)})
    assert not is_large({"x": [None, {"a": 1}, ["a", "b"], np.zeros(3)]})
    assert is_large({"x": ["a"], "y": np.zeros(10_000)})
    assert is_large({"x": ["a" * (LARGE_BYTES + 1)]})
    assert is_large({"x": ["a"] * 1000})
    assert is_large({"x": [["a"] * 10_000]})
    assert is_large({"x": [np.zeros(10_000)]})


def test_a_loop_is_never_made_to_wait() -> None:
    from wherry.server.calls.offload import give_way

    async def turn() -> None:
        give_way()  # it would sleep, which the tests catch in a loop

    asyncio.run(turn())


def test_without_a_thread_work_is_refused_and_later_work_is_done() -> None:
    offload, port, told = Offload(threads=2), Port(), list[Any]()
    for _ in range(3):
        with no_new_threads(), pytest.raises(ServerBusy, match="new thread"):
            offload.submit(lambda: "never", 10, port, told.append)
    assert offload.bytes_in_work == 0
    offload.submit(lambda: "done", 10, port, told.append)
    port.deliver()
    assert told == ["done"]


def test_without_a_second_thread_the_first_does_the_work() -> None:
    offload, port, told, held = Offload(threads=2), Port(), list[Any](), Held()
    offload.submit(held, 0, port, told.append)
    assert held.begun.wait(TIMEOUT)
    with no_new_threads():
        offload.submit(lambda: "second", 0, port, told.append)
    held.may_end.set()
    port.deliver(2)
    assert told == ["done", "second"]
