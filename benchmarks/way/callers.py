"""How is one request at a time sent to wherry by JSON, as a chat, by gRPC or by a local call?

The clients are a few lines over a blocking socket, so that nothing but wherry is on the way.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal

import wherry
from benchmarks.harness import ROOT
from benchmarks.peers.cells import Cell, request
from benchmarks.peers.clients import METHOD
from wherry.core.models.model import Model
from wherry.testing.servers import ServerProcess, local_server

Kind = Literal["json", "chat", "events", "grpc", "local"]
#: Sends the request, and returns the text that was answered.
Ask = Callable[[], bytes]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
LAST_CHUNK = b"\r\n0\r\n\r\n"
END_STREAM, ACK, END_HEADERS = 1, 1, 4


@contextmanager
def in_this_process(kind: Kind, model: Model) -> Iterator[Ask]:
    """Serve a model of a text; it is called as `kind` says."""
    if kind == "local":
        with wherry.Runtime(model) as runtime:
            yield lambda: str(runtime.infer(model.name, text="hello")).encode()
    else:
        with local_server(model, grpc_port=0 if kind == "grpc" else None) as server:
            url = server.grpc_url if kind == "grpc" else server.url.removeprefix("http://")
            with connected(kind, url, model.name) as ask:
                yield ask


@contextmanager
def in_own_process(kind: Kind, isolation: str) -> Iterator[tuple[int, Ask]]:
    """`wherry serve` of an echo of one text at a time: its process id, and how it is asked."""
    arguments = ["benchmarks/models.py:single", "--isolation", isolation]
    if kind == "grpc":
        arguments += ["--grpc-port", "0"]
    with ServerProcess(*arguments, cwd=str(ROOT)) as server:
        address = server.url.removeprefix("http://")
        if kind == "grpc":
            address = re.findall(r"grpc=(\S+)", server.log)[0]
        with connected(kind, address, "single") as ask:
            for _ in range(50):
                ask()
            yield server.pid, ask


@contextmanager
def connected(kind: Kind, address: str, model: str) -> Iterator[Ask]:
    """A connection to a server on this machine, host:port."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if kind == "grpc":
            with connection.makefile("rb") as answers:
                yield _Grpc(connection, answers, model)
        else:
            yield _http(
                connection,
                json_request(address, model)
                if kind == "json"
                else chat_request(address, model, kind),
            )


def chat_request(address: str, model: str, kind: Kind) -> bytes:
    """A chat, answered in one piece or in events."""
    messages = [{"role": "user", "content": "hello"}]
    fields = {"model": model, "messages": messages, "stream": kind == "events"}
    return _posted(address, "/v1/chat/completions", json.dumps(fields).encode())


def json_request(address: str, model: str) -> bytes:
    """The whole request, head and body."""
    body = request(Cell("", "function", model, "json", 1), model).body
    return _posted(address, f"/v2/models/{model}/infer", body)


def _posted(address: str, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _http(connection: socket.socket, sent: bytes) -> Ask:
    def ask() -> bytes:
        connection.sendall(sent)
        answer = connection.recv(1 << 20)
        while b"\r\nTransfer-Encoding: chunked\r\n" in answer and not answer.endswith(LAST_CHUNK):
            answer += connection.recv(1 << 20)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{answer!r}")
        return answer

    return ask


class _Grpc:
    """A connection of HTTP/2 that makes the same unary call again and again."""

    def __init__(self, connection: socket.socket, answers: BinaryIO, model: str) -> None:
        self._connection = connection
        self._answers = answers
        self._message = request(Cell("", "function", model, "grpc", 1), model).body
        host = connection.getpeername()[0]
        self._head = b"".join(
            _literal(name, value)
            for name, value in (
                (":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", host),
                ("te", "trailers"), ("content-type", "application/grpc"),
            )
        )  # fmt: skip
        self._stream = -1
        window = struct.pack(">I", (1 << 31) - 1 - 65535)
        connection.sendall(
            PREFACE + _frame(SETTINGS, 0, 0, b"") + _frame(WINDOW_UPDATE, 0, 0, window)
        )

    def __call__(self) -> bytes:
        self._stream += 2
        head = _frame(HEADERS, END_HEADERS, self._stream, self._head)
        self._connection.sendall(head + _frame(DATA, END_STREAM, self._stream, self._message))
        message = b""
        while True:
            start = self._answers.read(9)
            kind, flags, stream = start[3], start[4], struct.unpack(">I", start[5:])[0]
            payload = self._answers.read(int.from_bytes(start[:3]))
            if kind == SETTINGS and not flags & ACK:
                self._connection.sendall(_frame(SETTINGS, ACK, 0, b""))
            elif kind == DATA:
                message += payload
            if stream == self._stream and flags & END_STREAM:
                if not message:
                    raise RuntimeError(f"the call failed, its trailers: {payload!r}")
                return message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload).to_bytes(3)
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field of HPACK, not indexed and not compressed; shorter than 127 bytes."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
