"""How does a program that uses wherry test itself without sleeping and hoping?

GatedModel       a model that says when a batch has started and waits for the test
ManualClock      a clock that moves when the test says so
local_server     a server in this process, in a thread
running_server   `python -m wherry serve ...` as a process of its own, on a free port
ServerProcess    the same with the process in hand: signals, exit code, log
"""

from wherry.testing.gated import GatedModel, ManualClock
from wherry.testing.servers import ServerProcess, local_server, running_server

__all__ = ["GatedModel", "ManualClock", "ServerProcess", "local_server", "running_server"]
