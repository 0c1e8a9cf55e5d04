"""wherry/__main__.py as the first process of a container: orphans, signals, the exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

#: What the server does: it says so when it may be signalled, and what it is told of.
SERVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from wherry.__main__ import go_on_below

go_on_below()
told = []
signal.signal(signal.SIGTERM, lambda number, _: (print("TERM", flush=True), os._exit(7)))
signal.signal(signal.SIGHUP, lambda *_: print("HUP", flush=True))

def states():
    found = [one.read_text() for one in Path("/proc").glob("[0-9]*/stat")]
    return [one.rpartition(")")[2].split()[0] for one in found]

subprocess.run(["sh", "-c", "true & true & exec sh -c \'sleep 0.05 &\'"], check=True)
ends_at = time.monotonic() + 30
while len(states()) > 2 and time.monotonic() < ends_at:
    time.sleep(0.01)
is_passed = os.environ["LISTEN_PID"] == str(os.getpid())
print(os.getpid() > 1, os.getppid(), is_passed, states().count("Z"), flush=True)
while True:
    signal.pause()
"""


def started() -> subprocess.Popen[str]:
    if subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and the right to use it")
    return subprocess.Popen(
        [*IN_A_CONTAINER, sys.executable, "-P", "-c", SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LISTEN_PID": "1"},
    )


def first_process(of: subprocess.Popen[str]) -> int:
    (child,) = Path(f"/proc/{of.pid}/task/{of.pid}/children").read_text().split()
    return int(child)


def test_the_first_process_reaps_orphans_passes_signals_on_and_ends_as_the_server_does() -> None:
    with started() as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "True 1 True 0\n"
        os.kill(first_process(container), signal.SIGHUP)
        assert container.stdout.readline() == "HUP\n"
        os.kill(first_process(container), signal.SIGTERM)
        assert container.stdout.readline() == "TERM\n"
    assert container.returncode == 7


def test_a_server_that_is_killed_is_told_by_the_exit_code() -> None:
    with started() as container:
        assert container.stdout is not None
        container.stdout.readline()
        first = first_process(container)
        (server,) = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        os.kill(int(server), signal.SIGKILL)
    assert container.returncode == 128 + signal.SIGKILL
