"""A successor takes over from a server under load, and nothing is lost between the two."""

import random
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks.restart_clients import Ledger
from benchmarks.restarts import rolling

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).parents[2]

#: Clients that must have been answered all along.
KINDS = ("keep-alive", "idle", "connection", "events", "pipelined", "grpc", "grpc-stream")


@pytest.mark.parametrize("way", ["reuse-port", "fd"])
def test_nothing_is_lost_when_a_successor_takes_over(tmp_path: Path, way: str) -> None:
    ledger = Ledger()
    codes, _ = rolling(tmp_path, ledger, 1, signal.SIGTERM, random.Random(1), way)
    assert codes == [0, 0]
    assert ledger.lost() == 0, ledger.counts
    assert all(ledger.counts[kind, "answered"] for kind in KINDS)


#: Becomes the server, as systemd starts it: its socket is descriptor 3, its process is named.
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), EXECUTED=os.devnull)
os.execv(sys.executable, [sys.executable, "-m", "wherry", "serve", sys.argv[2]])
"""


def test_sockets_of_systemd_are_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        model = "benchmarks/restart_models.py:echo"
        with subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(passed.fileno()), model],
            cwd=REPOSITORY, pass_fds=[passed.fileno()], stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                # It waits in the queue until the models are loaded.
                url = f"http://127.0.0.1:{passed.getsockname()[1]}/v2/health/ready"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    assert answer.status == 200
            finally:
                process.terminate()
            assert process.wait(30) == 0


def test_a_wrong_variable_ends_with_exit_code_2() -> None:
    command = (
        "export LISTEN_FDS=x LISTEN_PID=$$;"
        f" exec {sys.executable} -m wherry serve benchmarks/restart_models.py:echo"
    )
    done = subprocess.run(
        ["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "LISTEN_FDS: 'x' is not a number" in done.stderr
