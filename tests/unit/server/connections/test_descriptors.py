"""Which descriptors are kept from connections?"""

import subprocess
import sys

import pytest

from wherry.server.connections.limits import MOST_RESERVED

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")

ASK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from wherry.server.connections import limits
print(limits.raise_limit({connections}))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.for_connections())
"""


def ask(soft: int, hard: int, connections: int) -> list[str]:
    """In a process of its own, whose limits are its own."""
    code = ASK.format(soft=soft, hard=hard, connections=connections)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_limit_is_raised_as_far_as_connections_need_it() -> None:
    fits, limit, most = ask(soft=64, hard=4000, connections=100)
    assert (fits, int(limit)) == ("True", 400 + 4 * MOST_RESERVED)
    assert int(most) == int(limit) - MOST_RESERVED


def test_the_limit_is_not_lowered() -> None:
    assert ask(soft=2000, hard=4000, connections=1) == ["True", "2000", str(2000 - MOST_RESERVED)]


def test_connections_that_do_not_fit_are_told_of() -> None:
    assert ask(soft=64, hard=100, connections=100) == ["False", "100", "75"]
