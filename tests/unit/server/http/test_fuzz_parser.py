"""Can any bytes, cut anywhere, crash the protocol, hang it, or be answered twice?

No socket: bytes go in through the methods that the loop calls, so thousands of inputs are cheap.
"""

import asyncio
import gc
import random
import weakref
from collections.abc import Iterable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.http.raw import eager, feed
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Exchange, HttpRequest
from wherry.server.http.protocol import HttpConnection, HttpConnections

LIMITS = Limits(max_body_bytes=300_000, max_header_bytes=2000, max_pipelined=4)


class Wire(asyncio.Transport):
    """A transport that takes everything at once and remembers it."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.connection: HttpConnection | None = connection
        self.protocol: asyncio.BaseProtocol = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.connection is None

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        connection, self.connection = self.connection, None
        self.protocol = asyncio.Protocol()
        if connection is not None:
            asyncio.get_running_loop().call_soon(connection.connection_lost, None)

    abort = close


class Conversation:
    """One connection: feeds it bytes, and answers its requests in an order of the test's choice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.requests: list[HttpRequest] = []
        self.unanswered: list[Exchange] = []
        self.left = 0
        self.connections = HttpConnections(self.handle, LIMITS)
        if dice.random() < 0.5:
            eager(self.connections)
        self.connection = HttpConnection(self.connections)
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)

    def handle(self, exchange: Exchange) -> None:
        self.requests.append(exchange.request)
        self.unanswered.append(exchange)
        exchange.on_disconnect = self.count_left
        if self.dice.random() < 0.5:
            self.answer_some()

    def count_left(self) -> None:
        self.left += 1

    def answer_some(self) -> None:
        self.dice.shuffle(self.unanswered)
        while self.unanswered and self.dice.random() < 0.8:
            answer(self.unanswered.pop())

    def answer_all(self) -> None:
        while self.unanswered:
            answer(self.unanswered.pop())

    async def feed(self, data: bytes) -> None:
        """As a loop does: only while the connection wants to read, and never more than fits."""
        offset = 0
        while offset < len(data) and self.wire.connection is not None:
            await self.turns()
            size = self.dice.choice([1, 7, 100, 5000, 10**6])
            offset += feed(self.wire.protocol, data[offset : offset + size])
        await self.turns()

    async def turns(self) -> None:
        """Until the connection reads on, or has ended."""
        while not self.wire.reading and self.wire.connection is not None:
            self.answer_all()
            await asyncio.sleep(0)

    def end(self) -> None:
        if self.wire.connection is not None:
            self.connection.eof_received()
            self.wire.close()


def answer(exchange: Exchange) -> None:
    exchange.respond(200, b"[%b]" % exchange.request.path.encode("latin-1", "replace"))


def head(method: bytes, number: int, *lines: bytes) -> bytes:
    return b"\r\n".join([b"%b /%d HTTP/1.1" % (method, number), b"Host: a", *lines, b"", b""])


def valid_request(dice: random.Random, number: int) -> tuple[bytes, bytes]:
    """A request with its number in the path, and its body."""
    body = dice.randbytes(dice.choice([0, 1, 50, 3000, 70_000]))
    upgrade = [b"Connection: upgrade", b"Upgrade: h2c"] if dice.random() < 0.1 else []
    kind = dice.choice(["none", "length", "chunked"])
    if kind == "none":
        return head(b"GET", number, *upgrade), b""
    if kind == "length":
        return head(b"POST", number, b"Content-Length: %d" % len(body), *upgrade) + body, body
    cut = dice.randint(0, len(body))
    pieces = [piece for piece in (body[:cut], body[cut:]) if piece]
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    text = head(b"POST", number, b"Transfer-Encoding: chunked", *upgrade)
    return text + chunks + b"0\r\nT: x\r\n\r\n", body


def statuses(written: bytes) -> list[int]:
    """The statuses of all answers in `written`, which must be whole answers and nothing else."""
    found = []
    while written:
        lines, _, rest = written.partition(b"\r\n\r\n")
        first, *fields = lines.split(b"\r\n")
        headers = dict(field.split(b": ", 1) for field in fields)
        found.append(int(first.split(b" ")[1]))
        written = rest[int(headers.get(b"Content-Length", b"0")) :]
    return found


@examples(1.5)
@given(st.integers(0, 2**32))
def test_every_valid_request_is_answered_once_and_in_order_however_it_is_cut(seed: int) -> None:
    async def main() -> None:
        dice = random.Random(seed)
        talk = Conversation(dice)
        sent = [valid_request(dice, number) for number in range(dice.randint(1, 12))]
        await talk.feed(b"".join(data for data, _ in sent))
        assert [request.path for request in talk.requests] == [f"/{n}" for n in range(len(sent))]
        assert [bytes(request.body) for request in talk.requests] == [body for _, body in sent]
        talk.answer_all()
        assert statuses(bytes(talk.wire.written)) == [200] * len(sent)
        assert talk.wire.written.endswith(b"[/%d]" % (len(sent) - 1))
        talk.end()
        await talk.connections.all_closed()
        assert talk.left == 0

    asyncio.run(main())


ALPHABET = [
    *(b"GET POST / /x HTTP/1.1 HTTP/1.0 HTTP/2.0 PRI CONNECT http://a/b * %00 ? #".split()),
    *(b"Host Content-Length Transfer-Encoding chunked Connection close keep-alive".split()),
    *(b"Upgrade h2c Expect 100-continue 0 1 5 ffffffff 70000 99999999999999999999".split()),
    *(b": ; , \r\n \r \n".split(b" ")),
    *(b" ", b"\0", b"\xff", b"\t", b"\r\n\r\n", b"0\r\n\r\n", b"Host: a\r\n"),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"x" * 2500),
]


async def check_any_input(data: bytes, seed: int) -> "weakref.ref[HttpConnection]":
    """Feed `data`; whatever it is, the connection stays sane. Give what must die afterwards."""
    asyncio.get_running_loop().set_exception_handler(_fail)
    talk = Conversation(random.Random(seed))
    await talk.feed(data)
    talk.connections.sweep()
    answered = len(talk.requests) - len(talk.unanswered)
    found = statuses(bytes(talk.wire.written).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
    assert found.count(200) <= answered
    assert all(status == 200 or 400 <= status <= 505 for status in found)
    assert 500 not in found
    assert all(status == 200 for status in found[:-1])
    waiting = len(talk.unanswered)
    talk.end()
    await asyncio.sleep(0)  # connection_lost
    assert talk.left == waiting
    talk.answer_all()
    reference = weakref.ref(talk.connection)
    vars(talk).clear()  # it is in a cycle of its own: its `handle` is the application
    return reference


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    raise AssertionError(context) from cast(BaseException | None, context.get("exception"))


async def check_and_release(data: bytes, seed: int) -> None:
    reference = await check_any_input(data, seed)
    await asyncio.sleep(0)  # connection_lost
    await asyncio.sleep(0)
    assert reference() is None


@examples(4)
@given(st.lists(st.sampled_from(ALPHABET), max_size=40), st.integers(0, 2**32))
def test_no_mixture_of_tokens_harms_the_connection(tokens: list[bytes], seed: int) -> None:
    gc.disable()
    try:
        asyncio.run(check_and_release(b"".join(tokens), seed))
    finally:
        gc.enable()


@examples(4)
@given(st.integers(0, 2**32))
def test_no_damaged_request_harms_the_connection(seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(b"".join(valid_request(dice, n)[0] for n in range(dice.randint(1, 5))))
    for _ in range(dice.randint(1, 8)):
        position = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[position] = dice.randrange(256)
            case 1:
                del data[position : position + dice.choice([1, 2, 20, 2000])]
            case 2:
                data[position:position] = dice.choice(ALPHABET)
            case _:
                start = dice.randrange(len(data))
                data[position:position] = data[start : start + dice.choice([1, 20, 300])]
        data = data or bytearray(b"x")
    gc.disable()
    try:
        asyncio.run(check_and_release(bytes(data), seed))
    finally:
        gc.enable()
