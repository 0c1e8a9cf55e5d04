"""How do messages go to a loaded worker process and come back?

One event loop owns both sockets of the worker, from when it is loaded until it has ended. All of
this happens in that loop, so nothing here needs a lock, and nothing here blocks:

    send -> waiting -> encoded -> socket (watched for room while it is full)
    socket (watched) -> frames -> decoded -> receive

A large message is encoded or decoded in another thread, `aside`, as that would hold up the loop for
milliseconds; what is behind it waits, so messages keep their order both ways. While `receive` has
asked to `hold`, nothing is read, and a worker that goes on sending waits for room in its socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from wherry.workers.frames import Frame, Garbage

#: A message of more bytes is encoded or decoded aside. Copying so much takes less than a
#: millisecond, about what two hand-overs between threads on a busy machine take.
LARGE_BYTES = 1 << 20


class Loop(Protocol):
    """What the link asks of its event loop (`LoopCalls`)."""

    def call(self, callback: Callable[[Any], None], argument: Any) -> None: ...
    def add_reader(self, file: int, read: Callable[[], None]) -> None: ...
    def remove_reader(self, file: int) -> None: ...
    def add_writer(self, file: int, write: Callable[[], None]) -> None: ...
    def remove_writer(self, file: int) -> None: ...


class Messages(Protocol):
    """What the link asks of its sockets (`MessageSocket`, which does not block)."""

    def add(self, message: msgspec.Struct, *, slab: bool = False) -> None: ...
    def write(self) -> bool: ...
    def read(self) -> bool: ...
    def next_frame(self) -> Frame | None: ...
    def decode(self, frame: Frame) -> Any: ...
    def was_read(self) -> bool: ...
    def source(self) -> int: ...
    def target(self) -> int: ...
    def close(self) -> None: ...


#: A message to encode: whether it may use the slab, whether it is large, what is told if it cannot
#: be encoded.
_Outgoing = tuple[msgspec.Struct, bool, bool, Callable[[Exception], None] | None]


class WorkerLink:
    """Messages to one worker and from it. Every method is for the loop's thread.

    `receive(message)` is called for each message, in order; if it raises Garbage, the link ends.
    `ended(error, read)` is called once, when the worker is gone or has sent garbage, after all that
    it had sent was received; `read`: it had read all that was sent to it. After that both sockets
    are closed and nothing is called any more. `aside(job)` has a job done in another thread.
    `prepare(message)` is what takes long about a message besides decoding it.
    """

    def __init__(
        self,
        loop: Loop,
        messages: Messages,
        *,
        receive: Callable[[Any], None],
        ended: Callable[[Exception, bool], None],
        aside: Callable[[Callable[[], None]], None],
        prepare: Callable[[Any], None] | None = None,
    ) -> None:
        self._loop = loop
        self._messages = messages
        self._receive = receive
        self._ended = ended
        self._aside = aside
        self._prepare = prepare
        self._waiting: deque[_Outgoing] = deque()
        #: A message is being encoded, or decoded, aside.
        self._encoding = self._decoding = False
        #: The socket is full, and watched for room.
        self._full = False
        self._held = False
        self._watching = False
        #: Why the worker is known to have ended, though there may be messages of it to read.
        self._gone: Exception | None = None
        self._over = False

    def start(self) -> None:
        """Receive from now on."""
        if not self._over:
            self._watch(True)
            self._deliver()  # what came together with the last message of the load

    # Sending

    def send(
        self,
        message: msgspec.Struct,
        *,
        slab: bool = False,
        large: bool = False,
        refused: Callable[[Exception], None] | None = None,
    ) -> None:
        """Send a message after those that were sent before.

        `refused(error)` is called later, in the loop, if it cannot be encoded (UNSENDABLE), or this
        process is short of what that needs. `large`: encode it
        aside. `slab`: see `MessageSocket.add`. Once the link has ended this does nothing.
        """
        if self._over:
            return
        if large or self._encoding:
            self._waiting.append((message, slab, large, refused))
            self._send_waiting()
        else:
            self._encode(message, slab, refused)
            self._write()

    def _send_waiting(self) -> None:
        while self._waiting and not self._encoding:
            message, slab, large, refused = self._waiting.popleft()
            if large:
                self._encoding = True
                self._aside(partial(self._encode_aside, message, slab, refused))
            else:
                self._encode(message, slab, refused)
        self._write()

    def _encode(
        self,
        message: msgspec.Struct,
        slab: bool,
        refused: Callable[[Exception], None] | None,
    ) -> None:
        try:
            self._messages.add(message, slab=slab)
        except Exception as error:  # noqa: BLE001 - UNSENDABLE, or what this process is short of
            if refused is not None:
                self._loop.call(refused, error)

    def _encode_aside(
        self,
        message: msgspec.Struct,
        slab: bool,
        refused: Callable[[Exception], None] | None,
    ) -> None:
        """In another thread."""
        self._encode(message, slab, refused)
        self._loop.call(WorkerLink._encoded, self)

    def _encoded(self) -> None:
        self._encoding = False
        if self._over:
            self._messages.close()  # what has just been encoded
        else:
            self._send_waiting()

    def _write(self) -> None:
        """Send what is encoded. Not while the other thread encodes: then when it has done so."""
        full = False
        if not self._encoding:
            try:
                full = not self._messages.write()
            except OSError as error:  # an answer that it had sent before may be there to read
                self.exited(error)
        if full != self._full and not self._over:
            self._full = full
            if full:
                self._loop.add_writer(self._messages.target(), self._write)
            else:
                self._loop.remove_writer(self._messages.target())

    # Receiving

    def hold(self) -> None:
        """Receive nothing more until `resume`."""
        self._held = True

    def resume(self) -> None:
        """Go on. What was received meanwhile follows, before this returns."""
        if self._held:
            self._held = False
            self._go_on()

    def exited(self, error: Exception) -> None:
        """The worker has ended, for this reason if its socket tells no other."""
        if self._gone is None:
            self._gone = error
            self._go_on()

    def _go_on(self) -> None:
        self._deliver()
        if not self._may_receive():
            return
        if self._gone is not None:
            self._read_the_rest(self._gone)
        elif not self._watching:
            self._watch(True)

    def _may_receive(self) -> bool:
        return not (self._held or self._decoding or self._over)

    def _readable(self) -> None:
        if not self._may_receive():
            self._watch(False)  # or the loop would spin
        elif self._read():
            self._deliver()

    def _read_the_rest(self, error: Exception) -> None:
        while self._read():
            self._deliver()
            if not self._may_receive():
                return  # `_go_on` comes back
        self._end(error)

    def _read(self) -> bool:
        """Is there anything new?"""
        if self._over:
            return False
        try:
            return self._messages.read()
        except (EOFError, OSError, Garbage) as error:
            self._end(error)
            return False

    def _deliver(self) -> None:
        messages = self._messages
        try:
            while self._may_receive():
                frame = messages.next_frame()
                if frame is None:
                    return
                if frame.nbytes > LARGE_BYTES:
                    self._decoding = True
                    self._aside(partial(self._decode_aside, frame))
                    return
                self._receive(self._decode(frame))
        except Garbage as error:
            self._end(error)

    def _decode(self, frame: Frame) -> Any:
        message = self._messages.decode(frame)
        if self._prepare is not None:
            try:
                self._prepare(message)
            except Exception as error:  # whatever a message that is not ours may raise
                raise Garbage(str(error)) from error
        return message

    def _decode_aside(self, frame: Frame) -> None:
        """In another thread."""
        try:
            message = self._decode(frame)
        except Garbage as error:
            self._loop.call(self._decoded_to, error)
        else:
            self._loop.call(self._decoded_to, message)

    def _decoded_to(self, message: Any) -> None:
        self._decoding = False
        if self._over:
            return
        try:
            if isinstance(message, Garbage):
                raise message
            self._receive(message)
        except Garbage as error:
            self._end(error)
        self._go_on()

    def _watch(self, watching: bool) -> None:
        self._watching = watching
        if watching:
            self._loop.add_reader(self._messages.source(), self._readable)
        else:
            self._loop.remove_reader(self._messages.source())

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
        """End at once; what the worker has still sent is not received."""
        self._end(EOFError("closed"))

    def abandon(self) -> None:
        """Close the sockets, as the loop is closed and will not. Any thread."""
        self._over = True
        self._messages.close()
