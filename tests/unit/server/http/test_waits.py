"""For what does a connection wait, and for how long already?"""

import pytest

from tests.unit.server.http.raw import MemoryTransport
from wherry.server.connections.limits import Limits
from wherry.server.http.answer_queue import AnswerQueue
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.intake import Intake, Turns
from wherry.server.http.request_reader import RequestReader
from wherry.server.http.request_rules import RequestRules
from wherry.server.http.waits import PROGRESS_BYTES, ClientWait, LingeringClose, Waits, timeouts


def test_our_half_is_closed_first_where_that_is_possible() -> None:
    transport = MemoryTransport()
    LingeringClose(transport, 100).begin()
    assert (transport.half_closed, transport.is_closing()) == (True, False)
    over_tls = MemoryTransport(can_half_close=False)
    LingeringClose(over_tls, 100).begin()
    assert over_tls.is_closing()


def test_a_client_that_sends_too_much_for_nothing_is_cut_off() -> None:
    transport = MemoryTransport()
    closing = LingeringClose(transport, 100)
    closing.drop(100)
    assert not transport.is_closing()
    closing.drop(1)
    assert transport.is_closing()


def test_a_client_that_sends_what_is_not_wanted_gets_the_whole_time() -> None:
    closing = LingeringClose(MemoryTransport(), 100)
    closing.drop(1)
    assert closing.is_refused
    assert not closing.is_complete()


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class Parts:
    """The parts of a connection that answers at once, and what they wait for."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.reader = RequestReader(RequestRules(Limits()), self._deliver)
        self.answers = AnswerQueue(self.transport, 16, lambda unsent: False)
        self.intake = Intake(self.transport, self.reader, self.answers, Turns(), self.reader.feed)
        self.waits = Waits(self.transport, self.reader, self.answers, self.intake, 0.0)

    def _deliver(self, request: HttpRequest, http10: bool) -> None:
        self.answers.write(b"an answer")

    def feed(self, data: bytes) -> None:
        self.reader.feed(memoryview(data))

    def see(self, now: float) -> tuple[ClientWait | None, float]:
        return self.waits.see(now, draining=False)


@pytest.mark.parametrize(
    ("data", "unsent", "wait"),
    [
        (b"", 0, ClientWait.BEGIN),
        (GET, 0, ClientWait.BEGIN),
        (GET[:10], 0, ClientWait.HEAD),
        (POST, 0, ClientWait.BODY),
        (LAST, 0, ClientWait.LEAVE),
        (LAST, 1, ClientWait.READ),
        (GET, 1, ClientWait.READ),
        (GET[:10], 1, ClientWait.READ),
    ],
)
def test_what_is_awaited_is_what_the_client_has_to_do_next(
    data: bytes, unsent: int, wait: ClientWait
) -> None:
    parts = Parts()
    if data:
        parts.feed(data)
    parts.transport.unsent = unsent
    assert parts.see(1.0) == (None, 0.0)
    assert parts.see(3.5) == (wait, 2.5)
    assert parts.waits.since == 1.0


def test_a_drain_waits_for_a_last_request() -> None:
    parts = Parts()
    parts.waits.see(1.0, draining=True)
    assert parts.waits.see(2.0, draining=True)[0] is ClientWait.LAST


def test_nothing_is_awaited_of_a_client_that_is_not_read() -> None:
    parts = Parts()
    parts.feed(GET[:10])
    parts.intake.paused = True
    parts.see(1.0)
    assert parts.see(2.0)[0] is None


@pytest.mark.parametrize(("moved", "waited"), [(PROGRESS_BYTES, None), (1, ClientWait.BODY)])
def test_a_wait_begins_anew_when_enough_bytes_of_a_body_have_come(
    moved: int, waited: ClientWait | None
) -> None:
    parts = Parts()
    parts.feed(POST)
    parts.see(1.0)
    assert parts.reader.direct is not None
    parts.reader.filled(moved)
    assert parts.see(30.0)[0] is waited


@pytest.mark.parametrize(("taken", "waited"), [(PROGRESS_BYTES, None), (1, ClientWait.READ)])
def test_a_wait_begins_anew_when_enough_bytes_of_an_answer_were_taken(
    taken: int, waited: ClientWait | None
) -> None:
    parts = Parts()
    parts.answers.write(100 * PROGRESS_BYTES * b"x")
    parts.transport.unsent = 10 * PROGRESS_BYTES
    parts.see(1.0)
    parts.transport.unsent -= taken
    assert parts.see(30.0)[0] is waited


def test_each_wait_has_its_timeout() -> None:
    limits = Limits(header_timeout=1, body_timeout=2, idle_timeout=3, write_timeout=4)
    seconds = timeouts(limits, last_call=5)
    assert set(seconds) == set(ClientWait)
    in_order = ("HEAD", "BODY", "BEGIN", "READ", "LAST")
    assert [seconds[ClientWait[name]] for name in in_order] == [1, 2, 3, 4, 5]
