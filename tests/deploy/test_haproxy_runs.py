"""Does a host that dies behind deploy/haproxy cost a request?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import wherry
from tests.fakes import until
from wherry.testing import ServerProcess

pytestmark = pytest.mark.full

CONFIGURATION = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
APP = """
import time
import wherry


@wherry.model(max_batch_size=8)
def echo(text: list[str]) -> list[str]:
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


def test_a_host_that_is_killed_costs_no_request(tmp_path: Path) -> None:
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
                    cwd=str(tmp_path),
                )
            )
            for http, agent in hosts
        ]
        path = tmp_path / "haproxy.cfg"
        path.write_text(configuration(hosts, front))
        proxy = subprocess.Popen(["haproxy", "-db", "-f", str(path)], stdout=subprocess.DEVNULL)
        stack.callback(proxy.wait)
        stack.callback(proxy.terminate)
        client = stack.enter_context(wherry.Client(f"http://127.0.0.1:{front}"))
        until(client.ready)
        callers = stack.enter_context(ThreadPoolExecutor(8))
        asked = [callers.submit(client.infer, "echo", text=str(i)) for i in range(200)]
        until(lambda: sum(one.done() for one in asked) > 50)
        os.kill(servers[0].pid, signal.SIGKILL)
        assert [one.result() for one in asked] == [str(i) for i in range(200)]
