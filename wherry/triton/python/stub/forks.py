"""How do processes that a model forks reach the server?

Only the model's own process uses the connection. Forked processes send their calls to it; it makes
each in a thread of its own and returns the answer.
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
    """Calls of forked processes: in the model's own process, `answer` is called for each."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer
        #: Whether this process is one that the model has forked.
        self.forked = False
        #: A socket pair: forked processes send the ends of their connections into the first, and
        #: the model's own process receives them from the second. None before the first fork.
        self._sender: socket.socket | None = None
        self._requests: socket.socket | None = None
        self._beginning = threading.Lock()
        os.register_at_fork(before=self._listen, after_in_child=self._note_fork)

    def call(self, what: str, *values: Any) -> Any:
        """Make a call through the model's own process. Blocks. Raises TritonModelException."""
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
        assert self._sender is not None
        mine, other = socket.socketpair()
        with other:
            self._sender.sendmsg([b"?"], [(*_RIGHTS, array.array("i", [other.fileno()]))])
        return mine.detach()

    def _listen(self) -> None:
        if self.forked:  # its own forks use the same connection
            return
        with self._beginning:
            if self._sender is None:
                self._sender, self._requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                threading.Thread(target=self._take, args=(self._requests,), daemon=True).start()

    def _note_fork(self) -> None:
        self.forked = True
        if self._requests is not None:
            self._requests.close()  # open here, it would hide that the model's process ends
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
            except Exception as error:  # noqa: BLE001 - the calling process gets any
                answer = (str(error), None)
            connection.send(answer)


def end_forked_at_sigterm() -> None:
    """Let SIGTERM end forked processes, although it is ignored here: Pool.terminate() waits for
    that."""
    before = threading.local()

    def hold() -> None:
        # A SIGTERM would be lost while the child still has this process's handler.
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
        return self._forks.call("exec", self._request)

    def drop(self) -> None:
        """Nothing to drop: the calling process waits for the answer."""

    def begun(self, decoupled: bool) -> Any:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self.only)
