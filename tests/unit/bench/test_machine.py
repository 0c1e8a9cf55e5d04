"""What processes cost, and who listens."""

import os
import socket
import subprocess
import sys

from wherry.bench import machine


def test_this_process_has_used_some_cpu_and_a_gone_one_is_unknown() -> None:
    before = machine.cpu_seconds(os.getpid())
    sum(range(200_000))
    after = machine.cpu_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert 0 < before <= after
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert machine.cpu_seconds(gone.pid) is None


def test_whoever_listens_on_a_port_is_found() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert machine.listener(port) is None  # bound, and nobody listens
        sock.listen()
        assert machine.listener(port) == os.getpid()
    assert machine.listener(port) is None


def test_only_loopback_is_here() -> None:
    assert machine.is_here("localhost")
    assert machine.is_here("127.0.0.2")
    assert not machine.is_here("10.0.0.1")


def test_the_machines_facts_name_what_a_figure_depends_on() -> None:
    facts = machine.facts()
    assert facts["cores"] == os.cpu_count()
    assert "wherry" in facts["versions"]
