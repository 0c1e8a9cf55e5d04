"""How much memory does a full server take, with peers that want it to take more?

docs/explanation/limits.md has the formula ("Memory of a full server").
"""

import contextlib
import gzip
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import TIMEOUT, until
from wherry.core.observability.machine import Machine
from wherry.server.connections.limits import memory_plan
from wherry.testing.servers import ServerProcess

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"),
]

MIB = 2**20
CONNECTIONS, BODY, QUEUE, RECEIVED, UNSENT = 64, MIB, 32 * MIB, 16 * MIB, 16 * MIB
BOUND = memory_plan(
    Machine().memory_limit_bytes(),
    connections=CONNECTIONS,
    body_bytes=BODY,
    queue_bytes=QUEUE,
    received_bytes=RECEIVED,
    unsent_bytes=UNSENT,
).full_bytes
OPTIONS = {
    "max-connections": 2 * CONNECTIONS,
    "max-body-size": BODY + 4096,
    "max-queue-bytes": QUEUE,
    "max-received-bytes": RECEIVED,
    "max-unsent-bytes": UNSENT,
    "max-queue-wait": 0,
    "drain-timeout": 0,
}
MODELS = """
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import wherry

Row = Annotated[np.ndarray, wherry.FP32[-1]]

@wherry.model(max_batch_size=4, max_queue_size=None)
def held(x: Row) -> Row:
    open("gate").read()  # a pipe that the test never writes to
    return x

@wherry.model(instances=16)
def endless(n: int) -> Iterator[str]:
    while True:
        yield "x" * 2**20
"""


def memory_of(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def tensor() -> bytes:
    head = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, BODY // 4],
                "parameters": {"binary_data_size": BODY},
            }
        ]
    }
    text = json.dumps(head).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return post("/v2/models/held/infer", text + b"\x01" * BODY, length)


def pipelined(send: Callable[[bytes], None]) -> None:
    """Whole requests, one behind the other, for a model that answers none."""
    request = tensor()
    for _ in range(17):
        send(request)


def half_sent(send: Callable[[bytes], None]) -> None:
    send(tensor()[:-1])


def bombs(send: Callable[[bytes], None]) -> None:
    """A few bytes that unfold to the limit of a body, and values larger than their text."""
    values = b'{"x": [' + b"{}," * (BODY // 3 - 10) + b"{}]}"
    for body in (b" " * BODY + b"{}", values):
        packed = gzip.compress(body, 1)
        send(post("/v2/models/held/generate", packed, "Content-Encoding: gzip"))


def unread_stream(send: Callable[[bytes], None]) -> None:
    """A stream without end that is not read."""
    send(post("/v2/models/endless/generate_stream", b'{"n": 1}'))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "models.py").write_text(MODELS)
    os.mkfifo(tmp_path / "gate")
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    with ServerProcess("models.py", "--inline", *options, cwd=str(tmp_path)) as started:
        try:
            yield started
        finally:
            fd = os.open(tmp_path / "gate", os.O_RDWR)  # a model that waits for it reads its end
            os.close(fd)


@pytest.mark.parametrize(
    "attacks",
    [
        (pipelined,),
        (half_sent,),
        (bombs,),
        (pipelined, bombs),
        (unread_stream,),
        (unread_stream, bombs),
    ],
)
def test_a_full_server_stays_within_what_the_formula_says(
    server: ServerProcess, attacks: tuple[Callable[[Callable[[bytes], None]], None], ...]
) -> None:
    host, _, port = server.url.rpartition("/")[2].partition(":")
    address = (host, int(port))
    before = memory_of(server.pid, "VmRSS")
    with contextlib.ExitStack() as stack:
        threads = []
        for number in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(address, TIMEOUT))
            connection.settimeout(TIMEOUT)
            attack = attacks[number % len(attacks)]

            def run(
                attack: Callable[[Callable[[bytes], None]], None] = attack,
                connection: socket.socket = connection,
            ) -> None:
                with contextlib.suppress(OSError):  # it may be refused, and cut off
                    attack(connection.sendall)

            threads.append(threading.Thread(target=run))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with socket.create_connection(address, TIMEOUT) as honest:
            honest.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: honest.recv(12) == b"HTTP/1.1 200")
        if unread_stream in attacks:
            until(lambda: "max_unsent_bytes" in server.log)
        peak = memory_of(server.pid, "VmHWM") - before
    assert peak < BOUND
