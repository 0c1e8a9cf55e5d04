"""What does a connection's parsing cost? In proportion to what has come, however it is cut."""

import asyncio

import pytest

from tests.costs import assert_linear
from tests.unit.server.http.raw import feed
from tests.unit.server.http.test_fuzz_parser import Wire, answer
from wherry.server.connections.limits import Limits
from wherry.server.http.protocol import HttpConnection, HttpConnections

pytestmark = pytest.mark.slow

#: A body may be long here; a head is refused at its own bound.
LIMITS = Limits(max_body_bytes=2**30)

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LONG = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"

#: What stands before, again and again, and behind: `%d` is another number each time.
SHAPES = {
    "one long header": (GET + b"X: ", b"a", b"\r\n\r\n"),
    "a header of commas": (GET + b"Accept-Encoding: ", b",", b"\r\n\r\n"),
    "headers with other names": (GET, b"X%d: \r\n", b"\r\n"),
    "headers without a name": (GET, b": \r\n", b"\r\n"),
    "a header again and again": (GET, b"X: a\r\n", b"\r\n"),
    "cookies": (GET, b"Cookie: a=b\r\n", b"\r\n"),
    "codings of the body": (GET + b"Transfer-Encoding: ", b"chunked,", b"\r\n\r\n"),
    "a header that never ends": (GET, b"X: \r\n ", b""),
    "blanks": (GET + b"X:", b" \t", b"a\r\n\r\n"),
    "empty lines": (b"", b"\r\n", GET + b"\r\n"),
    "a long path": (b"GET /", b"a/", b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "an escaped path": (b"GET /", b"%2e/", b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a query": (b"GET /?", b"a=%20&", b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a long method": (b"", b"G", b" / HTTP/1.1\r\n\r\n"),
    "tiny requests": (b"", GET + b"\r\n", b""),
    "requests of other paths": (b"", b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", b""),
    "requests of other hosts": (b"", b"GET / HTTP/1.1\r\nHost: a%d\r\n\r\n", b""),
    "tiny chunks": (CHUNKED, b"1\r\na\r\n", b"0\r\n\r\n"),
    "large chunks": (CHUNKED, b"400\r\n" + bytes(1024) + b"\r\n", b"0\r\n\r\n"),
    "an extension of a chunk": (CHUNKED + b"1;", b"a=b;", b"\r\na\r\n0\r\n\r\n"),
    "zeros before a chunk's size": (CHUNKED, b"0", b"1\r\na\r\n0\r\n\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"X%d: a\r\n", b"\r\n"),
    "a body": (LONG, b"a", b""),
    "nothing of HTTP": (b"", b"\xff\0", b""),
    "upgrades": (b"", GET + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", b""),
    "expectations": (b"", GET + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", b""),
}


async def talk(data: bytes, piece: int) -> None:
    connections = HttpConnections(answer, LIMITS)
    connection = HttpConnection(connections)
    wire = Wire(connection)
    connection.connection_made(wire)
    for start in range(0, len(data), piece):
        part = data[start : start + piece]
        while part and wire.connection is not None:
            part = part[feed(wire.protocol, part) :]
            while not wire.reading and wire.connection is not None:  # noqa: ASYNC110 - turns
                await asyncio.sleep(0)
        del wire.written[:]
    if wire.connection is not None:
        connection.eof_received()
        wire.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("piece", [2**16, 100], ids=["whole reads", "small reads"])
@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_bytes_cost_twice_as_much(shape: str, piece: int) -> None:
    before, unit, behind = SHAPES[shape]

    def make(size: int) -> bytes:
        numbered = b"%d" in unit
        middle = b"".join(unit % n for n in range(size)) if numbered else unit * size
        return before + middle + behind

    assert_linear(lambda data: asyncio.run(talk(data, piece)), make, smallest=256, largest=2**17)
