"""When are the bytes of a connection parsed, and when does it read on?"""

import asyncio

from tests.unit.server.grpc.raw import looped
from tests.unit.server.http.raw import MemoryTransport
from wherry.server.connections.limits import Limits
from wherry.server.http.answer_queue import AnswerQueue
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.intake import Intake, Turns
from wherry.server.http.request_reader import TURN_BYTES, RequestReader
from wherry.server.http.request_rules import RequestRules

TINY = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


class Door:
    """An intake, the reader behind it, and the paths that have come through."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.paths: list[str] = []
        self.transport = MemoryTransport()
        self.reader = RequestReader(RequestRules(Limits()), self._deliver)
        self.answers = AnswerQueue(self.transport, 16, lambda unsent: False)
        self.intake = Intake(
            self.transport, self.reader, self.answers, turns or Turns(), self.reader.feed
        )

    def _deliver(self, request: HttpRequest, http10: bool) -> None:
        self.paths.append(request.path)

    def take(self, data: bytes) -> None:
        self.intake.take(data)


def requests(first: int, count: int) -> bytes:
    return b"".join(TINY % number for number in range(first, first + count))


@looped
async def test_a_read_of_many_requests_is_parsed_in_turns_and_none_is_read_meanwhile() -> None:
    door = Door()
    door.take(requests(0, 100))
    assert 0 < len(door.paths) < 100
    assert not door.transport.reading
    while door.intake.pending:
        before = len(door.paths)
        await asyncio.sleep(0)
        assert (len(door.paths) - before) * len(TINY) <= 2 * (TURN_BYTES + len(TINY))
    assert door.paths == [f"/{n}" for n in range(100)]
    assert door.transport.reading


@looped
async def test_connections_take_their_turns_one_after_the_other() -> None:
    turns = Turns()
    greedy, modest = Door(turns), Door(turns)
    greedy.take(requests(0, 1000))
    modest.take(requests(0, 50))
    while modest.intake.pending:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    assert len(modest.paths) == 50
    assert len(greedy.paths) < 200
    greedy.intake.close()


@looped
async def test_one_request_of_a_long_read_is_parsed_at_once() -> None:
    door = Door()
    door.take(b"POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n" + 5000 * b"x")
    assert door.paths == ["/long"]
    assert door.transport.reading


@looped
async def test_a_full_queue_of_answers_holds_up_reading_until_there_is_room() -> None:
    door = Door()
    door.answers.writing_paused = True
    door.intake.regulate()
    assert not door.transport.reading
    door.take(requests(0, 100))
    assert door.paths == []
    door.answers.writing_paused = False
    door.intake.regulate()
    while len(door.paths) < 100:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)


@looped
async def test_a_closed_intake_parses_nothing_although_its_turn_comes() -> None:
    door = Door()
    door.take(requests(0, 100))
    parsed = len(door.paths)
    door.intake.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(door.paths) == parsed
