"""Where do connections come in, and how does that end?"""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.http.raw import (
    Client,
    LoopFactory,
    ManualApplication,
    connected,
    echo,
    on_each_loop,
    received,
    run,
    until,
)
from wherry.server.http.exchange import Application
from wherry.server.http.listener import Listener, tls_context

pytestmark = on_each_loop


@asynccontextmanager
async def listening(application: Application = echo, **options: Any) -> AsyncIterator[Listener]:
    listener = Listener(application)
    await listener.start(**options)
    try:
        yield listener
    finally:
        await listener.drain(1)


def address_of(listener: Listener) -> tuple[str, int]:
    host, _, port = listener.addresses[0].rpartition(":")
    return host, int(port)


def test_a_listener_serves_on_localhost_and_says_where(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with listening(port=0) as listener:
            host, port = address_of(listener)
            assert host == "127.0.0.1"
            assert listener.url == f"http://127.0.0.1:{port}"
            async with connected((host, port)) as client:
                client.post(b"hello")
                assert (await client.answer()).body == b"hello"
                assert listener.connections == 1
        assert listener.addresses == []
        assert listener.connections == 0

    run(main(), loop_factory)


def test_an_address_in_use_is_an_error_unless_it_is_shared_on_purpose(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with listening(port=0, reuse_port=True) as first:
            port = address_of(first)[1]
            with pytest.raises(OSError, match=r"in use"):
                await Listener(echo).start(port=port)
            async with listening(port=port, reuse_port=True) as second:
                assert address_of(second)[1] == port

    run(main(), loop_factory)


def test_a_socket_that_is_already_open_can_be_served(loop_factory: LoopFactory) -> None:
    sock = socket.create_server(("127.0.0.1", 0))

    async def main() -> None:
        async with listening(sock=sock), connected(sock.getsockname()) as client:
            client.post(b"x")
            assert (await client.answer()).body == b"x"

    run(main(), loop_factory)


def test_draining_refuses_new_connections_and_waits_for_running_requests(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with listening(app, port=0) as listener:
            address = address_of(listener)
            async with connected(address) as client:
                client.get()
                exchange = await app.next()
                draining = asyncio.create_task(listener.drain(10))
                await until(lambda: listener.addresses == [])
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(*address)
                assert not draining.done()
                exchange.respond(200, b"last")
                assert (await client.answer()).body == b"last"
                await draining

    run(main(), loop_factory)


def test_connections_that_only_the_kernel_has_accepted_are_served_before_the_port_closes(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        async with listening(port=0) as listener:
            with ExitStack() as stack:
                clients = [
                    stack.enter_context(socket.create_connection(address_of(listener)))
                    for _ in range(20)
                ]
                for client in clients:
                    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none")
                    client.setblocking(False)
                draining = asyncio.create_task(listener.drain(10))
                for client in clients:
                    answer = await received(client)
                    assert answer.endswith(b"one")
                    assert b"Connection: close" in answer
                await draining

    run(main(), loop_factory)


@pytest.mark.slow
def test_it_is_drained_when_the_last_answer_is_taken_and_no_sooner(
    loop_factory: LoopFactory,
) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            listening(app, port=0) as listener,
            connected(address_of(listener), receive_buffer=4096) as client,
        ):
            client.get()
            (await app.next()).respond(200, 20_000_000 * b"x")
            draining = asyncio.create_task(listener.drain(None))
            answer = await client.answer()
            assert len(answer.body) == 20_000_000
            await draining

    run(main(), loop_factory)


def test_an_answer_that_is_not_taken_until_the_end_is_given_up(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with (
            listening(app, port=0) as listener,
            connected(address_of(listener), receive_buffer=4096) as client,
        ):
            client.get()
            (await app.next()).respond(200, 20_000_000 * b"x")
            draining = asyncio.create_task(listener.drain(None))
            await until(lambda: listener.addresses == [])
            assert not draining.done()
            await listener.end()
            await draining

    run(main(), loop_factory)


def test_what_does_not_finish_in_time_is_cut_off(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with listening(app, port=0) as listener, connected(address_of(listener)) as client:
            client.get()
            exchange = await app.next()
            left: list[str] = []
            exchange.on_disconnect = lambda: left.append("left")
            await listener.drain(0.01)
            assert left == ["left"]
            assert await client.rest() == b""

    run(main(), loop_factory)


def test_a_unix_socket_is_served_and_its_file_removed(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    path = tmp_path / "w.sock"

    async def main() -> None:
        async with listening(uds=path) as listener:
            assert listener.url == f"http+unix://{path}"
            reader, writer = await asyncio.open_unix_connection(str(path))
            client = Client(reader, writer)
            client.post(b"hello")
            assert (await client.answer()).body == b"hello"
            writer.close()
            await writer.wait_closed()

    run(main(), loop_factory)
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_but_not_one_in_use_nor_another_file(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    path, file = tmp_path / "w.sock", tmp_path / "notes.txt"
    file.write_text("keep me")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()

    async def main() -> None:
        async with listening(uds=path):
            with pytest.raises(OSError, match="another server listens"):
                await Listener(echo).start(uds=path)
            with pytest.raises(FileExistsError, match="not a socket"):
                await Listener(echo).start(uds=file)

    run(main(), loop_factory)
    assert file.read_text() == "keep me"


def test_a_listener_that_ends_leaves_the_unix_socket_of_its_successor_alone(
    loop_factory: LoopFactory, tmp_path: Path
) -> None:
    path = tmp_path / "w.sock"

    async def main() -> None:
        async with listening(uds=path) as old:
            path.rename(tmp_path / "old.sock")
            async with listening(uds=path):
                await old.drain(1)
                assert path.exists()
        assert not path.exists()

    run(main(), loop_factory)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return cert, key


@asynccontextmanager
async def tls_client(listener: Listener, trust: ssl.SSLContext) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        *address_of(listener), ssl=trust, server_hostname="localhost"
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


def test_tls_carries_small_and_large_requests(
    loop_factory: LoopFactory, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    context, trust = tls_context(cert, key), ssl.create_default_context(cafile=cert)

    async def main() -> None:
        async with listening(port=0, ssl=context) as listener:
            assert listener.url.startswith("https://")
            async with tls_client(listener, trust) as client:
                for body in (b"small", 600_000 * b"x", b"small again"):
                    client.post(body)
                    assert (await client.answer()).body == body
                client.send(b"nonsense\r\n\r\n")
                assert (await client.answer()).status == 400
                assert await client.rest() == b""

    run(main(), loop_factory)


def test_with_a_client_ca_a_client_without_certificate_is_not_served(
    loop_factory: LoopFactory, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    context = tls_context(cert, key, client_ca=cert)
    unknown, known = (ssl.create_default_context(cafile=cert) for _ in range(2))
    known.load_cert_chain(cert, key)

    async def main() -> None:
        async with listening(port=0, ssl=context) as listener:
            async with tls_client(listener, unknown) as client:
                client.post(b"unknown")
                assert await client.rest() == b""
            async with tls_client(listener, known) as client:
                client.post(b"known")
                assert (await client.answer()).body == b"known"

    run(main(), loop_factory)
