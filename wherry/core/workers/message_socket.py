"""How does one process send messages to the other, and receive them?

Through two unix sockets, one for each direction: the kernel wakes up the process that sleeps on a
socket also when what it sent there is read, so with one socket for both a worker would wake up
twice for each batch.
"""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import select
import socket
import termios
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from wherry.core.workers.encoding import (
    HAS_FILE,
    IS_GARBAGE,
    KEEPS_SLAB,
    Frame,
    FrameBuffer,
    Garbage,
    MessageDecoder,
    MessageEncoder,
    Salvage,
    flagged,
)
from wherry.core.workers.shared_memory import Region, Slab

_ONE_FILE = socket.CMSG_SPACE(array.array("i").itemsize)


class FrameEncoder(Protocol):
    """As `MessageEncoder`."""

    file: Any

    def frame(self, message: Any, *, slab: bool) -> bytes: ...


class FrameDecoder(Protocol):
    """As `MessageDecoder`."""

    def decode(self, body: memoryview, file: mmap.mmap | None = None) -> Any: ...


class FrameSocket:
    """One end of both sockets.

    With blocking sockets every call blocks. With others `write` and `read` never do, and `flush`
    and `receive` call `wait(file, events)` where they would.
    """

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        encoder: FrameEncoder,
        decoder: FrameDecoder,
        *,
        wait: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._encoder = encoder
        self._decoder = decoder
        #: May be replaced, for another thread.
        self.wait = wait
        self._buffer = FrameBuffer()
        #: Those that have come and are not decoded.
        self._frames: deque[Frame] = deque()
        #: May descriptors come? If none can, receiving is a third cheaper.
        self.takes_files = True
        #: Has `decode` stopped before the last of them?
        self.has_left = False
        #: For the frames that have one.
        self._files: deque[int] = deque()
        #: Frames that the next `write` sends.
        self._added: list[bytes] = []
        #: What a full socket has not taken yet, each part with the descriptor to send with it.
        self._unsent: deque[tuple[memoryview, int | None]] = deque()

    def source(self) -> int:
        """The descriptor to receive from."""
        return self._source.fileno()

    def target(self) -> int:
        """The descriptor to send to."""
        return self._target.fileno()

    def close(self) -> None:
        self._source.close()
        self._target.close()
        while self._files:
            os.close(self._files.popleft())
        while self._unsent:
            _, file = self._unsent.popleft()
            if file is not None:
                os.close(file)

    # Sending

    def add(self, message: Any, *, slab: bool = False) -> None:
        """Encode a message, for the next `write`. Raises UNSENDABLE.

        `slab`: its arrays may go to the slab, as the other process has read what was there.
        """
        encoder = self._encoder
        frame = encoder.frame(message, slab=slab)
        if encoder.file is None:
            self._added.append(frame)
        else:
            self._move_added()
            self._unsent.append((memoryview(frame), encoder.file.fileno))
            encoder.file = None

    def write(self) -> bool:
        """Send what was added. False: the socket is full, call it again when it can be written
        to. Raises OSError if the other process is gone."""
        unsent, added = self._unsent, self._added
        if added and not unsent:  # nearly always: all of it goes by one call
            data = added[0] if len(added) == 1 else b"".join(added)
            try:
                sent = self._target.send(data)
            except BlockingIOError:
                sent = 0
            added.clear()
            if sent < len(data):
                unsent.append((memoryview(data)[sent:], None))
                return False
            return True
        self._move_added()
        while unsent:
            part, file = unsent[0]
            try:
                if file is None:
                    sent = self._target.send(part)
                else:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))
                    sent = self._target.sendmsg([part], [rights])
                    os.close(file)
            except BlockingIOError:
                return False
            if sent == len(part):
                unsent.popleft()
            else:
                unsent[0] = part[sent:], None
        return True

    def flush(self) -> None:
        """Send what was added, and wait until the socket has taken it."""
        while not self.write():
            assert self.wait is not None
            self.wait(self.target(), select.POLLOUT)

    def send(self, message: Any, *, slab: bool = False) -> None:
        """Send a message. Raises UNSENDABLE, and OSError if the other process is gone."""
        self.add(message, slab=slab)
        self.flush()

    def was_read(self) -> bool:
        """Has the other process, which has ended, read all that was added? True where the system
        does not report it."""
        if self._added or self._unsent:
            return False
        # If a process closes a socket with unread data, the other end gets ECONNRESET.
        if self._target.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET:
            return False
        try:  # its own child may hold the socket open
            return not any(fcntl.ioctl(self._target, termios.TIOCOUTQ, bytes(4)))
        except OSError:
            return True

    def flag_last(self, flag: int) -> None:
        """Add a flag to the message that was added last, nothing of which is sent yet."""
        if self._added:
            self._added[-1] = flagged(self._added[-1], flag)
        else:
            frame, file = self._unsent[-1]
            self._unsent[-1] = memoryview(flagged(bytes(frame), flag)), file

    def _move_added(self) -> None:
        if self._added:
            self._unsent.append((memoryview(b"".join(self._added)), None))
            self._added.clear()

    # Receiving

    def read(self) -> bool:
        """Receive what is there, a buffer at most, once all that came before is decoded. False:
        there is nothing. Raises EOFError or OSError at the end of the other process."""
        receive = self._read_with_files if self.takes_files else self._source.recv_into
        try:
            self._frames += self._buffer.read(receive)
        except BlockingIOError:
            return False
        return True

    def _read_with_files(self, space: memoryview) -> int:
        size, ancillary, _, _ = self._source.recvmsg_into([space], _ONE_FILE)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
                self._files += files
        return size

    def decode(self, limit: int) -> list[Any]:
        """The messages that were read, up to the first that takes more than `limit` bytes to decode
        or cannot be decoded: then `has_left`."""
        frames, decode = self._frames, self._decoder.decode
        messages: list[Any] = []
        self.has_left = False
        try:
            while frames:
                body, shared_bytes, flags = frames[0]
                if len(body) + shared_bytes > limit:
                    self.has_left = True
                    break
                messages.append(self._decode_flagged(body, flags) if flags else decode(body))
                frames.popleft()
        except Garbage:
            self.has_left = True
        return messages

    def decode_next(self) -> Any:
        """The next message that was read. Raises Garbage."""
        body, _, flags = self._frames.popleft()
        return self._decode_flagged(body, flags) if flags else self._decoder.decode(body)

    def _decode_flagged(self, body: memoryview, flags: int) -> Any:
        if flags & IS_GARBAGE:
            raise Garbage(f"no message begins with {bytes(body)!r}")
        return self._decoder.decode(body, self._next_file() if flags & HAS_FILE else None)

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError or OSError if the other process is gone, and
        Garbage."""
        while not self._frames:
            if self.wait is not None:  # rather than to find nothing first
                self.wait(self.source(), select.POLLIN)
            self.read()
        return self.decode_next()

    def readable(self) -> bool:
        """Would `receive` find something? Does not block."""
        if self._frames:
            return True
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        return bool(poll.poll(0))

    def _next_file(self) -> mmap.mmap:
        if not self._files:
            raise Garbage("a message without its descriptor")
        file = self._files.popleft()
        try:
            return mmap.mmap(file, 0)
        except (OSError, ValueError) as error:
            raise Garbage(str(error)) from error
        finally:
            os.close(file)


class MessageSocket(FrameSocket):
    """One end of both sockets for msgpack messages; `message_type` is what arrives.

    Arrays that arrive in the slab are copied if `copies`. `salvage` makes a message of what cannot
    be decoded.
    """

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        message_type: Any,
        *,
        copies: bool,
        wait: Callable[[int, int], None] | None = None,
        salvage: Salvage | None = None,
    ) -> None:
        self._messages_out = MessageEncoder()
        self._messages_in = MessageDecoder(message_type, copies=copies, salvage=salvage)
        super().__init__(source, target, self._messages_out, self._messages_in, wait=wait)

    def use(self, slab: Slab, region: Region) -> None:
        """Arrays come out of this slab, and go into this region of it."""
        self._messages_in.memory, self._messages_out.region = slab.memory, region

    def answer(self) -> None:
        """Send what was added, the last of which answers a message whose arrays lay in the slab.
        Whatever the caller has of that message must be dropped before."""
        if self._messages_in.views and self._messages_in.keeps_slab():
            self.flag_last(KEEPS_SLAB)
        self.flush()

    def _decode_flagged(self, body: memoryview, flags: int) -> Any:
        if flags & KEEPS_SLAB:
            self._messages_out.slab_is_kept = True
        return super()._decode_flagged(body, flags)
