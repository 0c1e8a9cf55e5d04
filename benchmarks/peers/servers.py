"""How is each of the peers started, asked and stopped, and what can it not do?"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import harness
from benchmarks.peers.cells import Cell, Family, Request, request
from benchmarks.peers.clients import METHOD

HERE = Path(__file__).parent
REPOSITORY = HERE / "repository"
READY_SECONDS = 120.0


class Peer(ABC):
    """A server beside which wherry is measured.

    `version` says which one it was, for the record.
    """

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version

    @abstractmethod
    def why_not(self, cell: Cell) -> str | None:
        """Why a cell cannot run on it."""

    def model(self, cell: Cell) -> str:
        """Its name for the cell's model."""
        return cell.model

    def request(self, cell: Cell) -> Request:
        return request(cell, self.model(cell))

    def path(self, cell: Cell) -> str:
        return f"/v2/models/{self.model(cell)}/infer"

    @contextmanager
    def started(self, families: Sequence[Family]) -> Iterator[dict[Family, Running]]:
        """The servers for these families of cells, ready."""
        with contextlib.ExitStack() as stack:
            yield {family: stack.enter_context(self._server(family)) for family in families}

    @abstractmethod
    def _server(self, family: Family) -> contextlib.AbstractContextManager[Running]: ...


class Running:
    """A server process that answers on `ports`: HTTP's, and perhaps gRPC's."""

    def __init__(self, pid: int, http: int, grpc: int | None = None) -> None:
        self.pid = pid
        self._http, self._grpc = http, grpc

    def url(self, peer: Peer, cell: Cell) -> str:
        if cell.protocol == "grpc":
            return f"http://127.0.0.1:{self._grpc}{METHOD}"
        return f"http://127.0.0.1:{self._http}{peer.path(cell)}"


class Wherry(Peer):
    """`wherry serve` of a working tree, by the Python that runs this."""

    def __init__(self, name: str, tree: Path) -> None:
        super().__init__(name, f"wherry at {harness.commit(tree)}")
        self._tree = tree

    def why_not(self, cell: Cell) -> str | None:
        return None

    @contextmanager
    def _server(self, family: Family) -> Iterator[Running]:
        http, grpc = free_ports(2)
        command = [sys.executable, "-P", "-m", "wherry", "serve", "--port", str(http)]
        command += ["--grpc-port", str(grpc)]
        command += [str(HERE / "functions" / "app.py" if family == "function" else REPOSITORY)]
        env = {"PYTHONPATH": str(self._tree)}
        ready = f"http://127.0.0.1:{http}/v2/health/ready"
        # Its workers import from the folder that they start in before they look at PYTHONPATH.
        with process(command, ready, env=env, cwd=self._tree) as pid:
            yield Running(pid, http, grpc)


class Triton(Peer):
    """tritonserver, which runs the repository for both families."""

    def __init__(self, command: str) -> None:
        super().__init__("Triton", command)
        self._command = shlex.split(command)

    def why_not(self, cell: Cell) -> str | None:
        return None

    def model(self, cell: Cell) -> str:
        name = cell.model.removesuffix("_thread")  # it has processes only
        return "echo_text" if (cell.family, name) == ("function", "echo") else name

    def request(self, cell: Cell) -> Request:
        # One element of one row where there are batches.
        batched = cell.family == "function" and self.model(cell) != "single"
        return request(cell, self.model(cell), [1, 1] if batched else None)

    @contextmanager
    def started(self, families: Sequence[Family]) -> Iterator[dict[Family, Running]]:
        http, grpc, metrics = free_ports(3)
        command = [*self._command, str(REPOSITORY), str(http), str(grpc), str(metrics)]
        with process(command, f"http://127.0.0.1:{http}/v2/health/ready") as pid:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2") as answer:
                told = json.load(answer)
            self.version = f"Triton {told['version']}"
            running = Running(pid, http, grpc)
            yield dict.fromkeys(families, running)

    def _server(self, family: Family) -> contextlib.AbstractContextManager[Running]:
        raise NotImplementedError("one server is started for both families")


class Commanded(Peer):
    """A server that a command starts on a port, with some of the function models over HTTP."""

    def __init__(
        self, name: str, version: str, command: Sequence[str], models: Sequence[str]
    ) -> None:
        super().__init__(name, version)
        self._command = command
        self._models = models

    def why_not(self, cell: Cell) -> str | None:
        if cell.protocol != "json" or cell.family != "function":
            return f"{self.name} has functions over HTTP only"
        return None if self.model(cell) in self._models else f"{self.name} has no such model"

    @contextmanager
    def _server(self, family: Family) -> Iterator[Running]:
        (port,) = free_ports(1)
        command = [part.replace("{port}", str(port)) for part in self._command]
        hello = Cell("", "function", "single", "json", 1)
        url = f"http://127.0.0.1:{port}{self.path(hello)}"
        with process(command, url, body=self.request(hello).body) as pid:
            yield Running(pid, port)


class Mosec(Commanded):
    def __init__(self, python: str) -> None:
        code = "import importlib.metadata as m; print(m.version('mosec'))"
        version = subprocess.run([python, "-c", code], capture_output=True, text=True)
        if version.returncode:
            raise SystemExit(f"{python} has no package mosec")
        command = [python, str(HERE / "mosec_app.py"), "--address=127.0.0.1", "--port={port}"]
        models = ("single", "echo", "device", "four")
        super().__init__("MOSEC", f"MOSEC {version.stdout.strip()}", command, models)

    def model(self, cell: Cell) -> str:
        return cell.model.removesuffix("_thread")  # it has processes only

    def path(self, cell: Cell) -> str:
        return f"/{self.model(cell)}"


def minimal() -> Commanded:
    """The least server, of this folder."""
    command = [sys.executable, str(HERE / "minimal.py"), "{port}"]
    return Commanded(
        "minimal", "benchmarks/peers/minimal.py", command, ("single", "echo", "device")
    )


def other(given: str) -> Commanded:
    """NAME=COMMAND: a server with the V2 models `single` and `echo` of texts on `{port}`."""
    name, _, command = given.partition("=")
    return Commanded(name, command, ["sh", "-c", command], ("single", "echo"))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def process(
    command: Sequence[str],
    ready: str,
    *,
    body: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[int]:
    """Run a command from when a GET of `ready`, or a POST of `body`, is answered with 200.

    It and its children are ended afterwards.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
        try:
            if not _is_ready(process, urllib.request.Request(ready, body)):
                log.seek(0)
                told = log.read().decode(errors="replace")[-2000:]
                raise SystemExit(f"{shlex.join(command)} did not become ready:\n{told}")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:  # what it has served is measured all the same
                print(f"{shlex.join(command)} does not end, and is killed", file=sys.stderr)
            finally:
                with contextlib.suppress(ProcessLookupError):  # nothing is left of the group
                    os.killpg(process.pid, signal.SIGKILL)


def _is_ready(process: subprocess.Popen[bytes], asked: urllib.request.Request) -> bool:
    """Wait until it answers with 200; False if it ends before, or takes too long."""
    gives_up_at = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < gives_up_at:
        with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=5) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.05)
    return False
