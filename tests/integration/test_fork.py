"""What may a child do that was forked from a process with a Runtime?"""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import os, sys
import wherry
from tests.worker_models import obedient

def child(runtime):
    for use in (
        lambda: runtime.infer("obedient", text="a"),
        lambda: runtime.infer_batch("obedient", text=["a"]),
        lambda: next(runtime.map("obedient", ["a"])),
        lambda: obedient.infer("a"),
        lambda: runtime.load(obedient),
        lambda: runtime.start(),
        lambda: runtime.model("another"),
    ):
        try:
            use()
        except RuntimeError as error:
            assert str(os.getppid()) in str(error) and "spawn" in str(error), error
        else:
            raise AssertionError("a copy was used")
    with wherry.Runtime(obedient, isolation=ISOLATION) as own:
        assert own.infer("obedient", text="a").startswith("a in ")

with wherry.Runtime(obedient, isolation=ISOLATION) as runtime:
    before = runtime.infer("obedient", text="a")  # it says in which process it ran
    forked = os.fork()
    if not forked:
        child(runtime)
        sys.exit(7)  # through the end of `with`, and of the interpreter
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
    assert runtime.infer("obedient", text="a") == before
print("fine")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_forked_child_is_told_that_the_runtime_is_its_parents(isolation: str) -> None:
    program = f"ISOLATION = {isolation!r}\n" + textwrap.dedent(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr
