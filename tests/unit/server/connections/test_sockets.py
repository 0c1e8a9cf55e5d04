"""Descriptors that can be served, and those that cannot."""

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
import uvloop

import wherry
from wherry.core.values.errors import ConfigError
from wherry.server.connections.sockets import gathered_write, passed_socket


class ResponsePart(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = False

    def pause_writing(self) -> None:
        self.paused = True


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("forgets", [None, True])
def test_a_transport_that_is_full_pauses_its_protocol(
    new_loop: Callable[[], asyncio.AbstractEventLoop], forgets: bool | None
) -> None:
    """asyncio's does not by itself in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1."""

    async def main() -> None:
        ours, peers = socket.socketpair()
        with peers:
            transport, told = await asyncio.get_running_loop().create_connection(
                ResponsePart, sock=ours
            )
            write = (
                gathered_write(transport)
                if forgets is None
                else gathered_write(transport, forgets=forgets)
            )
            write([b"head", bytearray(2**20), memoryview(bytes(2**20))])
            assert told.paused
            assert transport.get_write_buffer_size() > 2**19
            transport.abort()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_what_is_written_arrives_in_order() -> None:
    async def main() -> None:
        ours, peers = socket.socketpair()
        with peers:
            transport, _ = await asyncio.get_running_loop().create_connection(
                ResponsePart, sock=ours
            )
            gathered_write(transport, forgets=True)([b"a", bytearray(b"b"), memoryview(b"c")])
            gathered_write(transport, forgets=False)([b"d", bytearray(b"e"), memoryview(b"f")])
            assert peers.recv(16) == b"abcdef"
            transport.abort()

    asyncio.run(main())


@wherry.model
def echo(text: str) -> str:
    return text


def test_a_bound_socket_is_served_and_stays_open_in_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as parents:
        port = parents.getsockname()[1]
        for _ in range(2):
            with wherry.Server(echo, fd=os.dup(parents.fileno())) as server:
                assert server.url == f"http://127.0.0.1:{port}"
                with wherry.Client(server.url) as client:
                    assert client.infer("echo", text="x") == "x"
        # No server runs now: a connection waits for the next one, and is not refused.
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with wherry.Server(echo, fd=os.dup(parents.fileno())):
                assert waiting.recv(100).startswith(b"HTTP/1.1 200")


def test_grpc_is_served_on_a_passed_socket() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as parents,
        wherry.Server(echo, port=0, grpc_fd=os.dup(parents.fileno())) as server,
    ):
        assert server.grpc_url == f"127.0.0.1:{parents.getsockname()[1]}"


def test_what_cannot_be_served_is_refused_and_left_open() -> None:
    with pytest.raises(ConfigError, match="fd 999999: "):
        passed_socket(999999, "fd")
    reading, writing = os.pipe()
    try:
        with pytest.raises(ConfigError, match=r"[Ss]ocket operation on non-socket"):
            passed_socket(reading, "fd")
        os.fstat(reading)
    finally:
        os.close(reading)
        os.close(writing)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as unbound, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        for one in (ours, unbound, udp):
            with pytest.raises(ConfigError, match="not a socket that can listen"):
                passed_socket(one.fileno(), "fd")
            assert one.fileno() >= 0
            os.fstat(one.fileno())
