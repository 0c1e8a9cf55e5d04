"""Processes that a model forks, without a server."""

import subprocess
import sys

FORKED = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
os.register_at_fork(after_in_child=lambda: time.sleep(0.5))  # before the child can do anything
from wherry.triton.python.stub.forks import end_forked_at_sigterm
end_forked_at_sigterm()
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
os.kill(os.getpid(), signal.SIGTERM)
print("goes on", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_a_forked_process_ends_at_a_sigterm_that_comes_before_it_runs() -> None:
    """Else Pool.terminate() waits for it without end."""
    told = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "15\ngoes on set()\n", told.stderr
