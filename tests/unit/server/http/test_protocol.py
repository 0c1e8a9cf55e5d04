"""How do bytes on a connection become exchanges, and answers bytes again?"""

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack, suppress

import pytest

from tests.unit.server.http.raw import (
    LoopFactory,
    ManualApplication,
    connected,
    echo,
    on_each_loop,
    plain_socket,
    received,
    run,
    service_and_client,
    serving,
    until,
)
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import RESERVE
from wherry.server.http import wire
from wherry.server.http.exchange import Exchange
from wherry.server.http.waits import PROGRESS_BYTES

pytestmark = on_each_loop

HEAD = b"POST / HTTP/1.1\r\nHost: test\r\n"
POST = HEAD + b"Content-Length: 3\r\n\r\none"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01", 400, "unknown method"),
    "unknown method": (b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "unknown method"),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed"),
    "HTTP/2 as a version": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "HTTP/1.1"),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505, "HTTP/1.1"),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501, "proxy"),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
    "two Hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "Host"),
    "NUL in the target": (b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "malformed"),
    "NUL in a header": (HEAD + b"A: b\0c\r\n\r\n", 400, "malformed"),
    "NUL in a header's name": (HEAD + b"A\0: b\r\n\r\n", 400, "malformed"),
    "folded header": (HEAD + b"A: b\r\n c\r\n\r\n", 400, "malformed"),
    "space before the colon": (HEAD + b"Content-Length : 3\r\n\r\nabc", 400, "malformed"),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: a\n\n", 400, "malformed"),
    "bare carriage return": (HEAD + b"A: b\rc\r\n\r\n", 400, "malformed"),
    "two lengths": (
        HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        400,
        "Content-Length",
    ),
    "a list of lengths": (HEAD + b"Content-Length: 3, 3\r\n\r\nabc", 400, "Content-Length"),
    "signed length": (HEAD + b"Content-Length: +3\r\n\r\nabc", 400, "Content-Length"),
    "length too long to count": (
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        400,
        "Content-Length",
    ),
    "unknown coding": (HEAD + b"Transfer-Encoding: br\r\n\r\n", 501, "br"),
    "coding before chunked": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "gzip"),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "1.0"),
    "bad chunk size": (CHUNKED + b"zz\r\n", 400, "chunk size"),
    "chunk longer than it says": (CHUNKED + b"3\r\nabcd\r\n", 400, "chunk"),
    "other expectation": (HEAD + b"Expect: tea\r\nContent-Length: 3\r\n\r\n", 417, "tea"),
    "upgrade with a body over the limit": (
        HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1001\r\n\r\n",
        413,
        "limit of 1000 bytes",
    ),
    "body over the limit": (HEAD + b"Content-Length: 1001\r\n\r\n", 413, "limit of 1000 bytes"),
    "expected body over the limit": (
        HEAD + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n",
        413,
        "limit of 1000 bytes",
    ),
    "chunks over the limit": (
        CHUNKED + b"258\r\n" + 600 * b"x" + b"\r\n191\r\n" + 401 * b"x",
        413,
        "limit of 1000 bytes",
    ),
    "headers over the limit": (HEAD + b"A: " + 2000 * b"x" + b"\r\n\r\n", 431, "limit of 2000"),
    "headers over the limit, no end": (HEAD + b"A: " + 2000 * b"x", 431, "limit of 2000 bytes"),
    "many headers": (HEAD + 400 * b"A: b\r\n" + b"\r\n", 431, "limit of 2000 bytes"),
    "target over the limit": (
        b"GET /" + 2000 * b"x" + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        414,
        "limit of 2000 bytes",
    ),
    "target over the limit, no end": (b"GET /" + 2000 * b"x", 414, "limit of 2000 bytes"),
    "trailers over the limit": (
        CHUNKED + b"1\r\nx\r\n0\r\nA: " + 200_000 * b"x",
        431,
        "limit of 2000 bytes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_or_excessive_request_is_refused_and_the_connection_closed(
    case: str, loop_factory: LoopFactory
) -> None:
    data, status, message = REFUSED[case]

    async def main() -> None:
        limits = Limits(max_body_bytes=1000, max_header_bytes=2000)
        app = ManualApplication()
        async with service_and_client(app, limits) as (_, client):
            client.send(data)
            answer = await client.answer()
            assert answer.status == status
            assert message in answer.error
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""
            assert len(app) == 0

    run(main(), loop_factory)


def test_a_client_that_sends_a_too_large_body_to_its_end_still_reads_the_refusal(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with service_and_client(ManualApplication(), Limits(max_body_bytes=1_000_000)) as (
            _,
            client,
        ):
            client.post(1_000_001 * b"x")
            await client.writer.drain()
            answer = await client.answer()
            assert answer.status == 413
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_a_refused_client_that_goes_on_sending_for_ever_is_cut_off(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with service_and_client(ManualApplication(), Limits(max_body_bytes=10_000)) as (
            service,
            client,
        ):
            client.post(20_000 * b"x")
            await client.answer()
            client.send(10_001 * b"x")
            await service.all_gone()

    run(main(), loop_factory)


def test_pipelined_requests_are_answered_in_order_whatever_the_order_of_their_answers(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (_, client):
            client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % i for i in range(4)))
            first, second, third, fourth = [await app.next() for _ in range(4)]
            third.respond(200, b"third")
            fourth.start(200)
            fourth.send(b"fourth")
            assert fourth.congested
            second.respond(200, [b"se", bytearray(b"co"), memoryview(b"nd")])
            first.start(200)
            first.send(b"fir")
            first.send(b"st")
            first.finish()
            assert [(await client.answer()).body for _ in range(3)] == [
                b"first",
                b"second",
                b"third",
            ]
            assert (await client.head())[0] == 200
            assert await client.chunk() == b"fourth"
            assert not fourth.congested
            fourth.finish()
            assert await client.chunk() == b""

    run(main(), loop_factory)


def test_a_client_that_is_owed_too_many_answers_is_read_no_further(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app, Limits(max_pipelined=2)) as (service, client):
            client.send(3 * b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(lambda: len(app) == 3)
            client.get("/later")
            service.pass_time(1000)
            assert len(app) == 3
            (await app.next()).respond(200)
            exchanges = [await app.next() for _ in range(3)]
            assert exchanges[-1].request.path == "/later"
            for exchange in exchanges:
                exchange.respond(200)
            assert [(await client.answer()).status for _ in range(4)] == [200] * 4

    run(main(), loop_factory)


@pytest.mark.parametrize("length_first", [True, False])
def test_chunks_count_where_there_is_a_length_too_and_nothing_is_read_after_them(
    loop_factory: LoopFactory, length_first: bool
) -> None:
    fields = [b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"]
    head = HEAD + b"".join(fields if length_first else reversed(fields)) + b"\r\n"
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (_, client):
            client.send(head + b"4\r\nbody\r\n0\r\n\r\n" + smuggled)
            exchange = await app.next()
            assert bytes(exchange.request.body) == b"body"
            exchange.respond(200)
            answer = await client.answer()
            assert answer.status == 200
            assert answer.headers["connection"] == "close"
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_requests_are_the_same_however_their_bytes_are_cut(loop_factory: LoopFactory) -> None:
    data = (
        b"POST /a%20b?x=%20 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: 1\r\nx: 2\r\n\r\nabc"
        b"POST http://host/c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2;name=value\r\nde\r\n1\r\nf\r\n0\r\nTrailer: x\r\nX: 3\r\n\r\n"
        b"GET /d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )

    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            await until(lambda: len(service.connections.open) == 1)
            connection = service.only
            for byte in data:
                connection.data_received(bytes([byte]))
            requests = []
            for _ in range(3):
                exchange = await app.next()
                requests.append(exchange.request)
                exchange.respond(200)
            assert [(r.method, r.path, r.query, bytes(r.body)) for r in requests] == [
                ("POST", "/a b", "x=%20", b"abc"),
                ("POST", "/c", "", b"def"),
                ("GET", "/d", "", b""),
            ]
            assert requests[0].headers["x"] == "1, 2"
            assert "trailer" not in requests[1].headers
            assert requests[0].peer is not None
            assert requests[0].peer.startswith("127.0.0.1:")
            for _ in range(3):
                assert (await client.answer()).status == 200

    run(main(), loop_factory)


def test_a_large_body_lands_in_one_buffer_and_what_follows_it_is_the_next_request(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (_, client):
            body = bytes(range(256)) * 2400
            for _ in range(2):
                client.post(body)
                client.get("/next")
                large, following = await app.next(), await app.next()
                assert isinstance(large.request.body, memoryview)
                assert large.request.body == body
                assert following.request.path == "/next"
                large.respond(200, [large.request.body])
                following.respond(204)
                assert (await client.answer()).body == body
                assert (await client.answer()).status == 204

    run(main(), loop_factory)


def test_a_client_that_expects_100_continue_gets_it_once_and_in_its_turn(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            client.get("/first")
            first = await app.next()
            client.send(HEAD + b"Content-Length: 3\r\nExpect: 100-Continue\r\n\r\n")
            await until(service.reading("body"))
            first.respond(200, b"first")
            assert (await client.answer()).body == b"first"
            assert (await client.head())[0] == 100
            client.send(b"abc")
            (await app.next()).respond(200)
            assert (await client.answer()).status == 200
            client.send(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc")
            (await app.next()).respond(200)
            assert (await client.answer()).status == 200

    run(main(), loop_factory)


@pytest.mark.parametrize(
    ("lines", "connection"),
    [(b"", "close"), (b"Connection: keep-alive\r\n", "keep-alive")],
    ids=["plain", "keep-alive"],
)
def test_http_1_0_closes_unless_the_client_asks_to_keep_the_connection(
    lines: bytes, connection: str, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with service_and_client(echo) as (_, client):
            for _ in range(2 if lines else 1):
                client.send(b"POST / HTTP/1.0\r\nContent-Length: 2\r\n" + lines + b"\r\nhi")
                answer = await client.answer()
                assert answer.body == b"hi"
                assert answer.headers["connection"] == connection
            if not lines:
                assert await client.rest() == b""

    run(main(), loop_factory)


def test_a_streamed_answer_to_http_1_0_ends_with_the_connection(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (_, client):
            client.send(2 * b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            exchange, behind = await app.next(), await app.next()
            left: list[str] = []
            behind.on_disconnect = lambda: left.append("behind")
            exchange.start(200)
            exchange.send(b"one ")
            exchange.send(b"two")
            exchange.finish()
            _, headers = await client.head()
            assert headers["connection"] == "close"
            assert "transfer-encoding" not in headers
            assert await client.rest() == b"one two"
            assert left == ["behind"]

    run(main(), loop_factory)


def test_a_request_that_offers_an_upgrade_is_answered_as_if_it_had_not(
    loop_factory: LoopFactory,
) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"

    async def main() -> None:
        async with service_and_client(echo) as (_, client):
            client.send(
                HEAD + upgrade + b"Content-Length: 3\r\n\r\nabc"
                + HEAD + upgrade + b"Transfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n"
                + HEAD + b"Content-Length: 1\r\n\r\nf"
            )  # fmt: skip
            client.post(200_000 * b"g", "/", "Connection: Upgrade", "Upgrade: h2c")
            client.send(1000 * (b"GET / HTTP/1.1\r\nHost: a\r\n" + upgrade + b"\r\n"))
            bodies = [(await client.answer()).body for _ in range(4)]
            assert bodies == [b"abc", b"de", b"f", 200_000 * b"g"]
            for _ in range(1000):
                assert (await client.answer()).status == 200

    run(main(), loop_factory)


@pytest.mark.parametrize("how", ["end of file", "reset"])
def test_a_client_that_leaves_is_reported_to_each_exchange_not_yet_answered(
    how: str, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            for path in ("/answered", "/waiting", "/streaming"):
                client.get(path)
            exchanges = [await app.next() for _ in range(3)]
            left: list[str] = []
            for exchange in exchanges:
                path = exchange.request.path
                exchange.on_disconnect = lambda path=path: left.append(path)
            answered, waiting, streaming = exchanges
            answered.respond(200)
            streaming.start(200)
            if how == "reset":
                client.reset()
            else:
                client.leave()
            await service.all_gone()
            assert left == ["/waiting", "/streaming"]
            waiting.respond(200)
            streaming.send(b"late")
            streaming.finish()
            assert not streaming.congested

    run(main(), loop_factory)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_has_closed_only_its_sending_half_gets_its_answers(
    version: str, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (_, client):
            client.send(POST + POST.replace(b"1.1", version.encode()) + POST[:-1])
            client.writer.write_eof()
            first, second = await app.next(), await app.next()
            second.respond(200, b"2")
            first.respond(200, b"1")
            came = (await client.rest()).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
            assert [part[-1:] for part in came.split(b"HTTP/1.1 200 OK")] == [b"", b"1", b"2"]
            assert len(app) == 0

    run(main(), loop_factory)


def test_requests_in_one_read_are_answered_although_no_more_can_come(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with service_and_client(echo) as (_, client):
            client.send(100 * POST)
            client.writer.write_eof()
            answers = [await client.answer() for _ in range(100)]
            assert {answer.body for answer in answers} == {b"one"}
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_a_client_that_waits_behind_its_closed_half_hears_once_that_we_go_on(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            client.send(POST)
            client.writer.write_eof()
            exchange = await app.next()
            left: list[str] = []
            exchange.on_disconnect = lambda: left.append("left")
            assert (await client.head())[0] == 100
            for _ in range(3):
                service.connections.sweep()
            exchange.respond(200, b"late")
            assert (await client.answer()).body == b"late"
            assert await client.rest() == b""
            assert not left

    run(main(), loop_factory)


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_has_closed_both_halves_has_left(
    begun: bool, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            client.get("/")
            exchange = await app.next()
            left = asyncio.Event()
            exchange.on_disconnect = left.set
            if begun:
                exchange.start(200)
            client.leave()
            await left.wait()
            await service.all_gone()

    run(main(), loop_factory)


def test_the_application_sees_congestion_of_a_slow_reader_and_its_end(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with serving(app) as service, connected(
            service.address, receive_buffer=4096
        ) as client:  # fmt: skip
            client.get()
            exchange = await app.next()
            drains: list[bool] = []
            exchange.on_drain = lambda: drains.append(exchange.congested)
            exchange.start(200)
            sent = 0
            while not exchange.congested:
                exchange.send(2**16 * b"x")
                sent += 2**16
            assert drains == []
            await client.head()
            received = 0
            while not drains:
                received += len(await client.chunk())
            assert drains == [False]
            exchange.finish()
            while piece := await client.chunk():
                received += len(piece)
            assert received == sent

    run(main(), loop_factory)


def test_a_reader_that_takes_nothing_any_more_is_dropped(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            serving(app, Limits(write_timeout=30)) as service,
            connected(service.address, receive_buffer=4096) as client,
        ):
            client.get()
            exchange = await app.next()
            left: list[str] = []
            exchange.on_disconnect = lambda: left.append("left")
            exchange.start(200)
            while not exchange.congested:
                exchange.send(2**16 * b"x")
            service.pass_time(29)
            assert left == []
            service.pass_time(2)
            await until(lambda: left == ["left"])

    run(main(), loop_factory)


def test_answers_that_wait_for_one_before_them_are_bounded_and_then_nothing_more_is_read(
    loop_factory: LoopFactory,
) -> None:
    """A client that pipelines, and whose first answer takes long, is read no further."""

    async def main() -> None:
        app = ManualApplication()
        limits = Limits(max_connection_unsent_bytes=500_000)
        async with service_and_client(app, limits) as (service, client):
            client.send(4 * b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            first, *others = [await app.next() for _ in range(4)]
            for exchange in others:
                exchange.respond(200, [200_000 * b"x", b"y"])
            unsent = service.connections.holdings.unsent
            assert unsent.total > 600_000
            client.get("/later")
            service.pass_time(1)
            assert len(app) == 0
            first.respond(200)
            (await app.next()).respond(200)
            assert [len((await client.answer()).body) for _ in range(5)] == [0, *3 * [200_001], 0]
            assert unsent.total == 0

    run(main(), loop_factory)


def test_answers_that_are_not_read_end_the_connection_that_holds_its_oldest_longest(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        limits = Limits(max_unsent_bytes=50_000_000)
        async with (
            serving(app, limits) as service,
            connected(service.address, receive_buffer=4096) as first,
            connected(service.address, receive_buffer=4096) as second,
            connected(service.address, receive_buffer=4096) as third,
        ):
            left: list[int] = []
            for number, client in enumerate((first, second, third)):
                client.get()
                exchange = await app.next()
                exchange.start(200)
                exchange.on_disconnect = lambda number=number: left.append(number)
                assert left == []
                service.clock.now += 1
                exchange.send(20_000_000 * b"x")
            await until(lambda: left == [0])
            assert service.connections.holdings.unsent.total < 50_000_000

    run(main(), loop_factory)


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_do_not_end_are_bounded_for_all_clients(
    loop_factory: LoopFactory, chunked: bool
) -> None:
    async def main() -> None:
        limits = Limits(max_received_bytes=1_000_000)
        head = b"Transfer-Encoding: chunked\r\n\r\nf4240\r\n" if chunked else (
            b"Content-Length: 1000000\r\n\r\n"
        )  # fmt: skip
        async with (
            serving(ManualApplication(), limits) as service,
            connected(service.address) as first,
            connected(service.address) as second,
            connected(service.address) as third,
        ):
            received = service.connections.holdings.received
            for number, client in enumerate((first, second, third)):
                service.clock.now += 1
                assert len(service.connections.open) == 3
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\n" + head + bytes(400_000))
                if number < 2:
                    await until(lambda most=400_000 * (number + 1): received.total >= most)  # type: ignore[misc]
            await until(lambda: len(service.connections.open) == 2)
            await until(lambda: received.total == 800_000)

    run(main(), loop_factory)


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answers_is_not_read_either(
    loop_factory: LoopFactory,
) -> None:
    def generous(exchange: Exchange) -> None:
        answered.append(exchange.request.path)
        exchange.respond(200, 2**18 * b"x")

    answered: list[str] = []

    async def main() -> None:
        async with serving(generous) as service, connected(
            service.address, receive_buffer=4096
        ) as client:  # fmt: skip
            client.get()
            await until(lambda: len(answered) == 1)
            for _ in range(40):
                client.get()
                await until(lambda: client.writer.transport.get_write_buffer_size() == 0)
            assert len(answered) < 30
            for _ in range(41):
                assert len((await client.answer()).body) == 2**18
            assert len(answered) == 41

    run(main(), loop_factory)


@pytest.mark.parametrize(
    ("data", "reading", "status"),
    [(b"GET / HTTP/1.1\r\nHo", "head", 408), (HEAD + b"Content-Length: 9\r\n\r\na", "body", 408)],
    ids=["head", "body"],
)
def test_a_request_that_never_gets_complete_is_refused_in_time(
    data: bytes, reading: str, status: int, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        limits = Limits(header_timeout=5, body_timeout=5, idle_timeout=60)
        async with service_and_client(ManualApplication(), limits) as (service, client):
            client.send(data)
            await until(service.reading(reading))
            service.pass_time(4.9)
            assert service.reading(reading)()
            service.pass_time(0.2)
            answer = await client.answer()
            assert answer.status == status
            assert "5 s" in answer.error
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_the_head_must_arrive_in_time_even_if_something_arrives_all_along(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with service_and_client(ManualApplication(), Limits(header_timeout=5)) as (
            service,
            client,
        ):
            client.send(b"GET / HTTP/1.1\r\n")
            await until(service.reading("head"))
            connection = service.only
            for byte in b"Host: a":
                connection.data_received(bytes([byte]))
                service.pass_time(1)
            assert (await client.answer()).status == 408

    run(main(), loop_factory)


def test_a_header_that_is_repeated_again_and_again_is_refused(loop_factory: LoopFactory) -> None:
    """Each time, what came before is joined anew."""

    async def main() -> None:
        async with service_and_client(echo) as (_, client):
            client.send(HEAD + b"A: b\r\n" * 50 + b"Content-Length: 1\r\n\r\nx")
            assert (await client.answer()).status == 200
            client.send(HEAD + b"A: b\r\n" * 5000 + b"\r\n")
            answer = await client.answer()
            assert answer.status == 431
            assert "repeats" in answer.error

    run(main(), loop_factory)


def test_an_idle_connection_is_closed_without_a_word_but_not_one_that_waits_for_us(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app, Limits(idle_timeout=5)) as (service, client):
            client.get()
            exchange = await app.next()
            service.pass_time(1000)
            exchange.respond(200)
            assert (await client.answer()).status == 200
            service.pass_time(6)
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_a_refused_client_that_never_leaves_is_cut_off(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with service_and_client(ManualApplication()) as (service, client):
            client.send(b"nonsense")
            assert (await client.answer()).status == 400
            service.pass_time(3)
            await service.all_gone()

    run(main(), loop_factory)


def test_past_the_limit_the_connection_that_is_idle_for_longest_makes_room(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            serving(app, Limits(max_connections=3)) as service,
            connected(service.address) as busy,
            connected(service.address) as oldest,
            connected(service.address) as younger,
        ):
            busy.get()
            exchange = await app.next()
            await until(lambda: len(service.connections.open) == 3)
            service.pass_time(10)
            younger.get()
            (await app.next()).respond(200)
            await younger.answer()
            service.pass_time(0)
            async with connected(service.address) as new:
                new.get()
                (await app.next()).respond(200, b"new")
                assert (await new.answer()).body == b"new"
                assert await oldest.rest() == b""
                younger.get()
                (await app.next()).respond(200, b"still there")
                assert (await younger.answer()).body == b"still there"
                exchange.respond(200, b"busy")
                assert (await busy.answer()).body == b"busy"

    run(main(), loop_factory)


@pytest.mark.parametrize("half_here", [b"GET / HT", HEAD + b"Content-Length: 3\r\n\r\nx"])
def test_past_the_limit_health_is_answered_and_everything_else_told_to_come_back(
    loop_factory: LoopFactory, half_here: bytes
) -> None:
    async def main() -> None:
        limits = Limits(max_connections=1)
        vital = frozenset({"/livez"})
        async with (
            serving(echo, limits, vital=vital) as service,
            connected(service.address) as first,
        ):
            first.send(half_here)
            await until(lambda: any("between" not in repr(c) for c in service.connections.open))
            async with connected(service.address) as second:
                second.get("/livez")
                answer = await second.answer()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
            async with connected(service.address) as third:
                third.get("/elsewhere")
                answer = await third.answer()
                assert (answer.status, answer.headers["connection"]) == (503, "close")
                assert answer.headers["retry-after"] == "1"
                assert "limit of 1 connections" in answer.error
            first.leave()
            await service.all_gone()
            async with connected(service.address) as fourth:
                fourth.post(b"room")
                assert (await fourth.answer()).body == b"room"

    run(main(), loop_factory)


def test_the_places_beyond_the_limit_cannot_be_held(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(max_connections=1), vital=frozenset({"/livez"})) as service,
            AsyncExitStack() as stack,
        ):
            for _ in range(RESERVE + 20):
                client = await stack.enter_async_context(connected(service.address))
                client.send(b"GET / HT")
                await until(service.reading("head"))
            async with connected(service.address) as probe:
                probe.get("/livez")
                assert (await probe.answer()).status == 200
            assert len(service.connections.open) <= 1 + RESERVE + 1

    run(main(), loop_factory)


TINY = b"GET /%d HTTP/1.1\r\nHost:a\r\n\r\n"


def test_many_requests_on_one_connection_leave_the_others_their_turn(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        paths: list[str] = []

        def note(exchange: Exchange) -> None:
            paths.append(exchange.request.path)
            echo(exchange)

        async with (
            serving(note) as service,
            plain_socket(service.address) as greedy,
            plain_socket(service.address) as modest,
        ):
            await until(lambda: len(service.connections.open) == 2)
            greedy.send(b"".join(TINY % n for n in range(1000)))
            modest.send(b"GET /modest HTTP/1.1\r\nHost:a\r\n\r\n")
            await until(lambda: len(paths) == 1001)
            assert paths.index("/modest") < 100
            paths.remove("/modest")
            assert paths == [f"/{n}" for n in range(1000)]

    run(main(), loop_factory)


def test_requests_of_one_read_wait_while_too_many_answers_are_owed(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            serving(app, Limits(max_pipelined=16)) as service,
            plain_socket(service.address) as client,
        ):
            client.send(b"".join(TINY % n for n in range(1000)))
            for number in range(1000):
                exchange = await app.next()
                assert exchange.request.path == f"/{number}"
                assert len(service.only.answers.exchanges) <= 17
                exchange.respond(200)

    run(main(), loop_factory)


@pytest.mark.parametrize(
    "pieces",
    [
        [TINY % 1, HEAD + b"Content-Length: 3000\r\n\r\n", 3000 * b"x", TINY % 2],
        [CHUNKED, b"7d0\r\n" + 2000 * b"x" + b"\r\n", b"1\r\ny\r\n" * 300, b"0\r\n\r\n"],
        [CHUNKED, b"0\r\nContent-Length: 9\r\n" + b"A: b\r\n" * 100 + b"\r\n", TINY % 3],
        [HEAD + b"Content-Length: 100000\r\n\r\n", 100_000 * b"x", TINY % 4],
        [b"GET /" + 3000 * b"a" + b" HTTP/1.1\r\nHost:a\r\n\r\n", TINY % 5],
        [HEAD + b"Expect: 100-continue\r\nContent-Length: 2000\r\n\r\n", 2000 * b"x"],
    ],
    ids=["a body", "chunks", "trailers", "a large body", "a long head", "expected"],
)
def test_what_comes_in_one_read_is_what_comes_in_many(
    loop_factory: LoopFactory, pieces: list[bytes]
) -> None:
    async def main() -> None:
        def note(exchange: Exchange) -> None:
            seen.append((exchange.request.path, bytes(exchange.request.body)))
            exchange.respond(200)

        async def send(*parts: bytes) -> list[tuple[str, bytes]]:
            async with service_and_client(note) as (_, client):
                for part in parts:
                    client.send(part)
                    await until(lambda: client.writer.transport.get_write_buffer_size() == 0)
                client.get("/last", "Connection: close")
                await client.rest()
            return seen

        seen: list[tuple[str, bytes]] = []
        alone = list(await send(*pieces))
        seen.clear()
        assert await send(b"".join(pieces)) == alone
        assert alone[-1][0] == "/last"

    run(main(), loop_factory)


def test_pipelined_requests_that_have_arrived_are_all_answered_while_the_server_drains(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        for application in (echo, ManualApplication()):
            async with (
                serving(application) as service,
                plain_socket(service.address) as client,
            ):
                await until(lambda service=service: len(service.connections.open) == 1)  # type: ignore[misc]
                service.connections.drain(10.0)
                client.send(b"".join(TINY % n for n in range(100)))
                if isinstance(application, ManualApplication):
                    for _ in range(100):
                        (await application.next()).respond(200)
                answers = await received(client)
                assert answers.count(b"HTTP/1.1 200") == 100
                assert answers.count(b"Connection: close") == 1
            await service.all_gone()

    run(main(), loop_factory)


@pytest.mark.parametrize(
    ("begin", "byte"),
    [(b"GET / HTTP/1.1\r\nA: ", b"a"), (HEAD + b"Content-Length: 90000\r\n\r\n", b"a")],
    ids=["head", "body"],
)
def test_a_byte_now_and_then_does_not_extend_the_time_for_a_request(
    loop_factory: LoopFactory, begin: bytes, byte: bytes
) -> None:
    async def main() -> None:
        limits = Limits(header_timeout=30, body_timeout=30)
        async with (
            serving(echo, limits) as service,
            plain_socket(service.address) as client,
        ):
            client.send(begin)
            await until(lambda: any("between" not in repr(c) for c in service.connections.open))
            for _ in range(3):
                service.pass_time(14.0)
                with suppress(OSError):
                    client.send(byte)
            answer = await asyncio.get_running_loop().sock_recv(client, 1000)
            assert b" 408 " in answer

    run(main(), loop_factory)


def test_a_body_that_goes_on_fast_enough_may_take_as_long_as_it_needs(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with service_and_client(echo, Limits(body_timeout=30)) as (service, client):
            client.send(HEAD + b"Content-Length: %d\r\n\r\n" % (10 * PROGRESS_BYTES))
            for _ in range(10):
                await until(service.reading("body"))
                before = repr(service.only)
                client.send(PROGRESS_BYTES * b"x")
                await until(lambda before=before: repr(service.only) != before)  # type: ignore[misc]
                service.pass_time(29)
            assert (await client.answer()).status == 200

    run(main(), loop_factory)


def test_a_connection_that_takes_a_reserved_descriptor_is_refused(
    loop_factory: LoopFactory,
) -> None:
    """However few there are: workers need descriptors, too."""

    async def main() -> None:
        async with serving(echo) as service, connected(service.address) as first:
            first.post(b"one")
            assert (await first.answer()).body == b"one"
            (only,) = service.connections.open
            taken = only._transport.get_extra_info("socket").fileno()
            service.connections._descriptors = taken + 1
            first.send(b"GET / HT")  # an idle one would make room
            await until(service.reading("head"))
            async with connected(service.address) as second:
                answer = await second.answer()
                assert answer.status == 503
                assert "limit of open files" in answer.error

    run(main(), loop_factory)


def test_draining_finishes_what_has_begun_and_closes_the_idle(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            serving(app) as service,
            connected(service.address) as idle,
            connected(service.address) as waiting,
            connected(service.address) as sending,
        ):
            waiting.get()
            exchange = await app.next()
            sending.send(HEAD + b"Content-Length: 3\r\n\r\n")
            await until(service.reading("body"))
            service.connections.drain(0.3)
            service.pass_time(0.3)
            assert await idle.rest() == b""
            exchange.respond(200, b"finished")
            answer = await waiting.answer()
            assert (answer.body, answer.headers["connection"]) == (b"finished", "close")
            assert await waiting.rest() == b""
            sending.send(b"abc")
            (await app.next()).respond(200)
            answer = await sending.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        await service.all_gone()

    run(main(), loop_factory)


def test_what_has_arrived_when_draining_begins_is_answered(loop_factory: LoopFactory) -> None:
    """The kernel has it, and we have not read it."""

    async def main() -> None:
        async with (
            serving(echo) as service,
            plain_socket(service.address) as sock,
            plain_socket(service.address) as idle,
        ):
            await until(lambda: len(service.connections.open) == 2)
            sock.send(POST)
            service.connections.drain(0.0)
            service.pass_time(0.0)
            # The one is idle, and closed; the other only looks so.
            assert await received(idle) == b""
            answer = await received(sock)
            assert b"connection: close" in answer.lower()
            assert answer.endswith(b"one")
        await service.all_gone()

    run(main(), loop_factory)


def test_a_request_that_follows_a_stream_is_answered_while_the_server_drains(
    loop_factory: LoopFactory,
) -> None:
    """The head of the stream did not say that it is the last answer here."""

    async def main() -> None:
        app = ManualApplication()
        async with service_and_client(app) as (service, client):
            client.get()
            stream = await app.next()
            stream.start(200)
            service.connections.drain(0.3)
            service.pass_time(10.0)
            stream.finish()
            assert (await client.answer()).status == 200
            client.get()
            (await app.next()).respond(200, b"next")
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"next", "close")
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_an_idle_connection_is_closed_only_if_no_request_is_on_it(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(idle_timeout=75)) as service,
            plain_socket(service.address) as sock,
        ):
            await until(lambda: len(service.connections.open) == 1)
            service.connections.sweep()
            sock.send(POST)
            service.clock.now += 75
            service.connections.sweep()
            answer = await asyncio.get_running_loop().sock_recv(sock, 1000)
            assert answer.endswith(b"one")
            assert b"connection: close" not in answer.lower()

    run(main(), loop_factory)


def test_a_request_that_crosses_the_end_of_an_idle_connection_finds_an_end_and_no_reset(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with (
            serving(echo, Limits(idle_timeout=75)) as service,
            plain_socket(service.address) as sock,
        ):
            await until(lambda: len(service.connections.open) == 1)
            service.pass_time(75)
            sock.send(POST)
            assert await received(sock) == b""
        await service.all_gone()

    run(main(), loop_factory)


def test_a_client_that_keeps_its_half_open_is_left_when_it_has_got_all(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with serving(echo) as service, plain_socket(service.address) as sock:
            sock.send(HEAD + b"Connection: close\r\nContent-Length: 3\r\n\r\none")
            assert (await received(sock)).endswith(b"one")
            service.pass_time(0.0)
            await service.all_gone()

    run(main(), loop_factory)


def test_what_is_half_here_when_the_time_to_drain_is_over_is_refused(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            serving(app) as service,
            connected(service.address) as sending,
            connected(service.address) as waiting,
        ):
            waiting.get()
            exchange = await app.next()
            sending.send(HEAD + b"Content-Length: 3\r\n\r\n")
            await until(service.reading("body"))
            left: list[str] = []
            exchange.on_disconnect = lambda: left.append("left")
            ending = asyncio.create_task(service.connections.end())
            answer = await sending.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert await waiting.rest() == b""
            assert left == ["left"]
            sending.leave()
            await ending

    run(main(), loop_factory)


def test_connections_leave_no_object_behind_for_the_garbage_collector(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with serving(app) as service:
            for how in ("answered", "left", "refused"):
                gc.collect()
                gc.disable()
                try:
                    async with connected(service.address) as client:
                        if how == "refused":
                            client.send(b"nonsense")
                            await client.answer()
                            reference = weakref.ref(service.only)
                        else:
                            client.get()
                            exchange = await app.next()
                            reference = weakref.ref(service.only)
                            exchange.on_disconnect = exchange.finish  # a cycle, if it is kept
                            if how == "answered":
                                exchange.respond(200)
                                await client.answer()
                            del exchange
                    await service.all_gone()
                    await until(lambda reference=reference: reference() is None)  # type: ignore[misc]
                finally:
                    gc.enable()

    run(main(), loop_factory)


def test_without_connections_there_is_no_timer(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with serving(echo) as service:
            async with connected(service.address) as client:
                client.post(b"x")
                await client.answer()
                assert service.connections._timer is not None
            await service.all_gone()
            assert service.connections._timer is None

    run(main(), loop_factory)


def test_the_first_answer_after_a_quiet_while_has_the_date_of_now(
    loop_factory: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(echo) as service:
            for date in ("Sun, 29 Nov 2026 13:36:25 GMT", "Mon, 30 Nov 2026 01:02:03 GMT"):
                monkeypatch.setattr(wire, "formatdate", lambda usegmt, date=date: date)
                async with connected(service.address) as client:
                    client.post(b"x")
                    assert (await client.answer()).headers["date"] == date
                await service.all_gone()

    run(main(), loop_factory)
