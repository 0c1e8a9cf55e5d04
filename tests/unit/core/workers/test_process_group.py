"""What a worker has started ends with it, and with the process that has started the worker."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fakes import until
from wherry.core.workers.process import ProcessGroup

if sys.platform != "linux":
    pytest.skip("elsewhere a group ends by close() alone", allow_module_level=True)

#: A leader whose children hold a pipe open, by which their end is seen; one is its grandchild.
LEADER = "trap '' TERM HUP; (sleep 1000 & sleep 1000) & sleep 1000 & echo started >&2; wait"
STARTER = f"""
import signal, subprocess, sys
from wherry.core.workers.process import ProcessGroup
leader = subprocess.Popen(["sh", "-c", {LEADER!r}], start_new_session=True)
group = ProcessGroup(leader.pid)
sys.stderr.write("grouped")
signal.pause()
"""


def all_end(pipe: int) -> None:
    """Wait until no process holds the other end of the pipe."""
    while os.read(pipe, 4096):
        pass
    os.close(pipe)


def test_a_group_ends_when_it_is_closed_though_its_leader_is_gone() -> None:
    pipe, theirs = os.pipe()
    leader = subprocess.Popen(["sh", "-c", LEADER], stderr=theirs, start_new_session=True)
    os.close(theirs)
    group = ProcessGroup(leader.pid)
    os.read(pipe, 100)
    leader.kill()
    leader.wait()
    group.close()
    all_end(pipe)


def test_a_group_ends_when_it_is_closed_though_a_fork_has_its_descriptors() -> None:
    pipe, theirs = os.pipe()
    leader = subprocess.Popen(["sh", "-c", LEADER], stderr=theirs, start_new_session=True)
    os.close(theirs)
    group = ProcessGroup(leader.pid)
    files = [end.fileno() for end in group._ends]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=files) as fork:
        os.read(pipe, 100)
        group.close()
        all_end(pipe)
        assert fork.poll() is None
    leader.wait()


def test_a_group_ends_when_the_process_that_started_it_is_killed() -> None:
    pipe, theirs = os.pipe()
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stderr=theirs)
    os.close(theirs)
    written = b""
    while not (b"started" in written and b"grouped" in written):
        written += os.read(pipe, 100)
    starter.kill()
    starter.wait()
    all_end(pipe)


def test_what_has_a_session_of_its_own_lives_on() -> None:
    script = "setsid sleep 1000 <&- >&- 2>&- & echo $!; wait"
    leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    daemon = int(leader.stdout.readline())
    until(lambda: os.getsid(daemon) == daemon)
    ProcessGroup(leader.pid).close()
    leader.wait()
    leader.stdout.close()
    os.kill(daemon, signal.SIGKILL)  # raises if it is gone
