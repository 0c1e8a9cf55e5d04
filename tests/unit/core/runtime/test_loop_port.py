"""When are the requests of one turn of an event loop submitted?"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import uvloop

from tests.fakes import Call
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.loop_port import LoopPort, LoopPorts
from wherry.core.values.request import InferRequest


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    loop = made()
    yield loop
    loop.close()


class Submitted:
    """A model that keeps what is submitted to it."""

    def __init__(self) -> None:
        self.groups: list[Sequence[InferRequest]] = []

    def submit(self, requests: Sequence[InferRequest]) -> None:
        self.groups.append(requests)


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop do what is due."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_requests_of_one_turn_are_submitted_together(loop: asyncio.AbstractEventLoop) -> None:
    port, model = LoopPort(loop), Submitted()
    requests = [Call(n).request for n in range(3)]
    for request in requests:
        loop.call_soon(port.submit, cast(LoadedModel, model), request)
    turn(loop)
    turn(loop)
    assert model.groups == [requests]


def test_what_came_before_an_answer_in_the_same_turn_is_submitted_before_it_is_read(
    loop: asyncio.AbstractEventLoop,
) -> None:
    port, model, seen = LoopPort(loop), Submitted(), list[Any]()
    out, into = os.pipe()
    os.set_blocking(out, False)
    port.add_reader(out, lambda: seen.append((os.read(out, 10), list(model.groups))))
    first, second = Call("first").request, Call("second").request
    os.write(into, b"answer")
    loop.call_soon(port.submit, cast(LoadedModel, model), first)
    turn(loop)
    port.remove_reader(out)
    os.close(into)
    os.close(out)
    loop.call_soon(port.submit, cast(LoadedModel, model), second)
    turn(loop)
    turn(loop)
    assert seen == [(b"answer", [[first]])]
    assert model.groups == [[first], [second]]


def test_who_has_no_loop_of_asyncio_is_told_what_to_call() -> None:
    with pytest.raises(RuntimeError, match=r"call infer .*trio\.to_thread\.run_sync"):
        LoopPorts().here()
