"""How do calls come in through grpcio's asyncio server?

The only file that imports grpc. Messages pass as bytes; the codec is ours.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Application, CannotListen, Metadata, Rpc


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts. With `client_ca`, only clients with a certificate from it are let in."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class GrpcListener:
    """Serves one application on one address.

    Belongs to the event loop that is running when it is started; works on asyncio's and on uvloop.
    """

    def __init__(
        self,
        application: Application,
        *,
        max_body_bytes: int = 2**31 - 1,
        compression: str = "none",
        access_log: logging.Logger | None = None,
    ) -> None:
        self._application = application
        self._max_body_bytes = max_body_bytes
        self._compression = _COMPRESSIONS[compression]
        self._access_log = access_log
        self._server: grpc.aio.Server | None = None
        #: How many calls are open.
        self.calls = 0
        #: host:port, once it listens.
        self.address = ""

    def __repr__(self) -> str:
        return f"<GrpcListener {self.address or 'closed'}: {self.calls} calls>"

    async def start(self, host: str, port: int, *, tls: Tls | None = None) -> None:
        """Take calls from now on. Port 0 takes a free one. OSError if the address is taken."""
        server = grpc.aio.server(options=self._options(), compression=self._compression)
        methods = self._application.methods
        server.add_generic_rpc_handlers((_Handlers(methods, self._unary, self._stream),))
        wanted = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound = _bind(server, wanted, tls)
        if not bound:
            del server  # now, and not when the error is forgotten: it has threads of its own
            raise CannotListen(errno.EADDRNOTAVAIL, "taken, or not there", wanted)
        await server.start()
        self._server = server
        self.address = f"{wanted.rpartition(':')[0]}:{bound}"

    async def drain(self, drain_timeout: float) -> None:
        """Take no more calls, finish those that have begun; cut off what is left in the end."""
        server, self._server = self._server, None
        if server is not None:
            self._application.drain()
            await server.stop(drain_timeout)

    def _options(self) -> list[tuple[str, int]]:
        # A message's length stands in front of it, so that a larger one is refused unread.
        return [
            ("grpc.max_receive_message_length", min(self._max_body_bytes, 2**31 - 1)),
            ("grpc.max_send_message_length", -1),
            # Of one connection; more wait at the client.
            ("grpc.max_concurrent_streams", 4096),
            # Two servers on one port would share its clients, and nobody would be told.
            ("grpc.so_reuseport", 0),
            # A client that is gone without a word is noticed after 80 s.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            # Clients may ping as often as they like to: by default that ends their connection.
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    async def _unary(self, method: Method, message: bytes, context: Any) -> bytes:
        rpc = _UnaryRpc(method, context, message)
        started = time.monotonic()
        self.calls += 1
        try:
            self._application(rpc)
            return await rpc.answer
        except asyncio.CancelledError:
            rpc.leave()
            raise
        finally:
            self.calls -= 1
            self._log(rpc, started)
            rpc.forget()

    async def _stream(self, method: Method, message: bytes, context: Any) -> None:
        rpc = _StreamRpc(method, context, message)
        started = time.monotonic()
        self.calls += 1
        reading: asyncio.Task[None] | None = None
        try:
            self._application(rpc)
            if method.takes_stream:
                reading = asyncio.create_task(rpc.read())
            await rpc.write()
        except asyncio.CancelledError:
            rpc.leave()
            raise
        finally:
            self.calls -= 1
            self._log(rpc, started)
            rpc.forget()
            if reading is not None:
                reading.cancel()

    def _log(self, rpc: _AioRpc, started: float) -> None:
        """One line for each call, health excepted: probes would drown the rest."""
        if self._access_log is None or rpc.path.rpartition("/")[2] in QUIET:
            return
        seconds = round(time.monotonic() - started, 6)
        fields = {"status": rpc.status, "seconds": seconds, "peer": rpc.peer()}
        self._access_log.info(rpc.path, extra=fields)


QUIET: Final = frozenset({"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"})

_COMPRESSIONS: Final = {
    "none": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds what answers a method; messages are not decoded here."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        unary: Callable[[Method, bytes, Any], Awaitable[bytes]],
        stream: Callable[[Method, bytes, Any], Awaitable[None]],
    ) -> None:
        self._handlers = {path: _handler(method, unary, stream) for path, method in methods.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _handler(
    method: Method,
    unary: Callable[[Method, bytes, Any], Awaitable[bytes]],
    stream: Callable[[Method, bytes, Any], Awaitable[None]],
) -> Any:
    """What grpcio calls; it wants coroutine functions, a partial is none."""

    async def answer(message: bytes, context: Any) -> bytes:
        return await unary(method, message, context)

    async def answer_many(message: bytes, context: Any) -> None:
        await stream(method, message, context)

    async def answer_each(_: Any, context: Any) -> None:
        await stream(method, b"", context)

    if method.takes_stream:
        return grpc.stream_stream_rpc_method_handler(answer_each)
    if method.gives_stream:
        return grpc.unary_stream_rpc_method_handler(answer_many)
    return grpc.unary_unary_rpc_method_handler(answer)


class _AioRpc(Rpc):
    """What grpcio's context gives, and takes."""

    __slots__ = ("_context", "status")

    def __init__(self, method: Method, context: Any, message: bytes) -> None:
        super().__init__(
            method.path, _metadata(context), timeout=context.time_remaining(), message=message
        )
        self._context = context
        #: How the call has ended; who leaves has not waited for that.
        self.status = "CANCELLED"

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return str(self._context.peer())

    def forget(self) -> None:
        super().forget()
        self._context = None

    def _end(self, status: str) -> None:
        self.ended = True
        self.status = status

    def _fail(self, code: str, text: str, metadata: Metadata) -> None:
        self._end(code)
        self._context.set_code(grpc.StatusCode[code])
        self._context.set_details(text)
        if metadata:
            self._context.set_trailing_metadata(tuple(metadata))


class _UnaryRpc(_AioRpc):
    """A call that takes one message and gives one."""

    __slots__ = ("answer",)

    def __init__(self, method: Method, context: Any, message: bytes) -> None:
        super().__init__(method, context, message)
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def respond(self, message: bytes) -> None:
        if not self.ended:
            self._end("OK")
            self.answer.set_result(message)

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        if not self.ended:
            self._fail(code, text, metadata)
            self.answer.set_result(b"")  # not sent: the status is all

    def send(self, message: bytes, sent: Callable[[], None] | None = None) -> None:
        raise RuntimeError(f"{self!r} gives one answer")

    def finish(self) -> None:
        raise RuntimeError(f"{self!r} gives one answer")

    def pause(self) -> None:
        raise RuntimeError(f"{self!r} takes one message")

    def resume(self) -> None:
        raise RuntimeError(f"{self!r} takes one message")


class _StreamRpc(_AioRpc):
    """A call that gives a stream, and may take one."""

    __slots__ = ("_may_read", "_to_send")

    def __init__(self, method: Method, context: Any, message: bytes) -> None:
        super().__init__(method, context, message)
        #: None is the end.
        self._to_send: asyncio.Queue[tuple[bytes, Callable[[], None] | None] | None] = (
            asyncio.Queue()
        )
        self._may_read = asyncio.Event()
        self._may_read.set()

    def respond(self, message: bytes) -> None:
        raise RuntimeError(f"{self!r} gives a stream")

    def send(self, message: bytes, sent: Callable[[], None] | None = None) -> None:
        if not self.ended:
            self._to_send.put_nowait((message, sent))

    def finish(self) -> None:
        if not self.ended:
            self._end("OK")
            self._to_send.put_nowait(None)

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        if not self.ended:
            self._fail(code, text, metadata)
            self._to_send.put_nowait(None)

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def forget(self) -> None:
        super().forget()
        self._to_send = asyncio.Queue()

    async def write(self) -> None:
        """Send what there is to send, until the end of it."""
        while (item := await self._to_send.get()) is not None:
            message, sent = item
            await self._context.write(message)  # waits for the client's window
            self.tell(sent)

    async def read(self) -> None:
        """Hand on the client's messages."""
        while not self.ended:
            await self._may_read.wait()
            message = await self._context.read()
            if message is grpc.aio.EOF:
                self.tell(self.on_half_close)
                return
            self.tell(self.on_message, message)


def _bind(server: grpc.aio.Server, address: str, tls: Tls | None) -> int:
    """The port that was taken; 0 if none was (why, grpcio tells only on stderr)."""
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _credentials(tls)))
    except RuntimeError:
        return 0


def _metadata(context: Any) -> dict[str, str]:
    return {
        name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)
    }


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)], tls.client_ca, require_client_auth=tls.client_ca is not None
    )
