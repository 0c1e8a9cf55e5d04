"""deploy/ray/servers.py: whole servers as actors of Ray, behind HAProxy."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import until

pytest.importorskip("ray", reason="needs ray, which is not here")
pytestmark = [pytest.mark.full, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
APP = """
import wherry

@wherry.model(max_batch_size=8)
def hello(name: list[str]) -> list[str]:
    return [f"hello {one}" for one in name]
"""
#: As deploy/haproxy, with a socket and no addresses.
HAPROXY = """
global
    stats socket {folder}/admin.sock level admin
defaults
    mode http
    timeout client 30s
    timeout connect 2s
    timeout server 30s
    timeout check 5s
    retries 3
    option redispatch 1
    retry-on conn-failure empty-response 503
    option http-buffer-request
frontend http
    bind 127.0.0.1:{port}
    default_backend wherry
backend wherry
    balance random(2)
    option httpchk GET /readyz
    default-server check inter 500ms fall 2 rise 1 weight 100 disabled
    default-server agent-check agent-inter 500ms agent-port 1
    server h1 192.0.2.11:8000
    server h2 192.0.2.12:8000
"""


class Servers:
    """The recipe with two servers, and an HAProxy before them."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (folder / "app.py").write_text(APP)
        (folder / "haproxy.cfg").write_text(HAPROXY.format(folder=folder, port=self.port))
        self.proxy = subprocess.Popen(["haproxy", "-db", "-f", folder / "haproxy.cfg"])
        eventually((folder / "admin.sock").exists)
        quiet = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        # Its sockets lie there: their paths may have 107 characters.
        self.ray = Path(tempfile.mkdtemp(prefix="ray-"))
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with self.log.open("wb") as log:
            self.recipe = subprocess.Popen(
                [sys.executable, str(ROOT / "deploy/ray/servers.py"), "app.py", "--servers=2",
                 f"--haproxy={folder}/admin.sock", "--cpus=0.5", "--", "--drain-timeout=5"],
                cwd=folder, stdout=log, stderr=log,
                env={**os.environ, **quiet, "PYTHONPATH": path, "RAY_TMPDIR": str(self.ray)},
            )  # fmt: skip

    def ready(self, name: str, times: int) -> int:
        """Wait until it is so for the so-manieth time; its port."""
        found: list[str] = []

        def is_so() -> bool:
            assert self.recipe.poll() is None, self.log.read_text()
            found[:] = re.findall(rf"^{name} \S+ (\d+) \d+$", self.log.read_text(), re.M)
            return len(found) >= times

        eventually(is_so)
        return int(found[-1])

    def ask(self, name: str) -> str:
        body = json.dumps({"name": name}).encode()
        url = f"http://127.0.0.1:{self.port}/v2/models/hello/generate"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
            told: str = json.load(answer)["output"]
            return told

    def close(self) -> None:
        for process in (self.recipe, self.proxy):
            process.terminate()
            process.wait(60)
        shutil.rmtree(self.ray, ignore_errors=True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if shutil.which("haproxy") is None or shutil.which("setpriv") is None:
        pytest.skip("needs haproxy and setpriv")
    started = Servers(tmp_path_factory.mktemp("ray"))
    try:
        yield started
    finally:
        started.close()


#: Ray takes its time to start.
eventually = partial(until, timeout=120)


def server_on(port: int) -> tuple[int, int]:
    """The process id of the server with this port, and that of its actor."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and f"--port={port}" in (folder / "cmdline").read_text():
                status = (folder / "status").read_text()
                return int(folder.name), int(re.findall(r"^PPid:\t(\d+)", status, re.M)[0])
    raise AssertionError(f"nothing has the port {port}")


def is_gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def test_an_actor_that_is_killed_takes_its_server_and_no_request_with_it(servers: Servers) -> None:
    first, _ = servers.ready("h1", 1), servers.ready("h2", 1)
    eventually(lambda: _answers(servers))
    server, actor = server_on(first)
    answers: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(servers.ask("you"))

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for each in callers:
        each.start()
    os.kill(actor, signal.SIGKILL)
    eventually(lambda: is_gone(server))
    again = servers.ready("h1", 2)
    stop.set()
    for each in callers:
        each.join()
    assert again != first
    assert len(answers) > 10
    assert set(answers) == {"hello you"}
    assert "h1 ended, and is started anew" in servers.log.read_text()


def _answers(servers: Servers) -> bool:
    with contextlib.suppress(OSError):
        return servers.ask("you") == "hello you"
    return False


def test_no_server_outlives_a_raylet_that_is_killed(servers: Servers) -> None:
    both = [server_on(servers.ready("h1", 2)), server_on(servers.ready("h2", 1))]
    raylets = {
        int(re.findall(r"^PPid:\t(\d+)", Path(f"/proc/{actor}/status").read_text(), re.M)[0])
        for _, actor in both
    }
    (raylet,) = raylets
    os.kill(raylet, signal.SIGKILL)
    for server, actor in both:
        eventually(lambda pid=server: is_gone(pid))  # type: ignore[misc]
        eventually(lambda pid=actor: is_gone(pid))  # type: ignore[misc]
