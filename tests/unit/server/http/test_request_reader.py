"""How do bytes become requests?"""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import HttpRequest
from wherry.server.http.request_reader import RECEIVE_BYTES, ReadState, RequestReader
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


def test_a_large_body_that_ends_with_its_read_never_asks_for_another() -> None:
    reading = Reading()
    reading.feed(POST % (RECEIVE_BYTES + 1) + (RECEIVE_BYTES + 1) * b"x" + GET)
    assert [len(request.body) for request in reading.requests] == [RECEIVE_BYTES + 1, 0]
    assert reading.reader.direct is None


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
