"""What does an application see, whichever transport it runs on?

One suite over our own listener and over the ASGI application under uvicorn.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import uvicorn
import uvloop

from tests.unit.server.http.raw import (
    Client,
    LoopFactory,
    ManualApplication,
    connected,
    run,
    until,
)
from wherry.server.asgi import asgi_app
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Application, Exchange
from wherry.server.http.listener import Listener

LIMITS = Limits(max_body_bytes=1_000_000)
Address = tuple[str, int]
Transport = Callable[[Application], AbstractAsyncContextManager[Address]]


@asynccontextmanager
async def own_listener(application: Application) -> AsyncIterator[Address]:
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener(application, LIMITS)
    await listener.start(sock=sock)
    try:
        yield sock.getsockname()
    finally:
        await listener.drain(1)


@asynccontextmanager
async def under_uvicorn(application: Application) -> AsyncIterator[Address]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        config = uvicorn.Config(
            asgi_app(application, LIMITS),
            log_config=None,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await until(lambda: server.started)
        try:
            yield sock.getsockname()
        finally:
            server.should_exit = True
            await serving


pytestmark = pytest.mark.parametrize(
    ("transport", "loop_factory"),
    [
        pytest.param(own_listener, asyncio.new_event_loop, id="listener-asyncio"),
        pytest.param(own_listener, uvloop.new_event_loop, id="listener-uvloop"),
        pytest.param(under_uvicorn, uvloop.new_event_loop, id="uvicorn"),
    ],
)


@asynccontextmanager
async def desk_and_client(transport: Transport) -> AsyncIterator[tuple[ManualApplication, Client]]:
    app = ManualApplication()
    async with transport(app) as address, connected(address) as client:
        yield app, client


def test_a_request_arrives_with_all_its_parts_and_its_answer_goes_back(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.post(b"the body", "/v2/models/a%20b/infer?x=%20&y", "X-Twice: 1", "x-twice: 2")
            exchange = await app.next()
            request = exchange.request
            assert (request.method, request.path) == ("POST", "/v2/models/a b/infer")
            assert request.query == "x=%20&y"
            assert request.headers["x-twice"] == "1, 2"
            assert request.headers["host"] == "test"
            assert bytes(request.body) == b"the body"
            assert request.peer is not None
            assert request.peer.startswith("127.0.0.1:")
            exchange.respond(
                404, b"not here", content_type="text/plain", headers=[("X-Reason", "gone")]
            )
            answer = await client.answer()
            assert answer.status == 404
            assert answer.body == b"not here"
            assert answer.headers["content-type"] == "text/plain"
            assert answer.headers["content-length"] == "8"
            assert answer.headers["x-reason"] == "gone"
            assert "date" in answer.headers

    run(main(), loop_factory)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 600_000, 1_000_000])
def test_a_body_of_any_size_arrives_whole_and_goes_back_whole(
    size: int, transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        body = (bytes(range(256)) * (size // 256 + 1))[:size]
        half = size // 2
        async with desk_and_client(transport) as (app, client):
            client.post(body)
            client.send(
                b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"".join(
                    b"%x\r\n%b\r\n" % (len(piece), piece)
                    for piece in (body[:half], body[half:])
                    if piece
                )
                + b"0\r\n\r\n"
            )
            for _ in range(2):
                exchange = await app.next()
                received = exchange.request.body
                assert received == body
                exchange.respond(200, [b"<", received, memoryview(b">")])
                assert (await client.answer()).body == b"<" + body + b">"

    run(main(), loop_factory)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_body_over_the_limit_is_refused_with_the_limit_in_the_message(
    chunked: bool, transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            if chunked:
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
                client.send(b"f4241\r\n" + 1_000_001 * b"x")
            else:
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000001\r\n\r\n")
            answer = await client.answer()
            assert answer.status == 413
            assert "limit of 1000000 bytes" in answer.error
            assert len(app) == 0

    run(main(), loop_factory)


def test_one_connection_serves_many_requests(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            for number in range(20):
                client.get(f"/{number}")
                exchange = await app.next()
                exchange.respond(200, exchange.request.path.encode())
                assert (await client.answer()).body == b"/%d" % number

    run(main(), loop_factory)


def test_the_answer_to_head_has_the_length_but_not_the_body(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.get(method="HEAD")
            exchange = await app.next()
            assert exchange.request.method == "HEAD"
            exchange.respond(200, b"12345")
            answer = await client.answer(bodiless=True)
            assert answer.headers["content-length"] == "5"
            client.get(method="HEAD")
            (await app.next()).respond(200, [b"12", b"345"])
            assert (await client.answer(bodiless=True)).headers["content-length"] == "5"
            client.get(method="HEAD")
            streamed = await app.next()
            streamed.start(200)
            streamed.send(b"unseen")
            streamed.finish()
            assert (await client.head())[0] == 200
            client.get()
            (await app.next()).respond(200, b"seen")
            assert (await client.answer()).body == b"seen"

    run(main(), loop_factory)


def test_an_answer_without_content_has_no_body(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            for _ in range(2):
                client.get()
                (await app.next()).respond(204)
                answer = await client.answer()
                assert answer.status == 204
                assert "content-length" not in answer.headers

    run(main(), loop_factory)


def test_a_streamed_answer_arrives_piece_by_piece(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.get()
            exchange = await app.next()
            exchange.start(200, content_type="text/event-stream", headers=[("X-Id", "7")])
            status, headers = await client.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert headers["x-id"] == "7"
            for piece in (b"data: 1\n\n", b"data: 2\n\n"):
                exchange.send(piece)
                exchange.send(b"")
                assert await client.chunk() == piece
            exchange.finish()
            assert await client.chunk() == b""
            client.get()
            (await app.next()).respond(200, b"next")
            assert (await client.answer()).body == b"next"

    run(main(), loop_factory)


@pytest.mark.parametrize("streaming", [False, True], ids=["waiting", "streaming"])
def test_a_client_that_leaves_is_reported_once_and_later_answers_do_nothing(
    streaming: bool, transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.get()
            exchange = await app.next()
            left: list[str] = []
            exchange.on_disconnect = lambda: left.append("left")
            if streaming:
                exchange.start(200)
                exchange.send(b"x")
                await client.head()
            client.leave()
            await until(lambda: left == ["left"])
            if streaming:
                exchange.send(b"late")
                exchange.finish()
            else:
                exchange.respond(200, b"late")
            assert not exchange.congested
            assert left == ["left"]

    run(main(), loop_factory)


def test_a_client_that_leaves_after_its_answer_is_not_reported(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    left: list[str] = []

    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.get()
            exchange = await app.next()
            exchange.on_disconnect = lambda: left.append("left")
            exchange.respond(200)
            await client.answer()
            client.leave()

    run(main(), loop_factory)
    assert left == []


def test_a_slow_reader_congests_its_stream_until_it_has_read(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with transport(app) as address, connected(address, receive_buffer=4096) as client:
            client.get()
            exchange = await app.next()
            drained = asyncio.Event()
            exchange.on_drain = drained.set
            exchange.start(200)
            sent = 0
            while not exchange.congested:
                exchange.send(2**16 * b"x")
                sent += 2**16
                await asyncio.sleep(0)
            await client.head()
            received = 0
            while not drained.is_set():
                received += len(await client.chunk())
            assert not exchange.congested
            exchange.finish()
            while piece := await client.chunk():
                received += len(piece)
            assert received == sent

    run(main(), loop_factory)


def test_answering_twice_is_an_error_of_the_application(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            client.get()
            exchange = await app.next()
            exchange.respond(200, b"once")
            with pytest.raises(RuntimeError, match="is not waiting"):
                exchange.respond(200, b"twice")
            with pytest.raises(RuntimeError, match="is not waiting"):
                exchange.start(200)
            with pytest.raises(RuntimeError, match="is not streaming"):
                exchange.send(b"more")
            with pytest.raises(RuntimeError, match="is not streaming"):
                exchange.finish()
            assert (await client.answer()).body == b"once"

    run(main(), loop_factory)


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\0b"])
def test_a_header_with_a_line_break_is_never_sent(
    value: str, transport: Transport, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with desk_and_client(transport) as (app, client):
            for fields in ({"headers": [("X", value)]}, {"content_type": value}):
                client.get()
                exchange = await app.next()
                with pytest.raises(ValueError, match="line break"):
                    exchange.respond(200, **fields)
                exchange.respond(500, b"sorry")
                assert (await client.answer()).body == b"sorry"

    run(main(), loop_factory)


def test_an_application_that_fails_is_a_500_for_its_client_alone(
    transport: Transport, loop_factory: LoopFactory
) -> None:
    def application(exchange: Exchange) -> None:
        if exchange.request.path == "/bad":
            raise LookupError("a mistake of ours")
        exchange.respond(200, b"fine")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with (
            transport(application) as address,
            connected(address) as bad,
            connected(address) as good,
        ):
            bad.get("/bad")
            answer = await bad.answer()
            assert answer.status == 500
            assert b"mistake" not in answer.body
            good.get("/good")
            assert (await good.answer()).body == b"fine"

    run(main(), loop_factory)


def test_many_clients_are_served_at_once(transport: Transport, loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()

        async def ask(address: Address, number: int) -> bytes:
            async with connected(address) as client:
                client.post(b"%d" % number)
                return (await client.answer()).body

        async with transport(app) as address:
            asking = [asyncio.create_task(ask(address, number)) for number in range(50)]
            exchanges: Sequence[Exchange] = [await app.next() for _ in range(50)]
            for exchange in reversed(exchanges):
                exchange.respond(200, [b"answer to ", exchange.request.body])
            assert await asyncio.gather(*asking) == [b"answer to %d" % n for n in range(50)]

    run(main(), loop_factory)
