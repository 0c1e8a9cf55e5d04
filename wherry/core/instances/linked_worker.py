"""How is an instance's worker process watched and reached, and how does it end?

The instance's own thread waits while the worker loads its model, and then watches it: it logs what
the worker prints, sees it end, and does what would take the event loop too long. Messages go
through the link, in the event loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from wherry.core.values.errors import WorkerDied
from wherry.core.workers.link import WorkerLink
from wherry.core.workers.loop import LoopCalls
from wherry.core.workers.message_socket import FrameSocket
from wherry.core.workers.process import WorkerProcess
from wherry.core.workers.shared_process import ProcessShare

T = TypeVar("T")

#: Seconds between two checks that the loop, which must close the sockets, still runs.
_LOOK = 0.1


class Memory(Protocol):
    """What a worker shares with this process."""

    def close(self) -> None: ...


class LinkedWorker:
    """The worker process of one instance. Messages go both ways once it is linked up.

    `receive` and `refused` are those of its link (`WorkerLink`), whose event loop `loop()` returns
    once the sockets are the link's. `stop_message` has the worker unload its model and end, for
    which it has `unload_timeout` seconds (None: any time).
    """

    #: The way to the worker, once the sockets are the link's. For the loop's thread.
    link: WorkerLink

    def __init__(
        self,
        name: str,
        loop: Callable[[], LoopCalls],
        *,
        receive: Callable[[list[Any]], None],
        refused: Callable[[Any, Exception], None],
        stop_message: Any,
        unload_timeout: float | None,
    ) -> None:
        self._name = name
        self._choose_loop = loop
        self._receive = receive
        self._refused = refused
        self._stop_message = stop_message
        self._unload_timeout = unload_timeout
        #: For what `abort` meets in another thread.
        self._lock = threading.Lock()
        self._aborted = ""
        self._process: WorkerProcess | ProcessShare | None = None
        self._memory: Memory | None = None
        self._sockets: FrameSocket | None = None
        #: The event loop that owns the sockets, once they are the link's.
        self._loop: LoopCalls | None = None
        #: What the instance's thread must do, and whether it stops after that.
        self._jobs: deque[Callable[[], None]] = deque()
        self._stopped = False
        #: Why the link has ended, and whether the worker had read all that was sent.
        self._end: tuple[Exception, bool] | None = None

    # Any thread

    def do(self, callback: Callable[[T], None], argument: T) -> None:
        """Have `callback(argument)` called in the loop; at once, if this is its thread."""
        loop = self._loop
        if loop is not None:
            if loop.thread == threading.get_ident():
                callback(argument)
            else:
                loop.call(callback, argument)

    def post(self, callback: Callable[[T], None], argument: T) -> None:
        """Have `callback(argument)` called in the loop, never at once."""
        if self._loop is not None:
            self._loop.call(callback, argument)

    def post_later(self, seconds: float, callback: Callable[[T], None], argument: T) -> None:
        """The same, in `seconds`. In the loop's thread."""
        if self._loop is not None:
            self._loop.loop.call_later(seconds, callback, argument)

    def stop(self) -> None:
        """Have `serve` return."""
        self._stopped = True
        self.ring()

    def abort(self, reason: str) -> None:
        """Kill the process, also one that is started later."""
        with self._lock:
            self._aborted = self._aborted or reason
            if self._process is not None:
                self._process.kill()

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def ring(self) -> None:
        """Have `wait_for` look again."""
        process = self._process
        if process is not None:
            process.ring()

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.is_running else None

    @property
    def rss_bytes(self) -> int:
        """The worker's resident memory; of a process that others share, its part. 0 if it does not
        run, or the system does not report it."""
        process = self._process
        return 0 if process is None else process.rss_bytes

    @property
    def held_bytes(self) -> int:
        """The same; of a process that others share, what it has grown by in the load."""
        process = self._process
        return 0 if process is None else process.held_bytes

    # The loop

    @property
    def is_linked(self) -> bool:
        """Is the worker loaded, and has its end not been noticed?"""
        return self._loop is not None and self._end is None

    def _ended(self, error: Exception, read: bool) -> None:
        self._end = error, read
        self.ring()

    def _aside(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self.ring()

    # The instance's thread

    def connect(
        self, process: WorkerProcess | ProcessShare, sockets: FrameSocket, memory: Memory
    ) -> None:
        """The worker is started: from now on `abort` kills it, and `unload` ends it."""
        self._sockets, self._memory = sockets, memory
        with self._lock:
            self._process = process
            if self._aborted:
                process.kill()

    def link_up(self) -> None:
        """From now on the event loop owns the sockets."""
        assert self._sockets is not None
        assert self._process is not None
        self._process.loaded()
        self._loop = self._choose_loop()
        self.link = WorkerLink(
            self._loop,
            self._sockets,
            receive=self._receive,
            refused=self._refused,
            ended=self._ended,
            aside=self._aside,
        )
        self._loop.call(WorkerLink.start, self.link)

    def serve(self) -> None:
        """Watch the worker and do what the loop cannot, until `stop`. Raises WorkerDied."""
        self.wait_for(lambda: self._stopped)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """The same until `done()`, which is checked again after `ring`."""
        assert self._process is not None
        assert self._loop is not None
        while not done():
            exited = self._process.watch()
            self._do_jobs()
            if done():
                return
            if self._end is not None:
                error, read = self._end
                raise self.died(error, reached=read)
            if exited:
                self._loop.call(self.link.exited, EOFError("it has ended"))
                if self._loop.is_closed:
                    raise self.died(EOFError("it has ended"))

    def unload(self) -> None:
        """Have the worker unload its model and end; kill it if it does not. Releases everything.
        Without effect if there is no worker."""
        process = self._process
        if process is None:
            return
        if self._loop is None:
            assert self._sockets is not None
            self._sockets.close()  # a worker that was not loaded ends by that
            process.wait()
        else:
            self._request_end(process)
            process.wait()
            self._close_link(process)
        with self._lock:
            self._process = None
        process.close()
        assert self._memory is not None
        self._memory.close()

    def _request_end(self, process: WorkerProcess | ProcessShare) -> None:
        assert self._loop is not None
        if not self.is_linked or self._aborted or process.has_ended():
            return
        if self._loop.is_closed:
            process.kill()
            return
        self._loop.call(self.link.send, self._stop_message)
        seconds = self._unload_timeout
        ends_at = None if seconds is None else time.monotonic() + seconds
        while self.is_linked:
            left = None if ends_at is None else ends_at - time.monotonic()
            if (left is not None and left <= 0) or process.watch(left):
                return
            self._do_jobs()

    def _close_link(self, process: WorkerProcess | ProcessShare) -> None:
        """Have the loop close the sockets of a worker that has ended."""
        assert self._loop is not None
        self._loop.call(WorkerLink.close, self.link)
        while self.is_linked:
            if self._loop.is_closed:
                self.link.abandon()
                return
            process.watch(_LOOK)
            self._do_jobs()

    def _do_jobs(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def died(self, error: Exception, *, reached: bool = True) -> WorkerDied:
        """Make sure that the worker is gone, and return how it ended."""
        assert self._process is not None
        how, cause = self._process.end(error)
        if self._aborted:
            how, cause = f"was stopped: {self._aborted}", "hang"
        process = self._process
        died = WorkerDied(f"worker {self._name} (pid {process.pid}) {how}")
        died.reached, died.cause = reached and process.was_running, cause
        died.innocent, died.alone = process.is_innocent, process.was_alone
        return died
