"""How do processes that a model forks reach the server?

Its connection is the model's own. A process that was forked asks that one, which asks the server in
a thread of its own for each question and passes the answer on.
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import threading
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

from . import pb_utils

_RIGHTS = socket.SOL_SOCKET, socket.SCM_RIGHTS
_INT_BYTES = array.array("i").itemsize


class Forks:
    """What forked processes ask: in the model's own process, `answer` is called with it."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer
        #: Whether this process is one that the model has forked.
        self.forked = False
        #: Where forked processes send the ends of their connections, and where those arrive; there
        #: is none before the first fork.
        self._asking: socket.socket | None = None
        self._requests: socket.socket | None = None
        self._beginning = threading.Lock()
        os.register_at_fork(before=self._listen, after_in_child=self._note_fork)

    def ask(self, what: str, *values: Any) -> Any:
        """Have the model's own process ask. Blocks. Raises TritonModelException."""
        from multiprocessing.connection import Connection

        try:
            with Connection(self._connected()) as connection:
                connection.send((what, values))
                error, answer = connection.recv()
        except (OSError, EOFError):
            raise pb_utils.TritonModelException("the model's own process has ended") from None
        if error is not None:
            raise pb_utils.TritonModelException(error)
        return answer

    def _connected(self) -> int:
        assert self._asking is not None
        mine, other = socket.socketpair()
        with other:
            self._asking.sendmsg([b"?"], [(*_RIGHTS, array.array("i", [other.fileno()]))])
        return mine.detach()

    def _listen(self) -> None:
        if self.forked:  # a process that it forks asks as it does
            return
        with self._beginning:
            if self._asking is None:
                self._asking, self._requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                threading.Thread(target=self._take, args=(self._requests,), daemon=True).start()

    def _note_fork(self) -> None:
        self.forked = True
        if self._requests is not None:
            self._requests.close()  # open here, it would hide the end of the model's process
            self._requests = None

    def _take(self, requests: socket.socket) -> None:
        while True:
            _, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(_INT_BYTES))
            for *kind, rights in ancillary:
                if tuple(kind) == _RIGHTS:
                    (file,) = array.array("i", rights)
                    threading.Thread(target=self._serve, args=(file,), daemon=True).start()

    def _serve(self, file: int) -> None:
        from multiprocessing.connection import Connection

        with Connection(file) as connection, contextlib.suppress(OSError, EOFError):
            what, values = connection.recv()
            try:
                answer: tuple[Any, Any] = (None, self._answer(what, *values))
            except Exception as error:  # noqa: BLE001 - the process that asked is told any
                answer = (str(error), None)
            connection.send(answer)


def end_forked_at_sigterm() -> None:
    """Have SIGTERM end the processes that this one forks, whatever it does here: Pool.terminate()
    waits for that."""
    before = threading.local()

    def hold() -> None:
        # What came to the child while it has this process's handler would be lost.
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=in_child)


class ForkedCall:
    """A call of another model by a forked process: what it needs of a ServerCall."""

    def __init__(self, forks: Forks, request: Any) -> None:
        self._forks = forks
        self._request = request

    def only(self) -> Any:
        return self._forks.ask("exec", self._request)

    def drop(self) -> None:
        """Nothing is left of it: the process that asks waits for the answer."""

    def begun(self, decoupled: bool) -> Any:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self.only)
