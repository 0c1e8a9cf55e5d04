"""server/http/answers.py, generate.py: answers that come one after the other."""

import threading
from collections.abc import Callable, Iterator

import pytest

import wherry
from tests.fakes import TIMEOUT
from tests.http_exchange import Client, MemoryExchange, served
from wherry.server.http.answers import CONTENT_TYPE, PING, PING_INTERVAL, EventStream
from wherry.server.http.exchange import HttpRequest, RequestHead


@wherry.model
def count(n: int, fail_at: int | None = None) -> Iterator[int]:
    for i in range(n):
        if i == fail_at:
            raise wherry.InvalidRequest(f"no {i}")
        yield i


@wherry.model
def broken(text: str) -> Iterator[str]:
    yield text
    yield "\ud800"
    yield "never seen"


@wherry.model
def echo(text: str) -> str:
    return text


class Endless:
    """A stream that goes on until somebody stops it."""

    def __init__(self) -> None:
        self.sent = 0
        self.stopped = threading.Event()

    def model(self) -> wherry.Model:
        @wherry.model(name="endless")
        def endless(text: str) -> Iterator[str]:
            try:
                while True:
                    self.sent += 1
                    yield text
            finally:
                self.stopped.set()

        return endless


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(count, broken, echo) as client:
        yield client


def numbers(exchange: MemoryExchange) -> list[object]:
    return [event.get("output", event.get("error")) for event in exchange.events]


def test_each_response_is_an_event(client: Client) -> None:
    answer = client.post("/v2/models/count/generate_stream", {"n": 3, "id": "x"})
    assert (answer.status, answer.content_type) == (200, CONTENT_TYPE)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.events == [
        {"id": "x", "model_name": "count", "model_version": "1", "output": i} for i in range(3)
    ]
    assert answer.body.startswith(b"data: {")


def test_a_model_that_does_not_stream_gives_one_event(client: Client) -> None:
    answer = client.post("/v2/models/echo/generate_stream", {"text": "a"})
    assert (answer.status, answer.content_type) == (200, CONTENT_TYPE)
    assert numbers(answer) == ["a"]


def test_no_response_at_all_is_an_empty_answer(client: Client) -> None:
    answer = client.post("/v2/models/count/generate_stream", {"n": 0})
    assert (answer.status, answer.body) == (200, b"")


def test_an_error_that_comes_first_decides_the_status(client: Client) -> None:
    answer = client.post("/v2/models/count/generate_stream", {"n": 3, "fail_at": 0})
    assert (answer.status, answer.content_type) == (400, CONTENT_TYPE)
    assert numbers(answer) == ["no 0"]


def test_a_later_error_is_the_last_event(client: Client) -> None:
    answer = client.post("/v2/models/count/generate_stream", {"n": 3, "fail_at": 2})
    assert answer.status == 200
    assert numbers(answer) == [0, 1, "no 2"]


def test_a_request_that_cannot_be_understood_is_no_stream(client: Client) -> None:
    answer = client.post("/v2/models/count/generate_stream", {"n": "three"})
    assert (answer.status, answer.content_type) == (400, "application/json")
    assert "expected int, got str" in answer.error


def test_a_response_that_cannot_be_sent_ends_the_stream_with_an_error(client: Client) -> None:
    answer = client.post("/v2/models/broken/generate_stream", {"text": "a"})
    assert answer.status == 200
    first, last = answer.events
    assert first["output"] == "a"
    assert "output" in last["error"]


def test_a_request_that_is_refused_is_no_stream(client: Client) -> None:
    body = {"n": 1, "priority": 99}
    answer = client.post("/v2/models/count/generate_stream", body)
    assert (answer.status, answer.content_type) == (400, "application/json")


def test_the_request_id_is_echoed(client: Client) -> None:
    for fail_at in (None, 0):
        answer = client.post(
            "/v2/models/count/generate_stream",
            {"n": 1, "fail_at": fail_at},
            {"x-request-id": "r7"},
        )
        assert answer.headers["x-request-id"] == "r7"


def test_a_stream_is_never_compressed(client: Client) -> None:
    answer = client.post(
        "/v2/models/count/generate_stream", {"n": 100}, {"accept-encoding": "gzip"}
    )
    assert "content-encoding" not in answer.headers
    assert len(answer.events) == 100


class Timers:
    """A clock of the test's own: `tick()` is one interval later."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> "Timers":
        assert seconds == PING_INTERVAL
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def tick(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def silent_stream() -> tuple[EventStream, MemoryExchange, Timers]:
    timers, exchange = Timers(), MemoryExchange(HttpRequest(RequestHead("POST", "/")))
    events = EventStream(exchange, timers.call_later)
    assert timers.due == []
    events.keep_alive()
    return events, exchange, timers


def test_an_event_may_have_a_name() -> None:
    events, exchange, _ = silent_stream()
    events.send(b"1", "first")
    events.send(b"2")
    events.end()
    assert exchange.body == b"event: first\ndata: 1\n\ndata: 2\n\n"


def test_a_silent_stream_says_that_it_lives() -> None:
    events, exchange, timers = silent_stream()
    events.send(b"1")
    timers.tick()  # there was an event
    timers.tick()
    timers.tick()
    events.send(b"2")
    timers.tick()
    events.end()
    assert exchange.body == b"data: 1\n\n" + 2 * PING + b"data: 2\n\n"
    assert timers.due == []


def test_a_stream_whose_first_event_takes_long_is_begun_by_a_ping() -> None:
    events, exchange, timers = silent_stream()
    assert exchange.status == 0
    timers.tick()
    events.end(wherry.InvalidRequest("too late for a status"))
    assert exchange.status == 200
    assert exchange.body == PING + b'data: {"error":"too late for a status"}\n\n'


def test_a_client_that_reads_nothing_is_not_given_pings_to_read() -> None:
    _, exchange, timers = silent_stream()
    exchange.congested = True
    timers.tick()
    assert exchange.chunks == []
    exchange.congested = False
    timers.tick()
    assert exchange.chunks == [PING]


def test_a_client_that_leaves_ends_the_model() -> None:
    endless = Endless()
    with served(endless.model()) as client:
        third = threading.Event()

        def prepare(exchange: MemoryExchange) -> None:
            exchange.on_chunk = lambda _: third.set() if len(exchange.chunks) == 3 else None

        path = "/v2/models/endless/generate_stream"
        exchange = client.begin("POST", path, {"text": "a"}, prepare=prepare)
        assert third.wait(TIMEOUT)
        client.call(exchange.leave)
        assert endless.stopped.wait(TIMEOUT)
        client.call(lambda: None)  # the loop has heard of it
        assert client.app.admission.in_flight == 0
        (counted,) = client.get("/v2/models/stats").json["model_stats"]
    assert counted["inference_stats"]["fail"]["count"] == 1


def test_a_slow_reader_holds_the_model_back() -> None:
    endless = Endless()
    with served(endless.model()) as client:
        window = 64
        full = threading.Event()
        more = threading.Event()

        def prepare(exchange: MemoryExchange) -> None:
            def on_chunk(_: bytes) -> None:
                if len(exchange.chunks) == window:
                    full.set()
                if len(exchange.chunks) == 2 * window:
                    more.set()

            exchange.congested = True
            exchange.on_chunk = on_chunk

        path = "/v2/models/endless/generate_stream"
        exchange = client.begin("POST", path, {"text": "a"}, prepare=prepare)
        assert full.wait(TIMEOUT)
        # The model waits: nothing comes, however often the loop turns.
        for _ in range(20):
            client.call(lambda: None)
        assert len(exchange.chunks) == window
        assert endless.sent <= window + 1

        def read_all() -> None:
            exchange.congested = False
            exchange.drained()
            exchange.congested = True

        client.call(read_all)
        assert more.wait(TIMEOUT)
        client.call(exchange.leave)
        assert endless.stopped.wait(TIMEOUT)


def test_generate_of_an_endless_stream_fails_at_its_second_response() -> None:
    endless = Endless()
    with served(endless.model()) as client:
        answer = client.post("/v2/models/endless/generate", {"text": "a"})
        assert answer.status == 400
        assert "exactly 1 response" in answer.error
        assert endless.stopped.wait(TIMEOUT)
