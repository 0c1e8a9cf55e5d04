"""An owner as a child process: what it tells, and how it ends."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from wherry.deploy.owner_process import OwnerProcess
from wherry.deploy.replicas import OwnerAddress, OwnerNotStarted

pytestmark = pytest.mark.slow  # each starts a process

READY = """
import json, os, signal, sys
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with open(flags["--config"]) as config:
    server = json.load(config)["server"]
print(server["cluster_token"], os.environ.get("WHERRY_PORT"), file=sys.stderr, flush=True)
with open(int(flags["--ready-fd"]), "w") as ready:
    ready.write(f"http://127.0.0.1:1\\nrows {server['rows_host']}:2\\n")
"""
UNTIL_TERM = READY + "signal.sigwait({signal.SIGTERM})\nsys.exit(0)\n"
STUBBORN = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "signal.pause()"
)
UNTIL_STOP_FD = READY + "os.read(int(flags['--stop-fd']), 1)\nsys.exit(7)\n"
BROKEN = "import sys\nprint('no weights', file=sys.stderr)\nsys.exit(3)\n"
NEVER_READY = """
import signal, sys
print("starting", file=sys.stderr, flush=True)
signal.pause()
"""


def owner(folder: Path, program: str, drain_timeout: float = 30.0) -> OwnerProcess:
    path = folder / "owner.py"
    path.write_text(program)
    return OwnerProcess(
        ["app.py"],
        {"server": {"cluster_token": "secret", "port": 9}},
        host="127.0.0.1",
        drain_timeout=drain_timeout,
        command=[sys.executable, str(path)],
    )


def test_it_is_ready_with_its_addresses_and_ends_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERRY_PORT", "8000")
    process = owner(tmp_path, UNTIL_TERM)
    assert process.start() == OwnerAddress("127.0.0.1:2", "http://127.0.0.1:1")
    process.stop()
    assert process.wait() in ("exit code 0", "ended by SIGTERM")
    assert list(process._last_lines) == ["secret None"]


def test_one_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    process = owner(tmp_path, BROKEN)
    with pytest.raises(OwnerNotStarted, match="exit code 3\nno weights"):
        process.start()
    process.stop()


def test_one_that_is_stopped_while_it_starts_is_not_waited_for(tmp_path: Path) -> None:
    """It says on its log that it runs, and never that it is ready."""
    process = owner(tmp_path, NEVER_READY)
    with ThreadPoolExecutor(1) as pool:
        address = pool.submit(process.start)
        while not process._last_lines:
            wait([address], timeout=0.01)
        process.stop(at_once=True)
        with pytest.raises(OwnerNotStarted, match="SIGKILL"):
            address.result()


def test_one_that_is_stopped_before_it_starts_is_not_started(tmp_path: Path) -> None:
    process = owner(tmp_path, UNTIL_TERM)
    process.stop()
    with pytest.raises(OwnerNotStarted, match="stopped"):
        process.start()


def test_one_that_does_not_end_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherry.deploy.owner_process.ENDING", 0.05)
    process = owner(tmp_path, STUBBORN, drain_timeout=0.0)
    process.start()
    process.stop()
    assert process.wait() == f"ended by {signal.SIGKILL.name}"


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    process = owner(tmp_path, UNTIL_STOP_FD)
    process.start()
    assert process._lifeline is not None
    os.close(process._lifeline)  # as the kernel does for a process that has ended
    process._lifeline = None
    assert process.wait() == "exit code 7"
    process.stop()
