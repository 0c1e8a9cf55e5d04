"""What does a listener answer to browsers: refusals, preflights, and what a page may read?"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.server.http.raw import (
    Answer,
    Client,
    LoopFactory,
    ManualApplication,
    connected,
    echo,
    on_each_loop,
    run,
)
from wherry.server.access.origins import Origins
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Application, Exchange
from wherry.server.http.listener import Listener
from wherry.server.listeners import Cors

pytestmark = on_each_loop

PAGE = "https://app.example.com"
EVIL = "https://evil.example"


@asynccontextmanager
async def listening(
    application: Application = echo,
    limits: Limits | None = None,
    *,
    allowed_hosts: tuple[str, ...] = (),
    cors_origins: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[Client]:
    """A client of a listener that has rules."""
    origins = Origins(allowed_hosts, cors_origins)
    listener = Listener(Cors(application, origins) if origins else application, limits, origins)
    await listener.start(port=0, **options)
    host, _, port = listener.addresses[0].rpartition(":")
    try:
        async with connected((host, int(port))) as client:
            yield client
    finally:
        await listener.drain(1)


async def asked(client: Client, request: str, body: bytes = b"") -> Answer:
    lines = request.replace("\n", "\r\n")
    client.send(lines.encode("latin-1") + b"\r\n\r\n" + body)
    return await client.answer(bodiless=request.startswith("HEAD"))


REFUSED = {
    "another host": ("GET / HTTP/1.1\nHost: evil.example", 421),
    "another host in HTTP/1.0": ("GET / HTTP/1.0\nHost: evil.example", 421),
    "no name": ("GET / HTTP/1.1\nHost: user@localhost", 400),
    "an empty host": ("GET / HTTP/1.1\nHost:", 400),
    "two hosts": ("GET / HTTP/1.1\nHost: localhost\nHost: evil.example", 400),
    "two hosts, the evil one first": ("GET / HTTP/1.1\nHost: evil.example\nHost: localhost", 400),
    "a folded host": ("GET / HTTP/1.1\nHost: localhost\n .evil.example", 400),
    "another host in the target": ("GET http://evil.example/ HTTP/1.1\nHost: localhost", 421),
    "another host in both": ("GET http://evil.example/ HTTP/1.1\nHost: evil.example", 421),
    "another host than the target's": (
        "GET http://localhost/ HTTP/1.1\nHost: evil.example",
        421,
    ),
    "another host in the target of HTTP/1.0": ("GET http://evil.example/ HTTP/1.0", 421),
    "a user in the target": ("GET http://u@localhost/ HTTP/1.1\nHost: localhost", 400),
    "a foreign page": (f"GET / HTTP/1.1\nHost: localhost\nOrigin: {EVIL}", 403),
    "a foreign page that sends text": (
        f"POST / HTTP/1.1\nHost: localhost\nOrigin: {EVIL}\nContent-Type: text/plain\n"
        "Content-Length: 2",
        403,
    ),
    "a preflight of a foreign page": (
        f"OPTIONS / HTTP/1.1\nHost: localhost\nOrigin: {EVIL}\nAccess-Control-Request-Method: POST",
        403,
    ),
    "a page without a site": ("POST / HTTP/1.1\nHost: localhost\nOrigin: null", 403),
    "two origins": (
        f"POST / HTTP/1.1\nHost: localhost\nOrigin: http://localhost\nOrigin: {EVIL}",
        403,
    ),
    "an image on a foreign page": (
        "GET / HTTP/1.1\nHost: localhost\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors",
        403,
    ),
    "a page on another port": (
        "GET / HTTP/1.1\nHost: localhost\nsec-fetch-site: same-site",
        403,
    ),
    "a web socket of a foreign page": (
        f"GET / HTTP/1.1\nHost: localhost\nOrigin: {EVIL}\nConnection: Upgrade\n"
        "Upgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: AAAA",
        403,
    ),
    "a forwarded host": ("GET / HTTP/1.1\nHost: evil.example\nX-Forwarded-Host: localhost", 421),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_a_foreign_page_may_have_sent_reaches_no_application(
    case: str, loop_factory: LoopFactory
) -> None:
    request, status = REFUSED[case]

    async def main() -> None:
        app = ManualApplication()
        async with listening(app) as client:
            answer = await asked(client, request)
            assert answer.status == status
            assert answer.headers["connection"] == "close"
            assert "access-control-allow-origin" not in answer.headers
            assert len(app) == 0

    run(main(), loop_factory)


def test_a_foreign_page_is_refused_before_its_body_is_read(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with listening(ManualApplication()) as client:
            head = f"POST / HTTP/1.1\nHost: localhost\nOrigin: {EVIL}\nContent-Length: 60000000"
            assert (await asked(client, head)).status == 403

    run(main(), loop_factory)


ANSWERED = {
    "a program": "GET / HTTP/1.1\nHost: localhost:8000",
    "blanks around the host": "GET / HTTP/1.1\nHost: \t localhost:8000 \t",
    "a program of HTTP/1.0": "GET / HTTP/1.0",
    "the host in the target": "GET http://localhost:80/ HTTP/1.1\nHost: LOCALHOST",
    "the own page": "POST / HTTP/1.1\nHost: localhost\nOrigin: http://localhost\nContent-Length: 0",
    "an upgrade that is not spoken": (
        "GET / HTTP/1.1\nHost: localhost\nOrigin: http://localhost\nConnection: Upgrade\n"
        "Upgrade: websocket"
    ),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_programs_and_the_own_page_are_answered(case: str, loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with listening() as client:
            for _ in range(1 if "1.0" in case else 3):
                answer = await asked(client, ANSWERED[case])
                assert answer.status == 200
                assert "access-control-allow-origin" not in answer.headers

    run(main(), loop_factory)


def test_every_answer_says_that_its_type_is_not_to_be_guessed(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with listening() as client:
            answer = await asked(client, "GET / HTTP/1.1\nHost: localhost")
            assert answer.headers["x-content-type-options"] == "nosniff"
            answer = await asked(client, "GET / HTTP/1.1\nHost: evil.example")
            assert answer.headers["x-content-type-options"] == "nosniff"

    run(main(), loop_factory)


def test_a_unix_socket_is_asked_under_any_name(loop_factory: LoopFactory, tmp_path: Any) -> None:
    async def main() -> None:
        listener = Listener(echo, None, Origins())
        await listener.start(uds=tmp_path / "s")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        client = Client(reader, writer)
        try:
            answer = await asked(client, "GET / HTTP/1.1\nHost: anything at all")
            assert answer.status == 200
            answer = await asked(client, f"GET / HTTP/1.1\nHost: x\nOrigin: {EVIL}")
            assert answer.status == 403
        finally:
            writer.transport.abort()
            await listener.drain(1)

    run(main(), loop_factory)


def test_an_allowed_page_asks_first_and_is_answered_without_the_application(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with listening(app, cors_origins=(PAGE,)) as client:
            answer = await asked(
                client,
                f"OPTIONS /v1/chat/completions HTTP/1.1\nHost: localhost\nOrigin: {PAGE}\n"
                "Sec-Fetch-Site: cross-site\nAccess-Control-Request-Method: POST\n"
                "Access-Control-Request-Headers: authorization,content-type,x-stainless-os",
            )
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == PAGE
            allowed = answer.headers["access-control-allow-headers"]
            assert allowed == "authorization,content-type,x-stainless-os"
            assert len(app) == 0

    run(main(), loop_factory)


def streams(exchange: Exchange) -> None:
    exchange.start(200, content_type="text/event-stream")
    exchange.send(b"data: 1\n\n")
    exchange.finish()


def fails(exchange: Exchange) -> None:
    exchange.respond(503, b"{}", headers=[("Retry-After", "1")])


@pytest.mark.parametrize(
    ("application", "status"),
    [(echo, 200), (streams, 200), (fails, 503)],
    ids=["answer", "stream", "error"],
)
def test_an_allowed_page_may_read_answers_streams_and_errors(
    application: Application, status: int, loop_factory: LoopFactory
) -> None:
    async def main() -> None:
        async with listening(application, cors_origins=(PAGE,)) as client:
            request = f"POST / HTTP/1.1\nHost: localhost\nOrigin: {PAGE}\nContent-Length: 2"
            answer = await asked(client, request, b"ab")
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
            answer = await asked(client, request.replace(PAGE, EVIL), b"ab")
            assert answer.status == 403
            assert "access-control-allow-origin" not in answer.headers

    run(main(), loop_factory)


TRANSPORT_REFUSALS = {
    "length": ("Content-Length: x", b"", 400),
    "body": ("Content-Length: 5000", b"", 413),
    "chunks": ("Transfer-Encoding: chunked", b"fff\r\n" + 4095 * b"x" + b"\r\n", 413),
    "head": ("A: " + 3000 * "x", b"", 431),
    "coding": ("Transfer-Encoding: br", b"", 501),
    "host": ("Host: x", b"", 400),
}


@pytest.mark.parametrize("case", TRANSPORT_REFUSALS)
def test_an_allowed_page_may_read_what_the_transport_refuses(
    case: str, loop_factory: LoopFactory
) -> None:
    line, body, status = TRANSPORT_REFUSALS[case]

    async def main() -> None:
        limits = Limits(max_body_bytes=1000, max_header_bytes=2000)
        async with listening(limits=limits, cors_origins=(PAGE,)) as client:
            request = f"POST / HTTP/1.1\nHost: localhost\nOrigin: {PAGE}\n{line}"
            answer = await asked(client, request, body)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE

    run(main(), loop_factory)


def test_an_allowed_page_hears_that_the_name_is_another(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with listening(cors_origins=(PAGE,)) as client:
            answer = await asked(client, f"GET / HTTP/1.1\nHost: other\nOrigin: {PAGE}")
            assert answer.status == 421
            assert answer.headers["access-control-allow-origin"] == PAGE

    run(main(), loop_factory)


def test_a_page_that_leaves_is_told_to_the_application(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with listening(app, cors_origins=(PAGE,)) as client:
            client.send(f"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: {PAGE}\r\n\r\n".encode())
            exchange = await app.next()
            left = asyncio.Event()
            exchange.on_disconnect = left.set
            client.reset()
            await left.wait()
            exchange.respond(200, b"too late")  # is dropped

    run(main(), loop_factory)
