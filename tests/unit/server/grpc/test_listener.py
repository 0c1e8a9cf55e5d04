"""server/grpc/listener.py over real sockets, judged by another library's rules of HTTP/2."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import PingFrame

from tests.fakes import TIMEOUT
from tests.unit.server.grpc.raw import MANY, ONE, Answer, ManualApplication, prefixed
from tests.unit.server.http.raw import on_each_loop, run, until
from wherry.server.connections.limits import Limits
from wherry.server.grpc.h2 import (
    KEEPALIVE_TIME,
    KEEPALIVE_TIMEOUT,
    ConnectionTimeouts,
    TimeoutAction,
)
from wherry.server.grpc.listener import GrpcListener
from wherry.server.grpc.rpc import CannotListen, Rpc
from wherry.server.http.listener import tls_context

NONE, PING, ABORT = TimeoutAction.NONE, TimeoutAction.PING, TimeoutAction.ABORT
HEADER_TIMEOUT = 30.0


@pytest.fixture
def timeouts() -> ConnectionTimeouts:
    return ConnectionTimeouts(HEADER_TIMEOUT, None, 0.0)


def test_silence_is_asked_about_once_and_then_ended(timeouts: ConnectionTimeouts) -> None:
    actions = []
    for now in (1.0, KEEPALIVE_TIME, KEEPALIVE_TIME + 1, KEEPALIVE_TIME + KEEPALIVE_TIMEOUT):
        timeouts.see(0, None, now)
        actions.append(timeouts.action(now))
    assert actions == [NONE, PING, NONE, ABORT]


def test_progress_ends_the_silence_and_the_next_one_is_asked_about_again(
    timeouts: ConnectionTimeouts,
) -> None:
    assert timeouts.action(KEEPALIVE_TIME) is PING
    timeouts.see(17, None, KEEPALIVE_TIME + 1)
    assert timeouts.quiet(KEEPALIVE_TIME + 3) == 2.0
    assert timeouts.action(KEEPALIVE_TIME + KEEPALIVE_TIMEOUT) is NONE
    assert timeouts.action(2 * KEEPALIVE_TIME + 1) is PING


def test_less_than_was_seen_before_is_no_progress(timeouts: ConnectionTimeouts) -> None:
    timeouts.see(100, None, 1.0)
    timeouts.see(50, None, 2.0)
    timeouts.see(100, None, 3.0)
    assert timeouts.quiet(4.0) == 3.0


def test_what_is_begun_must_be_whole_in_time_even_if_bytes_come(
    timeouts: ConnectionTimeouts,
) -> None:
    frame = object()
    for second in range(int(HEADER_TIMEOUT)):
        timeouts.see(second, frame, float(second))
        assert timeouts.action(float(second)) is NONE
    timeouts.see(1000, frame, HEADER_TIMEOUT)
    assert timeouts.action(HEADER_TIMEOUT) is ABORT


def test_another_thing_that_is_begun_has_its_own_time(timeouts: ConnectionTimeouts) -> None:
    for second in range(0, 100, 20):
        timeouts.see(second, object(), float(second))
        assert timeouts.action(second + HEADER_TIMEOUT - 1) is NONE


def test_a_client_must_begin_in_time() -> None:
    timeouts = ConnectionTimeouts(HEADER_TIMEOUT, "the preface", 5.0)
    assert timeouts.action(5.0 + HEADER_TIMEOUT - 1) is NONE
    assert timeouts.action(5.0 + HEADER_TIMEOUT) is ABORT


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Echo(ManualApplication):
    def __call__(self, rpc: Rpc) -> None:
        super().__call__(rpc)
        if rpc.path == ONE:
            rpc.respond(bytes(rpc.message))


class Client:
    """A connection whose every byte in and out is checked by the library h2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.answers: dict[int, Answer] = {}
        self.http.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.http.data_to_send())

    def open(self, path: str = ONE) -> int:
        stream = int(self.http.get_next_available_stream_id())
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
                   ("te", "trailers"), ("content-type", "application/grpc")]  # fmt: skip
        self.http.send_headers(stream, headers)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    async def send(self, stream: int, message: bytes, *, end: bool = True) -> None:
        data = prefixed(message)
        while data:
            size = min(
                len(data),
                self.http.local_flow_control_window(stream),
                self.http.max_outbound_frame_size,
            )
            if size == 0:
                assert await self.receive()
                continue
            piece, data = data[:size], data[size:]
            self.http.send_data(stream, piece, end_stream=end and not data)
            self.flush()
            await self.writer.drain()

    async def receive(self) -> bool:
        """Take what comes next; False at the end of the connection."""
        data = await self.reader.read(2**16)
        for event in self.http.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                headers = [(str(n), str(v)) for n, v in event.headers or ()]
                self.answers[event.stream_id or 0].headers += headers
            elif isinstance(event, h2.events.DataReceived):
                self.answers[event.stream_id or 0].data += event.data or b""
                self.http.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id or 0
                )
            elif isinstance(event, h2.events.StreamEnded):
                self.answers[event.stream_id or 0].over = True
        self.flush()
        return bool(data)

    async def answer(self, stream: int) -> Answer:
        while not self.answers[stream].over:
            assert await self.receive()
        return self.answers[stream]

    async def ask(self, message: bytes) -> bytes:
        stream = self.open()
        await self.send(stream, message)
        (found,) = (await self.answer(stream)).messages
        return found


@asynccontextmanager
async def connected(
    listener: GrpcListener, context: ssl.SSLContext | None = None, receive_buffer: int = 0
) -> AsyncIterator[Client]:
    host, _, port = listener.address.rpartition(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await until(writer.transport.is_closing)


@asynccontextmanager
async def serving(
    app: ManualApplication,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[GrpcListener]:
    listener = GrpcListener(app, Limits(max_body_bytes=10**7))
    await listener.start("127.0.0.1", 0, ssl=context)
    try:
        yield listener
    finally:
        await listener.drain(0.0)


@on_each_loop
def test_messages_small_and_large_come_and_go(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = Echo()
        async with serving(app) as listener, connected(listener) as client:
            for size in (0, 1, 20_000, 5_000_000, 3):
                message = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
                assert await client.ask(message) == message
            assert repr(listener) == f"<GrpcListener {listener.address}: 0 calls>"

    run(main(), loop_factory)


@on_each_loop
def test_many_calls_share_a_connection(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with serving(Echo()) as listener, connected(listener) as client:
            streams = [client.open() for _ in range(50)]
            for n, stream in enumerate(streams):
                await client.send(stream, b"%d" % n * 20_000)
            for n, stream in enumerate(streams):
                assert (await client.answer(stream)).messages == [b"%d" % n * 20_000]

    run(main(), loop_factory)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@on_each_loop
def test_tls_agrees_on_http2(loop_factory: LoopFactory, certificate: Path) -> None:
    async def main() -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols(["http/1.1", "h2"])
        served = tls_context(certificate, alpn="h2")
        async with serving(Echo(), served) as listener, connected(listener, context) as client:
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            message = bytes(3_000_000)
            assert await client.ask(message) == message

    run(main(), loop_factory)


@on_each_loop
def test_a_handshake_that_does_not_end_is_cut_off(
    loop_factory: LoopFactory, certificate: Path
) -> None:
    async def main() -> None:
        listener = GrpcListener(Echo(), Limits(header_timeout=0.05))
        await listener.start("127.0.0.1", 0, ssl=tls_context(certificate, alpn="h2"))
        port = int(listener.address.rpartition(":")[2])
        for begun in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begun)
            async with asyncio.timeout(TIMEOUT):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        await listener.drain(0.0)

    run(main(), loop_factory)


@on_each_loop
def test_a_taken_port_is_said(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        async with serving(Echo()) as listener:
            port = int(listener.address.rpartition(":")[2])
            with pytest.raises(CannotListen, match="taken, or not there") as caught:
                await GrpcListener(Echo()).start("127.0.0.1", port)
            assert caught.value.filename == listener.address

    run(main(), loop_factory)


@on_each_loop
def test_drain_answers_what_has_begun_and_lets_no_one_in(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with serving(app) as listener, connected(listener) as client:
            stream = client.open()
            await client.send(stream, b"before")
            await until(lambda: len(app.calls) == 1)
            draining = asyncio.create_task(listener.drain(60.0))
            await until(lambda: app.streams_end)
            host, _, port = listener.address.rpartition(":")
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection(host, int(port))
            assert not draining.done()
            await client.reader.readuntil(b"goodbye!")  # the connection is new: a moment passes
            app.only.respond(b"after")
            ack = PingFrame(0, b"goodbye!", flags=["ACK"]).serialize()
            client.writer.write(ack)  # the library takes no more after a GOAWAY
            assert prefixed(b"after") in await client.reader.read()
            client.writer.close()
            await draining

    run(main(), loop_factory)


@on_each_loop
def test_drain_cuts_off_what_takes_too_long(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with serving(app) as listener, connected(listener) as client:
            client.open(MANY)
            await until(lambda: listener.calls == 1)
            await listener.drain(0.01)
            assert (app.left, listener.calls) == (1, 0)
            await listener.drain(0.01)  # again: nothing to do

    run(main(), loop_factory)


@pytest.mark.slow
@on_each_loop
def test_a_client_that_does_not_read_holds_its_stream_back(loop_factory: LoopFactory) -> None:
    async def main() -> None:
        app = ManualApplication()
        async with serving(app) as listener, connected(listener, receive_buffer=2**16) as client:
            client.http.increment_flow_control_window(2**30)
            client.http.update_settings({4: 2**30})
            stream = client.open(MANY)
            await client.send(stream, b"go", end=False)
            await until(lambda: len(app.messages) == 1)
            taken: list[int] = []
            count = 100
            for n in range(count):
                app.only.send(bytes(100_000), sent=lambda n=n: taken.append(n))  # type: ignore[misc]
            app.only.finish()
            assert len(taken) < count * 3 // 4  # 10 MB, of which the kernel may hold some
            answer = await client.answer(stream)
            assert len(answer.messages) == len(taken) == count

    run(main(), loop_factory)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_hears_that_this_is_for_grpc() -> None:
    async def main() -> None:
        async with serving(Echo()) as listener:
            for arguments, status in (([], b"405"), (["-d", "{}"], b"415")):
                process = await asyncio.create_subprocess_exec(
                    "curl", "--http2-prior-knowledge", "-s", "-o", "/dev/null", "-w",
                    "%{http_version} %{http_code}", *arguments, f"http://{listener.address}/x",
                    stdout=subprocess.PIPE,
                )  # fmt: skip
                assert (await process.communicate())[0] == b"2 " + status

    asyncio.run(main())


REQUESTS_OF_BROWSERS = {
    "HTTP/1.1": b"POST /inference.GRPCInferenceService/ModelInfer HTTP/1.1\r\nHost: a\r\n"
    b"Content-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0",
    "an upgrade to HTTP/2": b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\x05hello",
}


@on_each_loop
@pytest.mark.parametrize("case", REQUESTS_OF_BROWSERS)
def test_what_a_browser_can_send_without_tls_runs_nothing(
    case: str, loop_factory: LoopFactory
) -> None:
    class Nothing(Echo):
        def __call__(self, rpc: Rpc) -> None:
            raise AssertionError("it ran")

    async def main() -> None:
        async with serving(Nothing()) as listener:
            host, _, port = listener.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(REQUESTS_OF_BROWSERS[case])
            answer = await reader.read()
            assert b"HTTP/1.1 200" not in answer
            assert b"HTTP/1.1 101" not in answer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    run(main(), loop_factory)
