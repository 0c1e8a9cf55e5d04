"""`python -m wherry` before a command has begun."""

import subprocess
import sys

import pytest

#: Ctrl-C at the moment when a module is first asked for; then `wherry bench`.
INTERRUPTED_AT = """
import os, runpy, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
sys.meta_path.insert(0, Finder)
sys.argv = ["wherry", "bench", "http://127.0.0.1:1"]
runpy.run_module("wherry", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module",
    ["wherry.cli", "wherry.cli.settings", "wherry.cli.bench.command", "wherry.loadtest.plan"],
)
def test_ctrl_c_while_the_command_is_read_ends_it_quietly(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module=module)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
