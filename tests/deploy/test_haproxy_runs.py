"""Does a host that dies or fails behind deploy/haproxy cost a request?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import wherry
from tests.fakes import until
from wherry.testing import ServerProcess

pytestmark = pytest.mark.full

CONFIGURATION = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
APP = """
import os
import time
import wherry


@wherry.model(max_batch_size=8)
def echo(text: list[str]) -> list[str]:
    if os.path.exists(os.environ["FAILS"]):
        raise RuntimeError("this host fails")
    time.sleep(0.02)
    return text
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


def configuration(hosts: list[tuple[int, int]], port: int) -> str:
    """That of deploy/haproxy, for hosts on this machine: (HTTP, agent)."""
    text = CONFIGURATION.read_text().partition("frontend grpc")[0]
    text = re.sub(r"    server h\d .*\n", "", text).replace("bind :8080", f"bind 127.0.0.1:{port}")
    for number, (http, agent) in enumerate(hosts):
        text += f"    server h{number} 127.0.0.1:{http} port {http} agent-port {agent}\n"
    return text


@contextmanager
def balanced(tmp_path: Path) -> Iterator[tuple[list[ServerProcess], wherry.Client]]:
    """Two hosts and a client of HAProxy before them."""
    if shutil.which("haproxy") is None:
        pytest.skip("needs haproxy")
    (tmp_path / "app.py").write_text(APP)
    front, *ports = free_ports(5)
    hosts = [(ports[0], ports[1]), (ports[2], ports[3])]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess(
                    *("app.py", "--isolation", "thread"),
                    *("--port", str(http), "--agent-port", str(agent)),
                    env={"FAILS": str(tmp_path / f"fails-{number}")},
                    cwd=str(tmp_path),
                )
            )
            for number, (http, agent) in enumerate(hosts)
        ]
        path = tmp_path / "haproxy.cfg"
        path.write_text(configuration(hosts, front))
        proxy = subprocess.Popen(["haproxy", "-db", "-f", str(path)], stdout=subprocess.DEVNULL)
        stack.callback(proxy.wait)
        stack.callback(proxy.terminate)
        client = stack.enter_context(wherry.Client(f"http://127.0.0.1:{front}"))
        until(client.ready)
        yield servers, client


@pytest.mark.parametrize("fault", ["killed", "fails"])
def test_a_host_that_is_killed_or_fails_at_once_costs_no_request(
    fault: str, tmp_path: Path
) -> None:
    with balanced(tmp_path) as (servers, client), ThreadPoolExecutor(8) as callers:
        asked = [callers.submit(client.infer, "echo", text=str(i)) for i in range(200)]
        until(lambda: sum(one.done() for one in asked) > 50)
        if fault == "killed":
            os.kill(servers[0].pid, signal.SIGKILL)
        else:
            (tmp_path / "fails-0").touch()
        assert [one.result() for one in asked] == [str(i) for i in range(200)]
