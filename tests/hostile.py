"""What does one request cost a server, and does anybody else notice?

with watched_server("models.py") as server:
    cost = server.cost_of(post("/v2/models/echo/generate", body))
    assert cost.stall < MOST_STALL

A second client asks for /livez all the while. What is measured is CPU of the server's process, so
that a busy machine changes little: a stall is the least of the wall time and of the server's CPU
between two answers to that client. Its workers are not counted: they are the models' business.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import TIMEOUT
from wherry.server.grpc.proto import load
from wherry.server.grpc_app import SERVICE
from wherry.testing.servers import ServerProcess

MIB = 2**20
#: Seconds in which the event loop answers nobody.
MOST_STALL = 0.050
#: Four times the bytes: more than this many times the CPU is not linear.
MOST_GROWTH = 8.0
#: Seconds of CPU below which growth says nothing.
LEAST_CPU = 0.040
TRIES = 4

#: Of the codes that are not a mistake of a client.
_STATUS_OF_CODES = {"INTERNAL": 500, "UNKNOWN": 500, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504}

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request, or what a test sends instead, has cost the server."""

    #: Of the answer; 0: the connection was closed.
    status: int
    answer: bytes
    #: Seconds.
    stall: float
    cpu: float
    #: Beyond what the process had before it.
    peak_bytes: int


Send = Callable[["WatchedServer"], tuple[int, bytes]]


class WatchedServer:
    """A server in a process of its own, and a client beside whatever is sent to it."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.url = process.url
        host, _, port = process.url.rpartition("/")[2].partition(":")
        self.address = (host, int(port))

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, TIMEOUT)
        connection.settimeout(TIMEOUT)
        return connection

    def cost_of(self, send: Send) -> Cost:
        """Send it while another client measures."""
        pid = self.process.pid
        before = memory_of(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from now on
        started = cpu_of(pid)
        with Beside(self) as beside:
            status, answer = send(self)
        cpu = cpu_of(pid) - started - beside.idle_cpu
        return Cost(status, answer, beside.stall, cpu, memory_of(pid, "VmHWM") - before)


class Beside:
    """A client that asks for /livez without a pause, and notes the longest wait."""

    def __init__(self, server: WatchedServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.stall = 0.0
        #: Seconds of the server's CPU for the answers alone.
        self.idle_cpu = 0.0

    def __enter__(self) -> Beside:
        self._thread.start()
        assert self._begun.wait(TIMEOUT)
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pid, answers = self._server.process.pid, 0
        with self._server.connect() as connection:
            self._ask(connection)
            begun = cpu_of(pid)
            for _ in range(20):
                self._ask(connection)
            each = (cpu_of(pid) - begun) / 20
            self._begun.set()
            last = time.perf_counter(), cpu_of(pid)
            while not self._over.is_set():
                self._ask(connection)
                answers += 1
                now = time.perf_counter(), cpu_of(pid)
                self.stall = max(self.stall, min(now[0] - last[0], now[1] - last[1]))
                last = now
                # As a probe, and not as a load: else the answers would be what is measured.
                self._over.wait(0.002)
            self.idle_cpu = each * answers

    def _ask(self, connection: socket.socket) -> None:
        connection.sendall(LIVE)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):  # there is no body
            piece = connection.recv(4096)
            assert piece, "the server has closed the connection of an honest client"
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200"), answer


@contextmanager
def watched_server(*arguments: str, cwd: str | None = None) -> Iterator[WatchedServer]:
    """`wherry serve ARGUMENTS`, watched."""
    with ServerProcess(*arguments, cwd=cwd) as process:
        yield WatchedServer(process)


def post(
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> Send:
    """Send one request over HTTP, and take the whole answer."""
    given = {"Host": "localhost", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in given.items())]
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body

    def send(server: WatchedServer) -> tuple[int, bytes]:
        answer = b""
        # It may be refused by its head: the answer says so.
        with server.connect() as connection, contextlib.suppress(ConnectionError):
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            while piece := connection.recv(MIB):
                answer += piece
        return int(answer[9:12] or 0), answer.partition(b"\r\n\r\n")[2]

    return send


def call(method: str, message: Callable[[int], Mapping[str, Any]]) -> Callable[[int], Send]:
    """Make calls of a method of the V2 protocol over gRPC, each with one message."""
    from grpc import RpcError, insecure_channel

    path = f"/{SERVICE}/{method}"
    described = load("v2.proto", "model_config.proto").methods[path]
    request, streams = described.request, described.gives_stream

    def make(nbytes: int) -> Send:
        encoded = request.encode(message(nbytes))

        def send(server: WatchedServer) -> tuple[int, bytes]:
            found = re.search(r"grpc=(\S+)", server.process.log)
            assert found is not None, "the server has no --grpc-port"
            with insecure_channel(found[1]) as channel:
                try:
                    if streams:
                        answers = channel.stream_stream(path)(iter([encoded]), timeout=TIMEOUT)
                        return 200, b"".join(answers)
                    return 200, channel.unary_unary(path)(encoded, timeout=TIMEOUT)
                except RpcError as error:
                    code = error.code().name
                    text = f"{code}: {error.details()}".encode()
                    return _STATUS_OF_CODES.get(code, 400), text

        return send

    return make


def multipart(fields: Sequence[tuple[str, bytes]], boundary: str = "xxxx") -> tuple[bytes, str]:
    """The body of a form, and its Content-Type."""
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (boundary.encode(), name.encode(), data)
        for name, data in fields
    ]
    body = b"".join(parts) + b"--%b--\r\n" % boundary.encode()
    return body, f"multipart/form-data; boundary={boundary}"


def assert_costs_its_size(
    server: WatchedServer, make: Callable[[int], Send], nbytes: int, most_bytes: int
) -> None:
    """Fail if `make(nbytes)` stalls the server, takes more memory than `most_bytes`, or if the CPU
    for it is more than in proportion to that for a fourth of its bytes.

    What fails once is tried again: a neighbour on the machine makes a try dearer, never cheaper.
    """
    small, large = make(nbytes // 4), make(nbytes)
    server.cost_of(small)  # what the first of its kind takes is not a cost of its size
    problems: list[str] = []
    for _ in range(TRIES):
        less, cost = server.cost_of(small), server.cost_of(large)
        problems = [f"{cost}"[:500]]
        if not 200 <= cost.status < 500 and cost.status != 503:
            problems.append(f"answered with {cost.status}")
        # Of both: the large one may have been refused by its size.
        if (stall := max(less.stall, cost.stall)) > MOST_STALL:
            problems.append(f"the loop stood still for {stall * 1e3:.0f} ms")
        if cost.peak_bytes > most_bytes:
            problems.append(f"it took {cost.peak_bytes / MIB:.0f} MiB of {most_bytes / MIB:.0f}")
        if cost.cpu > MOST_GROWTH * max(less.cpu, LEAST_CPU / 4):
            problems.append(f"{cost.cpu:.3f} s of CPU, and a fourth of it {less.cpu:.3f}")
        if len(problems) == 1:
            return
    raise AssertionError("; ".join(problems))


def cpu_of(pid: int) -> float:
    """Seconds of CPU that all threads of another process have had."""
    return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid() of the C library


def memory_of(pid: int, field: str) -> int:
    """VmRSS, or its peak VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)
