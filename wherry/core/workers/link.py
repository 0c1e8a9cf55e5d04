"""How do messages go to a loaded worker process and come back?

One event loop owns both sockets of the worker, from when it is loaded until it has ended. All of
this happens in that loop, so nothing here needs a lock, and nothing here blocks:

    add -> encoded (waiting, behind a large one) -> write -> socket (watched while it is full)
    socket (watched) -> frames -> decoded -> receive, all that came together at once

A large message is encoded or decoded in another thread, `aside`, as that would hold up the loop for
milliseconds; what is behind it waits, so messages keep their order both ways. After `receive` has
called `hold`, nothing is read until `resume`, and a worker that goes on sending waits for room in
its socket.

An idle worker's sockets may be leased to a caller that has a thread of its own: it sends and
receives itself (`acquire`, `release`), which saves two changes of threads for each call. Whatever
the loop must do then takes them back first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from wherry.core.workers.encoding import Garbage


class SocketLease:
    """Lends what an event loop owns to one thread at a time, until the loop reclaims it."""

    def __init__(self) -> None:
        #: Held by the loop, or by the thread that uses it.
        self._used = threading.Lock()
        self._used.acquire()
        self._is_reclaimed = False

    def offer(self) -> None:
        """From now on threads may borrow it. The loop owns it."""
        self._is_reclaimed = False
        self._used.release()

    def reclaim(self) -> bool:
        """Make the loop its owner again. False: a thread has it, whose `release` returns True, or
        has just returned it."""
        self._is_reclaimed = True
        return self._used.acquire(blocking=False)

    def acquire(self) -> bool:
        """For any other thread: own it, if it is lent and no thread has it."""
        return self._used.acquire(blocking=False)

    def release(self, *, to_loop: bool) -> bool:
        """End what `acquire` began. True: the loop owns it from now on, as it has reclaimed it, or
        by `to_loop`; notify it."""
        if to_loop or self._is_reclaimed:
            return True
        self._used.release()
        # Looked at once more: the loop may have found it in use a moment ago.
        return self._is_reclaimed and self._used.acquire(blocking=False)


#: A message of more bytes is encoded or decoded aside. Copying that takes less than a millisecond,
#: about as long as two hand-overs between threads on a busy machine.
LARGE_BYTES = 1 << 20


class Loop(Protocol):
    """What the link needs of its event loop (`LoopCalls`)."""

    def call(self, callback: Callable[[Any], None], argument: Any) -> None: ...
    def add_reader(self, file: int, read: Callable[[], object]) -> None: ...
    def remove_reader(self, file: int) -> None: ...
    def add_writer(self, file: int, write: Callable[[], None]) -> None: ...
    def remove_writer(self, file: int) -> None: ...


class Messages(Protocol):
    """What the link needs of its sockets and their encoding, as in `FrameSocket`. Nothing blocks.
    If `add` raises, nothing of the message is sent.

    The link calls `add` and `decode_next` in another thread for large messages, one at a time each.
    Meanwhile it calls neither `add` nor `write`, or neither `read` nor `decode`, in the loop.
    """

    has_left: bool

    def add(self, message: Any, *, slab: bool = False) -> None: ...
    def write(self) -> bool: ...
    def read(self) -> bool: ...
    def decode(self, limit: int) -> list[Any]: ...
    def decode_next(self) -> Any: ...
    def was_read(self) -> bool: ...
    def source(self) -> int: ...
    def target(self) -> int: ...
    def close(self) -> None: ...


class WorkerLink:
    """Messages to one worker and from it. All but `acquire` and `release` is for the loop's thread.

    `receive(messages)` is called with those that came together, in order; if it raises Garbage, the
    link ends. `refused(message, error)` is called, later, for a message that was added and cannot
    be encoded; `instead(message, error)` returns what is sent in its place, or None, and may be
    called in another thread. `ended(error, read)` is called once, when the worker is gone or has
    sent garbage, after all that it had sent was received; `read`: it had read all that was sent to
    it. After that both sockets are closed and nothing is called any more. `aside(job)` has a job
    done in another thread.
    """

    def __init__(
        self,
        loop: Loop,
        messages: Messages,
        *,
        receive: Callable[[list[Any]], None],
        refused: Callable[[Any, Exception], None],
        ended: Callable[[Exception, bool], None],
        aside: Callable[[Callable[[], None]], None],
        instead: Callable[[Any, Exception], Any] = lambda *_: None,
    ) -> None:
        self._loop = loop
        self._messages = messages
        self._receive = receive
        self._refused = refused
        self._ended = ended
        self._aside = aside
        self._instead = instead
        #: Messages behind one that is encoded aside: whether each may use the slab and is large.
        self._waiting: deque[tuple[Any, bool, bool]] = deque()
        #: A message is being encoded, or decoded, aside.
        self._encoding = self._decoding = False
        #: The socket is full, and watched for room.
        self._full = False
        self._held = False
        #: Decoded messages that are received after `resume`.
        self._unread: list[Any] = []
        self._watching = False
        #: Why the worker is known to have ended, though there may be messages of it to read.
        self._gone: Exception | None = None
        self._over = False
        #: The sockets are offered, and were not reclaimed since.
        self._offered = False
        self._lease = SocketLease()

    def start(self) -> None:
        if not self._over:
            self._watch(True)
            self._deliver()  # what came together with the last message of the load

    # Sending

    def send(self, message: Any) -> None:
        self.add(message)
        self.write()

    def add(self, message: Any, *, slab: bool = False, large: bool = False) -> None:
        """Send a message with the next `write`, after those that were added before.

        `large`: encode it aside. `slab`: its arrays may go to the slab, as the worker has read
        what was there. Once the link has ended this does nothing.
        """
        if self._over:
            return
        if self._offered:
            self._reclaim()
        if large or self._waiting or self._encoding:
            self._waiting.append((message, slab, large))
        else:
            self._encode(message, slab)

    def write(self) -> None:
        """Send what was added; while the other thread encodes, only after that."""
        if self._offered:
            return  # nothing was added: that takes the sockets back
        while self._waiting and not self._encoding:
            message, slab, large = self._waiting.popleft()
            if large:
                self._encoding = True
                self._aside(partial(self._encode_aside, message, slab))
            else:
                self._encode(message, slab)
        full = False
        if not (self._encoding or self._over):
            try:
                full = not self._messages.write()
            except OSError as error:  # an answer that it had sent before may be there to read
                self.exited(error)
        if full != self._full and not self._over:
            self._full = full
            if full:
                self._loop.add_writer(self._messages.target(), self.write)
            else:
                self._loop.remove_writer(self._messages.target())

    def _encode(self, message: Any, slab: bool) -> None:
        try:
            self._messages.add(message, slab=slab)
        except Exception as error:  # noqa: BLE001 - UNSENDABLE, or what this process is short of
            self._loop.call(partial(self._refused, message), error)
            if (instead := self._instead(message, error)) is not None:
                self._messages.add(instead)

    def _encode_aside(self, message: Any, slab: bool) -> None:
        self._encode(message, slab)
        self._loop.call(WorkerLink._encoded, self)

    def _encoded(self) -> None:
        self._encoding = False
        if self._over:
            self._messages.close()  # what has just been encoded
        else:
            self.write()

    # Receiving

    def hold(self, unread: Sequence[Any] = ()) -> None:
        """Receive nothing more until `resume`, and then `unread` first: those of the messages that
        were received last which are to come again."""
        self._held = True
        self._unread += unread

    def resume(self) -> None:
        """Go on. What was received meanwhile follows, before this returns."""
        if self._held and not self._over:
            self._held = False
            unread, self._unread = self._unread, []
            self._deliver(unread)
            self._go_on()

    def exited(self, error: Exception) -> None:
        """The worker has ended, for this reason if its socket shows no other."""
        if self._offered:
            self._reclaim()
        if self._gone is None:
            self._gone = error
            self._go_on()

    def _go_on(self) -> None:
        self._deliver()
        if not self._may_receive():
            return
        if self._gone is None:
            if not self._watching:
                self._watch(True)
            return
        while self._read():
            if not self._may_receive():
                return  # this is called again when it may
        self._end(self._gone)

    def _may_receive(self) -> bool:
        return not (self._held or self._decoding or self._over)

    def _read(self) -> bool:
        """Receive what is there. False: there is nothing, or it must wait."""
        if self._held or self._decoding or self._over:
            self._watch(False)  # or the loop would spin
            return False
        try:
            if not self._messages.read():
                return False
        except (EOFError, OSError) as error:
            self._end(error)
            return False
        self._deliver()
        return True

    def _deliver(self, arrived: list[Any] | None = None) -> None:
        """Receive these, or what was read, as long as nothing stands in the way of that."""
        messages = self._messages
        while not (self._held or self._decoding or self._over):
            arrived = arrived or messages.decode(LARGE_BYTES)
            if arrived:
                try:
                    self._receive(arrived)
                except Garbage as error:
                    self._end(error)
                arrived = None
            elif messages.has_left:
                self._decoding = True
                self._aside(self._decode_aside)
            if not messages.has_left:
                return

    def _decode_aside(self) -> None:
        message: Any
        try:
            message = self._messages.decode_next()
        except Garbage as error:
            message = error
        self._loop.call(self._decoded, message)

    def _decoded(self, message: Any) -> None:
        self._decoding = False
        if self._over:
            return
        if isinstance(message, Garbage):
            self._end(message)
        else:
            self._deliver([message])
            self._go_on()

    def _watch(self, watching: bool) -> None:
        self._watching = watching
        if watching:
            self._loop.add_reader(self._messages.source(), self._read)
        else:
            self._loop.remove_reader(self._messages.source())

    # Lending

    def offer(self) -> None:
        """Let callers' threads use the sockets, if nothing is under way here."""
        sending = self._waiting or self._encoding or self._full
        if not (sending or self._offered or self._gone is not None) and self._may_receive():
            self._watch(False)
            self._offered = True
            self._lease.offer()

    def acquire(self) -> Messages | None:
        """Have the sockets in this thread, until `release`; None: not now. Any thread, while
        nothing is added here. What is sent must be answered before that, or be `unanswered`
        there."""
        return self._messages if self._offered and self._lease.acquire() else None

    def release(self, error: Exception | None = None, *, unanswered: bool = False) -> None:
        """End what `acquire` began, in the same thread. The loop takes over if there was an
        `error`, or an answer is still to come."""
        if self._lease.release(to_loop=unanswered or error is not None):
            self._loop.call(self._returned, error)

    def _reclaim(self) -> bool:
        """Take the sockets back. False: a caller has them, and `_returned` follows: until then this
        is as if it encoded and decoded a large message aside."""
        self._offered = False
        if self._lease.reclaim():
            self._watch(True)
            return True
        self._encoding = self._decoding = True
        return False

    def _returned(self, error: Exception | None) -> None:
        self._offered = self._encoding = self._decoding = False
        if self._over:
            self._messages.close()
        elif isinstance(error, Garbage):
            self._end(error)
        else:
            self.write()
            if error is not None:
                self.exited(error)
            self._go_on()

    # The end

    def _end(self, error: Exception) -> None:
        if self._over:
            return
        self._over = True
        if self._watching:
            self._watch(False)
        if self._full:
            self._loop.remove_writer(self._messages.target())
        read = not self._waiting and not self._encoding and self._messages.was_read()
        self._waiting.clear()
        self._messages.close()
        self._ended(error, read)

    def close(self) -> None:
        """End at once; what the worker has still sent is not received. If a caller has the sockets,
        the end comes when it gives them back."""
        if self._offered and not self._reclaim():
            self.exited(EOFError("closed"))
        else:
            self._end(EOFError("closed"))

    def abandon(self) -> None:
        """Close the sockets, as the loop is closed and will not. Any thread."""
        self._over = True
        self._messages.close()
