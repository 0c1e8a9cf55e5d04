"""What of a connection's answers only the queue itself shows. (Their order: test_protocol.py.)"""

from dataclasses import dataclass, field

from tests.unit.server.http.raw import MemoryTransport
from wherry.server.http.answer_queue import AnswerQueue, PipelinedExchange
from wherry.server.http.exchange import HttpRequest, RequestHead, plain_form
from wherry.server.http.wire import FirstLines


@dataclass
class Conversation:
    """A connection, as far as exchanges know it."""

    transport: MemoryTransport = field(default_factory=MemoryTransport)
    ends: bool = False

    def __post_init__(self) -> None:
        self.answers = AnswerQueue(self.transport, 2, lambda unsent: False)
        self.usual_lines = FirstLines()
        self.refusal_form = plain_form

    def ask(self, path: str = "/") -> PipelinedExchange:
        exchange = PipelinedExchange(HttpRequest(RequestHead("GET", path)), self, http10=False)
        self.answers.exchanges.append(exchange)
        return exchange

    def first_lines(self, status: int, content_type: str, exchange: PipelinedExchange) -> bytes:
        return b"%d\r\n" % status

    def answered(self, exchange: PipelinedExchange, rest: bytes = b"") -> None:
        self.answers.finish(exchange, rest)

    def close_after(self, exchange: PipelinedExchange) -> None:
        self.answers.drop_behind(exchange)

    def regulate(self) -> None:
        """Reading is the connection's affair."""

    def abort(self) -> None:
        self.transport.abort()


def test_a_client_that_reads_nothing_is_asked_for_nothing_more_when_all_is_answered() -> None:
    connection = Conversation()
    exchange = connection.ask()
    connection.answers.writing_paused = True
    assert not connection.answers.is_full
    exchange.respond(200)
    assert connection.answers.is_full
    connection.answers.resume_writing()
    assert not connection.answers.is_full


def test_an_application_that_fails_within_a_stream_ends_the_connection() -> None:
    connection = Conversation()
    exchange = connection.ask()
    exchange.start(200)
    exchange.give_up()
    assert connection.transport.is_closing()


def test_a_stream_that_ends_as_its_turn_comes_takes_no_other_answer_with_it() -> None:
    connection = Conversation()
    first, stream, third, last = (connection.ask() for _ in range(4))
    stream.start(200)
    stream.send(b"piece")
    stream.on_drain = stream.finish
    third.respond(200, b"third")
    first.respond(200, b"first")
    assert list(connection.answers.exchanges) == [last]
    assert bytes(connection.transport.written).endswith(b"third")
