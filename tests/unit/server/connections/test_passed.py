"""Descriptors that can be served, and those that cannot."""

import os
import socket

import pytest

import wherry
from wherry.core.values.errors import ConfigError
from wherry.server.connections.passed import passed_socket


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
