"""How does a program that uses wherry test itself without sleeping and hoping?

GatedModel       a model that reports when a batch has started and waits for the test
ManualClock      a clock that only the test moves
local_server     a server in this process, in a thread
running_server   `python -m wherry serve ...` as a separate process, on a free port
ServerProcess    the same with the process in hand: signals, exit code, log
"""

from wherry.testing.gated import GatedModel, ManualClock
from wherry.testing.servers import ServerProcess, local_server, running_server

__all__ = ["GatedModel", "ManualClock", "ServerProcess", "local_server", "running_server"]
