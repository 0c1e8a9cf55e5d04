"""`python -m wherry` before a command has begun."""

import os
import subprocess
import sys

import pytest

from wherry.__main__ import open_standard_files

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "wherry.server.cli",
        "wherry.server.cli.settings",
        "wherry.bench.cli.command",
        "wherry.bench.plan",
    ],
)
def test_ctrl_c_while_the_command_is_read_ends_it_quietly(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module=module)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_are_open_again_and_no_sockets_number(closed: str) -> None:
    code = (
        "import os, sys; from wherry.__main__ import open_standard_files; open_standard_files();"
        " print('gone'); sys.stderr.write('gone');"
        " given = [os.get_inheritable(number) for number in range(3)];"
        " os._exit(40 + os.open('/dev/null', os.O_RDONLY) if all(given) else 1)"
    )
    ran = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ran.returncode, "Traceback" in ran.stderr) == (43, False)


def test_open_standard_files_are_left_as_they_are() -> None:
    before = [os.fstat(number).st_ino for number in range(3)], sys.stdin, sys.stdout, sys.stderr
    open_standard_files()
    assert before == (
        [os.fstat(number).st_ino for number in range(3)], sys.stdin, sys.stdout, sys.stderr,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_in_a_line() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "wherry", "config"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    said = "wherry: the output could not be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, said)


def test_what_the_terminals_encoding_does_not_have_is_written_as_its_number() -> None:
    code = (
        "from wherry.__main__ import escape_unencodable; escape_unencodable();"
        r" print('\xfc\u2713')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert ran.stdout == b"\xfc\\u2713\n", ran.stderr
