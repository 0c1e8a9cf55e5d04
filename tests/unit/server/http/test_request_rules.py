"""Which requests does the transport refuse itself, and with which answer?"""

import asyncio
import re
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.http.raw import eager, echo, feed
from tests.unit.server.http.test_fuzz_parser import Wire
from wherry.server.access.origins import Binding, OriginCheck, Origins
from wherry.server.calls.terms import as_sent
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.http.protocol import HttpConnection, HttpConnections
from wherry.server.http.request_reader import RECEIVE_BYTES, ordinary_head
from wherry.server.http.request_rules import (
    HEAD_BYTES,
    MAX_BYTES,
    MAX_HEADS,
    REPEATED_BYTES,
    Refused,
    RememberedHeads,
    RequestRules,
)

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /b%%20c?d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


def line(*fields: bytes, method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"%b / HTTP/%b\r\nHost: localhost\r\n" % (method, version) + b"".join(
        field + b"\r\n" for field in (*fields, b"")
    )


def rules() -> RequestRules:
    made = RequestRules(Limits(max_body_bytes=200_000, max_header_bytes=1000))
    origins = Origins(cors_origins=["http://page.example"])
    made.answer_only(OriginCheck(origins, Binding.LOOPBACK))
    return made


def test_a_head_is_read_as_the_parser_reads_it() -> None:
    head = ordinary_head(rules(), POST % 7)
    assert head is not None
    assert (head.method, head.path, head.query, head.body_bytes) == ("POST", "/b c", "d", 7)
    assert head.headers == {"host": "localhost", "content-length": "7"}


def test_no_request_can_change_the_headers_that_the_next_one_finds() -> None:
    head = ordinary_head(rules(), GET)
    assert head is not None
    with pytest.raises(TypeError):
        head.headers["x"] = "y"  # type: ignore[index]


@pytest.mark.parametrize(
    "data",
    [
        line(version=b"1.0"),
        line(b"Connection: keep-alive", version=b"1.0"),
        line(b"Connection: close"),
        line(b"Connection: close", b"Content-Length: 1"),
        line(b"Content-Length: 1", version=b"1.0"),
        line(b"Connection: keep-alive", b"Content-Length: 1", version=b"1.0"),
        line(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 1"),
        line(b"Connection: upgrade", b"Upgrade: h2c"),
        line(b"Upgrade: h2c"),
        line(b"Expect: 100-continue", b"Content-Length: 1"),
        line(b"Transfer-Encoding: chunked"),
        line(b"Transfer-Encoding: chunked", b"Content-Length: 1"),
        line(b"Content-Length: 200001"),
        line(b"Content-Length: 1", b"Content-Length: 1"),
        line(b"Origin: http://evil.example"),
        line(b"Sec-Fetch-Site: cross-site"),
        line(b"A: " + 1000 * b"a"),
        line(b"A: b\r\n c"),
        line(b"A: b\n"),
        b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\n\n" + GET,
        b"\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        GET[:-2],
        GET + GET,
        GET + b"G",
        POST % 4 + b"a",
        POST % 1 + b"a",
    ],
)
def test_unusual_heads_are_parsed_each_time(data: bytes) -> None:
    assert ordinary_head(rules(), data) is None


def read(data: bytes) -> RequestHead:
    return RequestHead("GET", data.decode())


def test_a_head_is_remembered_when_it_comes_for_the_second_time() -> None:
    heads = RememberedHeads(read)
    assert heads.sight(b"a") is None
    assert not heads.known
    head = heads.sight(b"a")
    assert head is not None
    assert heads.known[b"a"] is head


def test_a_head_that_is_parsed_each_time_is_asked_about_once() -> None:
    asked: list[bytes] = []
    heads = RememberedHeads(asked.append)
    for _ in range(10):
        assert heads.sight(b"a") is None
    assert asked == [b"a\r\n\r\n"]


def test_heads_that_come_once_are_not_kept() -> None:
    heads = RememberedHeads(read)
    for number in range(100_000):
        heads.sight(b"%d" % number)
    assert not heads.known
    assert len(heads._sighted) <= 1024


@pytest.mark.parametrize("size", [5, HEAD_BYTES])
def test_heads_that_come_twice_fill_no_more_than_the_bounds(size: int) -> None:
    heads = RememberedHeads(read)
    for number in range(3 * MAX_HEADS):
        for _ in range(2):
            heads.sight(b"%0*d" % (size, number))
        assert len(heads.known) <= MAX_HEADS
        assert sum(map(len, heads.known)) <= MAX_BYTES
    assert heads.known


def test_a_head_longer_than_the_bound_is_parsed_each_time() -> None:
    long = line(b"A: " + HEAD_BYTES * b"a")

    async def main() -> None:
        connections = HttpConnections(echo, Limits())
        for _ in range(3):
            await talk(connections, [long])
        assert not connections.heads.known

    asyncio.run(main())


# The same requests and refusals, whether heads are remembered or not.

BODY = bytes(range(256))
PARTS = [
    GET,
    GET,
    POST % 0,
    POST % 3 + b"abc",
    POST % 3 + b"abc",
    POST % 3,
    POST % len(GET) + GET,
    POST % 256 + BODY,
    POST % (RECEIVE_BYTES + 1) + b"x" * (RECEIVE_BYTES + 1),
    line(method=b"HEAD"),
    line(b"X: 1", b"x: 2"),
    line(b"Connection: keep-alive"),
    line(b"Connection: close"),
    line(b"Connection: close", b"Content-Length: 2", method=b"POST") + b"yz",
    line(b"Connection: upgrade", b"Upgrade: h2c"),
    line(b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 1", method=b"POST") + b"z",
    line(b"Connection: keep-alive", b"Content-Length: 1", version=b"1.0", method=b"POST") + b"z",
    line(b"Origin: http://page.example"),
    line(b"Origin: http://evil.example"),
    line(b"Connection: keep-alive", version=b"1.0"),
    line(b"Expect: 100-continue", b"Content-Length: 1", method=b"POST") + b"z",
    line(b"Transfer-Encoding: chunked", method=b"POST") + b"3\r\nabc\r\n0\r\nT: u\r\n\r\n",
    line(b"Transfer-Encoding: chunked", b"Content-Length: 3", method=b"POST") + b"0\r\n\r\n",
    line(b"A: " + 900 * b"a"),
    line(b"A: " + 1000 * b"a"),
    line(b"A: b\r\n c"),
    b"GET / HTTP/1.1\nHost: localhost\n\n",
    b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
    b"GET http://localhost/e HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"G",
    b"\0",
    b"abc",
]


class Talk:
    """What one connection was asked and has answered."""

    def __init__(self) -> None:
        self.requests: list[tuple[object, ...]] = []
        self.written = b""

    def note(self, exchange: Exchange) -> None:
        request = exchange.request
        head = (request.method, request.path, request.query, dict(request.headers))
        self.requests.append((*head, bytes(request.body)))
        echo(exchange)


async def talk(connections: HttpConnections, pieces: Iterable[bytes]) -> Talk:
    """Have a connection read `pieces`, and give what came of it."""
    talked = Talk()
    connections.application = talked.note
    connection = HttpConnection(connections)
    wire = Wire(connection)
    connection.connection_made(wire)
    for data in pieces:
        piece = data
        while piece and wire.connection is not None:
            if wire.reading:
                piece = piece[feed(wire.protocol, piece) :]
            else:
                await asyncio.sleep(0)
    while connection.intake.pending and wire.connection is not None:  # noqa: ASYNC110 - turns
        await asyncio.sleep(0)
    talked.written = re.sub(rb"\r\nDate: [^\r]*", b"", bytes(wire.written))
    if wire.connection is not None:
        talked.written += b" " + repr(connection).encode()
        wire.close()
    await asyncio.sleep(0)
    return talked


def connections(*, remember: bool) -> HttpConnections:
    made = HttpConnections(echo, Limits(max_body_bytes=200_000, max_header_bytes=1000))
    made.rules = rules()
    made.heads = RememberedHeads(lambda data: None)
    if remember:
        eager(made)
    return made


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@examples(8)
@given(st.lists(st.sampled_from(PARTS), max_size=8), st.lists(st.integers(0, 2**20), max_size=6))
def test_requests_and_refusals_are_the_same_with_and_without_remembered_heads(
    parts: list[bytes], cuts: list[int]
) -> None:
    async def main() -> None:
        pieces = pieces_of(b"".join(parts), cuts)
        remembering = connections(remember=True)
        for reads in (pieces, parts, pieces):
            parsed = await talk(connections(remember=False), reads)
            remembered = await talk(remembering, reads)
            assert remembered.requests == parsed.requests
            assert remembered.written == parsed.written

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(len(POST % 3) + 4))
def test_a_remembered_head_and_its_body_may_come_in_two_reads(cut: int) -> None:
    async def main() -> None:
        remembering = connections(remember=True)
        data = POST % 3 + b"abc"
        await talk(remembering, [data])
        talked = await talk(remembering, [data[:cut], data[cut:], GET])
        assert [request[-1] for request in talked.requests] == [b"abc", b""]

    asyncio.run(main())


RULES = RequestRules(Limits(max_body_bytes=10, max_header_bytes=100))


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (lambda: RULES.version("2.0"), 505),
        (lambda: RULES.target(b"CONNECT", b"a:1", {}, http10=False), 501),
        (lambda: RULES.target(b"GET", b"http://a/", {}, http10=False), 400),
        (lambda: RULES.origin(b"GET", {}, http10=False), 400),
        (lambda: RULES.repetition("host", 0), 400),
        (lambda: RULES.repetition("a", REPEATED_BYTES + 1), 431),
        (lambda: RULES.head_bytes(b"/", {"a": 100 * "a"}, 0), 431),
        (lambda: RULES.head_bytes(b"/", {"a": "a"}, 100), 431),
        (lambda: RULES.head_bytes(100 * b"/", {}, 0), 414),
        (lambda: RULES.body_bytes(11), 413),
        (lambda: RULES.coding("chunked", http10=True), 400),
        (lambda: RULES.coding("gzip, chunked", http10=False), 501),
        (lambda: RULES.expectation("200-ok"), 417),
    ],
)
def test_each_rule_has_its_status(check: Callable[[], object], status: int) -> None:
    with pytest.raises(Refused) as refused:
        check()
    assert refused.value.status == status
    assert refused.value.bug is None


def test_what_is_within_the_limits_passes() -> None:
    assert (RULES.version("1.0"), RULES.version("1.1")) == (True, False)
    RULES.origin(b"GET", {}, http10=True)
    RULES.repetition("a", REPEATED_BYTES)
    RULES.head_bytes(b"/", {"a": "a"}, 0)
    assert RULES.body_bytes(10) == 10
    RULES.coding("Chunked", http10=False)
    RULES.expectation("100-Continue")


def test_the_authority_of_an_absolute_target_replaces_the_host_header() -> None:
    headers = {"host": "a"}
    RULES.target(b"GET", b"http://b:1/path", headers, http10=False)
    assert headers == {"host": "b:1"}


def test_names_of_headers_keep_their_capitals_if_they_are_to() -> None:
    rules = RequestRules(Limits())
    assert type(rules.header_names[b"X-User"]) is str
    rules.keep_sent_names()
    name = rules.header_names[b"X-User"]
    assert name == "x-user"
    assert {"x-user": 1}[name] == {name: 1}["x-user"] == 1
    assert as_sent(name) == "X-User"
    assert type(rules.header_names[b"x-user"]) is str


def test_hosts_that_passed_once_are_known_from_then_on() -> None:
    rules = RequestRules(Limits())
    rules.answer_only(OriginCheck(Origins(), Binding.LOOPBACK))
    assert "localhost:1" not in rules.known_hosts
    rules.origin(b"GET", {"host": "localhost:1"}, http10=False)
    assert "localhost:1" in rules.known_hosts
    with pytest.raises(Refused) as refused:
        rules.origin(b"GET", {"host": "elsewhere"}, http10=False)
    assert refused.value.status == 421


def test_without_origins_an_answer_has_no_headers_for_web_pages() -> None:
    assert RULES.cors_headers({"origin": "http://a"}) == ()
