"""How do bytes become requests?"""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.request_reader import RECEIVE_BYTES, LargeBody, ReadState, RequestReader
from wherry.server.http.request_rules import Refused, RequestRules

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /b?c HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


class Reading:
    """A reader, and what it has delivered."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: list[HttpRequest] = []
        self.http10: list[bool] = []
        self.reader = RequestReader(RequestRules(limits or Limits()), self._deliver)

    def _deliver(self, request: HttpRequest, http10: bool) -> None:
        self.requests.append(request)
        self.http10.append(http10)

    def feed(self, data: bytes) -> None:
        self.reader.feed(memoryview(data))

    def fill(self, data: bytes) -> None:
        direct = self.reader.direct
        assert direct is not None
        direct[: len(data)] = data
        self.reader.filled(len(data))


def test_a_request_is_delivered_with_its_last_byte() -> None:
    reading = Reading()
    reading.feed(POST % 3 + b"ab")
    assert "reading body" in repr(reading.reader)
    assert reading.reader.received_bytes == 2
    assert reading.requests == []
    reading.feed(b"c")
    (request,) = reading.requests
    assert (request.method, request.path, request.query) == ("POST", "/b", "c")
    assert (request.headers["host"], bytes(request.body)) == ("a", b"abc")
    assert reading.reader.state is ReadState.BETWEEN


@pytest.mark.parametrize(
    ("head", "http10", "state"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", False, ReadState.BETWEEN),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False, ReadState.OVER),
        (b"GET / HTTP/1.0\r\n\r\n", True, ReadState.OVER),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, ReadState.BETWEEN),
    ],
)
def test_the_version_and_connection_header_tell_whether_more_requests_follow(
    head: bytes, http10: bool, state: ReadState
) -> None:
    reading = Reading()
    reading.feed(head)
    assert reading.http10 == [http10]
    assert reading.reader.state is state


def test_the_rest_of_a_large_body_bypasses_the_parser_and_is_not_copied() -> None:
    body = bytes(range(256)) * 1000
    reading = Reading()
    reading.feed(POST % len(body) + body[:1000])
    assert reading.reader.received_bytes == 1000
    reading.fill(body[1000:5000])
    direct = reading.reader.direct
    assert direct is not None
    assert len(direct) == len(body) - 5000
    reading.fill(body[5000:])
    (request,) = reading.requests
    assert isinstance(request.body, memoryview)
    assert request.body == body
    assert (reading.reader.direct, reading.reader.state) == (None, ReadState.BETWEEN)
    reading.feed(GET)
    assert len(reading.requests) == 2


def test_a_large_body_that_ends_with_its_read_never_asks_for_another() -> None:
    reading = Reading()
    reading.feed(POST % (RECEIVE_BYTES + 1) + (RECEIVE_BYTES + 1) * b"x" + GET)
    assert [len(request.body) for request in reading.requests] == [RECEIVE_BYTES + 1, 0]
    assert reading.reader.direct is None


def test_a_second_request_in_one_read_is_noted() -> None:
    reading = Reading()
    reading.feed(GET)
    reading.feed(GET)
    assert not reading.reader.one_by_one
    reading.feed(GET + GET[:5])
    assert reading.reader.one_by_one


@pytest.mark.parametrize("sent", [b"", b"a"])
def test_a_client_waits_for_100_continue_until_it_sends_some_of_the_body(sent: bytes) -> None:
    reading = Reading()
    reading.feed((POST % 3).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + sent)
    assert reading.reader.expects_continue is (sent == b"")
    reading.feed(b"abc"[len(sent) :])
    assert not reading.reader.expects_continue


def test_a_refusal_says_which_answer_the_client_gets() -> None:
    reading = Reading(Limits(max_body_bytes=10))
    with pytest.raises(Refused) as refused:
        reading.feed(POST % 11)
    assert refused.value.status == 413
    assert refused.value.bug is None
    assert reading.reader.method == "POST"


def test_a_body_in_chunks_is_refused_as_soon_as_it_is_too_long() -> None:
    reading = Reading(Limits(max_body_bytes=10))
    reading.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789")
    with pytest.raises(Refused, match="limit of 10 bytes"):
        reading.feed(b"\r\n1\r\nx")


def test_a_head_that_never_ends_is_refused_at_its_limit() -> None:
    reading = Reading(Limits(max_header_bytes=100))
    reading.feed(b"GET / HTTP/1.1\r\nA: " + 50 * b"a")
    with pytest.raises(Refused, match="headers exceed"):
        reading.feed(50 * b"a")


def test_an_error_of_the_application_is_not_taken_for_the_clients() -> None:
    error = KeyError("ours")

    def fail(request: HttpRequest, http10: bool) -> None:
        raise error

    reader = RequestReader(RequestRules(Limits()), fail)
    with pytest.raises(Refused) as refused:
        reader.feed(memoryview(GET))
    assert (refused.value.status, refused.value.bug) == (500, error)


def test_nothing_is_delivered_after_a_stop() -> None:
    reading = Reading()
    reading.feed(POST % 100_000 + b"abc")
    reading.reader.stop()
    assert reading.reader.direct is None
    assert reading.reader.received_bytes == 0
    reading.feed(GET)
    assert reading.requests == []


@pytest.mark.parametrize(
    ("before", "data", "piece"),
    [
        (b"", GET + GET, len(GET)),
        (b"", GET[:10], 10),
        (b"", 5000 * b"a", 1024),
        (POST % 3, b"abc" + GET, 3),
        (POST % 3 + b"a", b"bc" + GET, 2),
        (POST % 100_000 + b"a", 99_999 * b"b" + GET, 99_999),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 9000 * b"x", 8192),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", GET + GET, 2 * len(GET)),
    ],
    ids=["a head", "a part", "a long head", "a body", "its rest", "a large one", "chunks", "over"],
)
def test_a_piece_ends_with_its_request(before: bytes, data: bytes, piece: int) -> None:
    reading = Reading()
    if before:
        reading.feed(before)
    assert reading.reader.next_piece(memoryview(data))[0] == piece


SEVERAL = (
    POST % 5 + b"abcde" + GET
    + b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"2;x=y\r\nfg\r\n1\r\nh\r\n0\r\nT: u\r\n\r\n" + GET
)  # fmt: skip


@given(st.sets(st.integers(1, len(SEVERAL) - 1)))
def test_requests_are_the_same_wherever_reads_cut_them(cuts: set[int]) -> None:
    reading = Reading()
    places = [0, *sorted(cuts), len(SEVERAL)]
    for begin, end in pairwise(places):
        reading.feed(SEVERAL[begin:end])
    assert [(r.method, r.path, bytes(r.body)) for r in reading.requests] == [
        ("POST", "/b", b"abcde"), ("GET", "/", b""), ("POST", "/c", b"fgh"), ("GET", "/", b"")
    ]  # fmt: skip
    assert reading.reader.state is ReadState.BETWEEN
    assert reading.reader.requests == 4


@given(st.binary(max_size=300), st.integers(1, 300))
def test_no_bytes_make_a_reader_fail_but_with_a_refusal(data: bytes, cut: int) -> None:
    reading = Reading()
    with suppress(Refused):
        for begin in range(0, len(data), cut):
            reading.feed(GET[:20] + data[begin : begin + cut])
    assert all(request.path for request in reading.requests)


def test_a_length_beside_chunks_is_the_last_that_is_read() -> None:
    """A proxy may have believed the length: what follows could be smuggled."""
    reading = Reading()
    both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    reading.feed(b"POST / HTTP/1.1\r\nHost: a\r\n" + both + b"4\r\nbody\r\n0\r\n\r\n" + GET)
    assert [bytes(request.body) for request in reading.requests] == [b"body"]
    assert reading.reader.state is ReadState.OVER


def test_a_body_may_be_longer_than_a_head() -> None:
    reading = Reading(Limits(max_header_bytes=100))
    reading.feed(POST % 1000)
    for _ in range(20):
        reading.feed(50 * b"x")
    assert [len(request.body) for request in reading.requests] == [1000]


def test_what_is_added_and_what_is_read_in_place_lie_one_behind_the_other() -> None:
    body = LargeBody(memoryview(bytearray(6)))
    body.add(b"ab")
    assert len(body.rest) == 4
    body.rest[:3] = b"cde"
    body.received += 3
    body.add(b"f")
    assert (bytes(body.data), body.received, len(body.rest)) == (b"abcdef", 6, 0)
    assert not body.data.readonly
