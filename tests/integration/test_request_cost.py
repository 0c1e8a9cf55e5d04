"""What one lone request takes on its way is counted, so that no change makes the way longer unseen.

Only what does not depend on the machine's pace is held to a limit: functions and files, system
calls, waits, blocks of memory. The limits are in request_limits.toml.
"""

from __future__ import annotations

import gc
import resource
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.way import cost
from benchmarks.way.callers import in_this_process, json_request
from benchmarks.way.calls import single
from benchmarks.way.kernel import why_no_strace
from tests.fakes import until
from wherry.testing.gated import GatedModel
from wherry.testing.servers import local_server

LIMITS: dict[str, Any] = tomllib.loads((Path(__file__).parent / "request_limits.toml").read_text())
#: Timers and the collector come now and then, whatever a request does: as a share of a request.
NOW_AND_THEN = 0.2


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(name, marks=() if way.kind in cost.CHATS else pytest.mark.slow)
        for name, way in cost.WAYS.items()
    ],
)
def test_a_request_goes_through_no_more_functions_and_files_than_its_limit(way: str) -> None:
    for _ in range(3):  # other work on the machine splits messages and so adds calls, never fewer
        found = cost.calls(cost.WAYS[way])
        if not (above := _above(found.counts(), LIMITS[way])):
            return
    pytest.fail(f"{above}: {found}")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["json to a process", "json to a thread", "grpc to a process"])
def test_a_request_waits_and_calls_the_kernel_no_more_often_than_its_limit(way: str) -> None:
    found = cost.kernel(cost.WAYS[way])
    for process, asked in found.items():
        assert asked.waits <= LIMITS[way][f"{process}_waits"] + NOW_AND_THEN
        assert _above(asked.system_calls, LIMITS[way][f"{process}_system_calls"]) == {}
    if told := why_no_strace():
        pytest.skip(f"only waits were counted: {told}")


def _above(found: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, float]:
    return {
        name: count for name, count in found.items() if count > limits.get(name, 0) + NOW_AND_THEN
    }


def test_a_local_call_never_waits_for_another_thread() -> None:
    with in_this_process("local", single) as ask:
        ask()
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(1000):
            ask()
        waited = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert waited / 1000 <= LIMITS["local call"]["server_waits"] + NOW_AND_THEN


def test_a_request_in_flight_keeps_no_more_memory_than_its_limit_and_none_afterwards() -> None:
    many = 64
    gated = GatedModel(max_batch_size=1)
    with local_server(gated) as server, _connections(server.url, many) as connections:
        runner = server.runtime.model("gated").runner
        sent = json_request(server.url.removeprefix("http://"), "gated")

        def all_held() -> int:
            for connection in connections:
                connection.sendall(sent)
            until(lambda: runner.queued_requests == many - 1)
            return _blocks()

        def all_answered() -> int:
            gated.let_finish(many)
            for connection in connections:
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            gated.batches.clear()
            return _blocks()

        for _ in range(4):  # what is made once, and kept for the next time
            all_held()
            idle = all_answered()
        in_flight, afterwards = [], []
        for _ in range(8):  # other threads make objects, too, and drop them a moment later
            in_flight.append(all_held() - idle)
            afterwards.append(all_answered() - idle)
    assert min(in_flight) / many <= LIMITS["json to a thread"]["kept_in_flight"]
    assert min(afterwards) / many < 1


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@contextmanager
def _connections(url: str, many: int) -> Iterator[list[socket.socket]]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    with ExitStack() as stack:
        address = (host, int(port))
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(many)]
