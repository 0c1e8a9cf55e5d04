"""What one event loop does with a plan, and with a server that does not behave."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import pytest
import uvloop

from tests.unit.bench.script import Answer, Scripted, events, ok, raw, silence
from wherry.bench import load_run
from wherry.bench.connection import Encoded, Wire
from wherry.bench.figures import OK, Table
from wherry.bench.inputs import encoded
from wherry.bench.load_run import LoadRun
from wherry.bench.plan import Closed, Load, Plan, Rate

BODIES = [encoded("POST", "/", "test", {}, b"body %d" % n) for n in range(3)]


class Ran:
    """A run that is over, and what the server has seen of it."""

    def __init__(self, running: LoadRun, server: Scripted, began: float) -> None:
        self.load = running
        self.began = began
        self.server = server
        self.records = Table.of(running.recorder)
        self.outcomes = Counter(self.records.outcomes[index] for index in self.records.outcome)


def run(
    answer: Answer,
    load: Load,
    *,
    reads: Any = "status",
    requests_of: Sequence[Encoded] = BODIES,
    during: Callable[[LoadRun, Scripted], Any] | None = None,
    **plan: Any,
) -> Ran:
    async def main() -> Ran:
        async with Scripted(answer) as server:
            wire = Wire(port=server.port, reads=reads)
            running = LoadRun(
                Plan(load=load, **{"timeout": 10.0, **plan}).check(), wire, requests_of
            )
            await running.prepare()
            other = asyncio.ensure_future(during(running, server)) if during else None
            began = perf_counter()
            await running.run(began)
            if other is not None:
                await other
            return Ran(running, server, began)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def test_every_caller_sends_its_requests_on_a_connection_of_its_own() -> None:
    ran = run(ok(), Closed(callers=4, loops=5))
    assert ran.outcomes == {OK: 20}
    assert ran.server.connections == 4
    assert Counter(ran.server.bodies) == {b"body 0": 7, b"body 1": 7, b"body 2": 6}
    assert all(a <= b for a, b in zip(ran.records.sent, ran.records.ended, strict=True))


def test_a_request_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    large = [bytes([65 + n]) * 3_000_000 for n in range(2)]
    requests = [encoded("POST", "/", "test", {}, body) for body in large]
    ran = run(ok(), Closed(callers=1, loops=4), requests_of=requests)
    assert ran.outcomes == {OK: 4}
    assert ran.server.bodies == large * 2


def test_count_mode_sends_exactly_so_many_whoever_sends_them() -> None:
    ran = run(ok(), Closed(callers=7), requests=100)
    assert ran.outcomes == {OK: 100}
    assert len(ran.server.bodies) == 100


def test_the_load_ends_with_its_duration_and_what_is_in_flight_is_waited_for() -> None:
    ran = run(ok(), Closed(callers=3), duration=0.1)
    assert ran.outcomes[OK] == len(ran.server.bodies)
    assert ran.load.in_flight == 0


def test_thinking_callers_pause_after_their_answer() -> None:
    ran = run(ok(), Closed(callers=1, loops=3, think=0.02))
    pauses = [
        later - earlier
        for earlier, later in zip(ran.records.ended, ran.records.sent[1:], strict=False)
    ]
    assert len(pauses) == 2
    assert min(pauses) >= 0.019


def test_callers_that_join_over_a_ramp_begin_in_their_order() -> None:
    ran = run(ok(), Closed(callers=3, loops=1, ramp=0.04))
    joined = sorted(ran.records.intended - ran.began)
    assert joined[1] >= 0.019
    assert joined[2] >= 0.039


def test_an_open_load_sends_when_it_is_meant_to_whatever_the_answers_do() -> None:
    ran = run(ok(), Rate(rate=200, arrivals="constant"), requests=20)
    assert ran.outcomes == {OK: 20}
    first, *_ = intended = sorted(ran.records.intended)  # they are recorded as they end
    assert [t - first for t in intended] == pytest.approx([n / 200 for n in range(20)])
    assert all(a <= b for a, b in zip(ran.records.intended, ran.records.sent, strict=True))


def test_requests_that_find_no_free_connection_wait_and_are_charged_for_it() -> None:
    gate = asyncio.Event()

    async def gated(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        await gate.wait()
        await ok()(server, writer, number)

    async def open_when_all_are_due(running: LoadRun, server: Scripted) -> None:
        await server.seen(1)
        gate.set()

    ran = run(gated, Rate(rate=1e5), requests=5, connections=1, during=open_when_all_are_due)
    assert ran.outcomes == {OK: 5}
    assert ran.server.connections == 1
    assert max(ran.records.intended) < sorted(ran.records.sent)[1]
    assert len(set(ran.records.sent)) == 5


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        (ok(b'{"error":"queue is full"}', "429 Too Many Requests"), "HTTP 429", "queue is full"),
        (ok(b'{"error":{"message":"no"}}', "500 Oh"), "HTTP 500", "no"),
        (ok(b"not json", "404 Not Found"), "HTTP 404", "not json"),
        (ok(status="302 Found", more="Location: /\r\n"), "HTTP 302", "fine"),
        (ok(b"", "302 Found", "Location: /x\r\n"), "HTTP 302", "Location: /x"),
        (raw(b"SSH-2.0-hello\r\n"), "malformed answer", ""),
        (
            raw(b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
            "malformed answer",
            "another protocol",
        ),
        (raw(b"", close=True), "connection closed before the answer", ""),
        (
            raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", close=True),
            "connection closed in the middle of the answer",
            "",
        ),
        (
            raw(b"HTTP/1.1 200 OK\r\nContent-Len", close=True),
            "connection closed in the middle of the answer",
            "",
        ),
    ],
)
def test_what_is_no_answer_is_an_error_of_its_kind(
    answer: Answer, outcome: str, message: str
) -> None:
    ran = run(answer, Closed(callers=2, loops=3))
    assert ran.outcomes == {outcome: 6}
    assert message in ran.load.samples[outcome]


def test_an_answer_may_end_with_its_connection() -> None:
    ran = run(raw(b"HTTP/1.0 200 OK\r\n\r\nall of it", close=True), Closed(callers=2, loops=3))
    assert ran.outcomes == {OK: 6}
    assert ran.server.connections == 6


def test_a_server_that_closes_after_each_answer_is_connected_to_again() -> None:
    ran = run(ok(more="Connection: close\r\n"), Closed(callers=2, loops=3))
    assert ran.outcomes == {OK: 6}
    assert ran.server.connections == 6


def test_interim_answers_are_not_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    ran = run(
        raw(early + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        Closed(callers=1, loops=3),
    )
    assert ran.outcomes == {OK: 3}


def test_an_answer_in_single_bytes_is_one_answer() -> None:
    async def slowly(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        for byte in b"HTTP/1.1 503 No\r\nContent-Length: 15\r\n\r\n" + b'{"error":"why"}':
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    ran = run(slowly, Closed(callers=1, loops=2))
    assert ran.outcomes == {"HTTP 503": 2}


def test_answers_that_nobody_asked_for_end_the_connection_and_nothing_else() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ran = run(raw(answer * 2), Closed(callers=1, loops=4, think=0.005))
    assert ran.outcomes[OK] == 4


def test_a_second_answer_is_not_taken_for_the_next_request_s() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    ran = run(raw(answer * 2), Closed(callers=1, loops=6))
    assert ran.outcomes == {OK: 3, "an answer without a request": 3}
    assert ran.server.connections == 3


def test_a_server_that_stalls_gives_timeouts_and_the_run_ends() -> None:
    ran = run(silence, Closed(callers=3), duration=0.05, timeout=0.2)
    assert ran.outcomes == {"timeout": 3}
    assert "0.2 s" in ran.load.samples["timeout"]


def test_a_stalled_server_does_not_hold_the_backlog_of_an_open_load_forever() -> None:
    ran = run(silence, Rate(rate=1e4), requests=10, connections=2, timeout=0.2)
    assert ran.outcomes == {"timeout": 10}


def test_a_caller_goes_on_after_its_timeout() -> None:
    async def first_never(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        await (silence if number == 1 else ok())(server, writer, number)

    ran = run(first_never, Closed(callers=1, loops=3), timeout=1.0)
    assert ran.outcomes == {"timeout": 1, OK: 2}


def test_a_server_that_is_gone_ends_the_run_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_run, "GIVE_UP", 1.0)

    async def leave(running: LoadRun, server: Scripted) -> None:
        await server.seen(20)
        await server.stop()

    ran = run(ok(), Closed(callers=2), duration=60, during=leave)
    assert ran.outcomes[OK] >= 10
    assert ran.outcomes["cannot connect: refused"] >= 2
    assert ran.load.stopped_because == "no connection for 1 s (refused)"


def test_nobody_there_from_the_beginning_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_run, "GIVE_UP", 0.1)
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))

        async def main(load: Load) -> LoadRun:
            running = LoadRun(
                Plan(load=load, duration=60), Wire(port=taken.getsockname()[1]), BODIES
            )
            await running.prepare()
            await running.run()
            return running

        for load in (Closed(callers=3), Rate(rate=200)):
            running = asyncio.run(main(load))
            assert "refused" in running.stopped_because
            assert set(running.recorder.outcomes) == {OK, "cannot connect: refused"}


def test_to_stop_is_at_once_and_keeps_what_there_is() -> None:
    async def stop_soon(running: LoadRun, server: Scripted) -> None:
        await server.seen(6)
        running.stop("interrupted")

    async def five_then_none(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        await (ok() if number <= 5 else silence)(server, writer, number)

    ran = run(five_then_none, Closed(callers=1), duration=60, during=stop_soon)
    assert ran.outcomes == {OK: 5}
    assert ran.load.stopped_because == "interrupted"


def test_a_stream_is_timed_piece_by_piece() -> None:
    gates: list[asyncio.Event] = [asyncio.Event() for _ in range(3)]

    async def piecewise(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for n, gate in enumerate(gates):
            data = b'data: {"output":"%d"}\n\n' % n
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await gate.wait()
        writer.write(b"0\r\n\r\n")

    async def open_gates(running: LoadRun, server: Scripted) -> None:
        await server.seen(1)
        (connection,) = running._connector.waiting_since(float("inf"))
        for n, gate in enumerate(gates, 1):
            # Two that come in one read have no time between them.
            while not connection.reader or connection.reader.tokens_out < n:  # noqa: ASYNC110
                await asyncio.sleep(0)
            gate.set()

    ran = run(piecewise, Closed(callers=1, loops=1), reads="v2_events", during=open_gates)
    assert ran.outcomes == {OK: 1}
    assert list(ran.records.tokens_out) == [3]
    assert len(ran.records.gap_seconds) == 2
    after_first = ran.records.ended[0] - ran.records.first[0]
    assert 0 < sum(ran.records.gap_seconds) <= after_first + 1e-6
    assert ran.records.sent[0] < ran.records.first[0]


def test_an_error_in_a_stream_is_an_error() -> None:
    ran = run(
        events(b'data: {"output":"a"}\n\n', b'data: {"error":"out of memory"}\n\n'),
        Closed(callers=1, loops=2),
        reads="v2_events",
    )
    assert ran.outcomes == {"error in the answer": 2}
    assert ran.load.samples["error in the answer"] == "out of memory"


def test_openai_streams_count_their_tokens_by_usage() -> None:
    ran = run(
        events(
            b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
            b': ping\n\ndata: {"choices":[{"delta":{"content":"two tokens"}}]}\n\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n',
            b"data: [DONE]\n\n",
        ),
        Closed(callers=1, loops=1),
        reads="openai_events",
    )
    assert ran.outcomes == {OK: 1}
    assert (list(ran.records.tokens_in), list(ran.records.tokens_out)) == ([5], [2])


def test_an_endless_answer_ends_at_the_timeout() -> None:
    async def endless(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not server.ended.is_set():
            writer.write(b"4\r\nmore\r\n")
            await writer.drain()
            await asyncio.sleep(0.005)

    ran = run(endless, Closed(callers=1, loops=1), timeout=0.2)
    assert ran.outcomes == {"timeout": 1}
