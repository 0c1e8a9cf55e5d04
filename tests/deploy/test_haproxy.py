"""deploy/haproxy: would HAProxy take it, and does it fit what a server says?"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from wherry.server.agent_check import expected_seconds
from wherry.server.options import OPTIONS

CONFIGURATION = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
TEXT = CONFIGURATION.read_text()


def test_haproxy_takes_the_configuration_without_a_warning() -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("needs haproxy")
    command = ["haproxy", "-c", "-q", "-f", str(CONFIGURATION)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_time_of_a_row_is_one_that_the_agent_check_reads() -> None:
    (said,) = re.findall(r"presetenv WHERRY_ROW (\S+)", TEXT)
    assert expected_seconds(f"{said}\n".encode())


def test_a_connection_ends_at_haproxy_before_it_ends_at_the_server() -> None:
    (seconds,) = re.findall(r"timeout http-keep-alive (\d+)s", TEXT)
    assert int(seconds) < OPTIONS["idle_timeout"].default


@pytest.mark.parametrize(("flag", "where"), [("agent", "agent-port"), ("grpc", r"\d:")])
def test_the_ports_are_those_of_the_command_above(flag: str, where: str) -> None:
    (port,) = re.findall(rf"--{flag}-port (\d+)", TEXT)
    assert re.search(rf"{where} ?{port}\b", TEXT)
