"""How do the processes that a worker has started end with it, and with this process?"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time

#: Seconds between SIGTERM and SIGKILL.
_LAST_SECONDS = 0.5
_LOOK = 0.005


class ProcessGroup:
    """The group that a worker leads. It is ended by `close`, and killed when this process ends,
    however.

    Of two sockets that are connected, the kernel has each signal the group when the other closes:
    nothing needs to run here for that, and a process id that is used again is not meant. What a
    process of the group has put into a session of its own lives on.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._ends = socket.socketpair() if sys.platform == "linux" else ()
        for end in self._ends:
            with contextlib.suppress(OSError):  # a sandbox without: they end by `close` alone
                fcntl.fcntl(end, fcntl.F_SETOWN, -leader)
                fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)

    def close(self) -> None:
        """End what is left of it. Its leader has ended, and been waited for."""
        # Not all at once: multiprocessing's tracker, which ignores SIGTERM, takes shared memory
        # away and ends once nobody uses that.
        ends_at = time.monotonic() + _LAST_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader, signal.SIGTERM)
            while time.monotonic() < ends_at:
                os.killpg(self._leader, 0)
                time.sleep(_LOOK)
        if not self._ends:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, signal.SIGKILL)
        for end in self._ends:
            end.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold it open
            end.close()
