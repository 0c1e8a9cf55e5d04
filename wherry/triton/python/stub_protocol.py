"""How does a message to a Python model's process become a frame, and a frame of it a message?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol

from wherry.core.api import Garbage
from wherry.triton.python.stub import wire
from wherry.triton.python.stub.wire import Arena, Incoming, Outgoing, SlabViews

#: Outputs from this size on are handed out where they lie in the slab, so many at once; others
#: are copied: a view takes as long to make as a copy of so many bytes.
_LEAST_VIEW = 64 << 10
_MOST_VIEWS = 32


class StubMessage(Protocol):
    """A message to the process."""

    def build(self, out: Outgoing) -> list[Any]:
        """The message as a list that begins with its kind; its tensors are added to `out`. In any
        thread. What this raises the link is told as a refusal."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A message without tensors."""

    message: list[Any]

    def build(self, out: Outgoing) -> list[Any]:
        return list(self.message)


class StubMemory:
    """The slab: the first half is for what is sent to the process."""

    def __init__(self, file: int) -> None:
        self._memory: mmap | None = mmap(file, wire.SLAB_BYTES)
        self.arena = Arena(0, wire.SLAB_BYTES // 2)
        self.views = SlabViews(self._memory, least=_LEAST_VIEW, most=_MOST_VIEWS)

    def outgoing(self) -> Outgoing:
        """For the tensors of one message."""
        return Outgoing(self._memory, self.arena)

    def was_released(self, offsets: list[Any]) -> None:
        """The process has no use any more for the tensors at these offsets. TypeError or ValueError
        for what is no offset."""
        for offset in offsets:
            self.arena.release(int(offset))

    def close(self) -> None:
        """Let go of the memory, which goes with the last output in it that a caller holds."""
        self.views.close()
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError):
                memory.close()


@dataclass(frozen=True, slots=True)
class _TensorFile:
    """The memory file of a message."""

    fileno: int


class StubEncoder:
    """Makes frames of messages. The second element of each says which blocks of the slab the
    callers of this process have released. For one thread at a time."""

    def __init__(self, memory: StubMemory) -> None:
        self._memory = memory
        self.file: _TensorFile | None = None

    def frame(self, message: StubMessage, *, slab: bool) -> bytes:
        """The frame of a message, whose memory file is `file`. Raises what `build` raises, and
        ValueError if it is too large. Tensors have blocks of their own, whatever `slab`."""
        out = self._memory.outgoing()
        views = self._memory.views
        released: list[int] = []
        try:
            parts = message.build(out)
            released = views.take_released()
            parts.insert(1, released)
            frame = wire.framed(parts, out)
        except BaseException:
            views.put_back(released)
            out.give_up()
            raise
        if out.file is not None:
            self.file = _TensorFile(out.file)
        return frame


class StubDecoder:
    """Makes messages of the bodies of frames. `prepare(message, incoming)` does what takes long
    about one, maybe in another thread. For one thread at a time."""

    def __init__(self, views: SlabViews) -> None:
        self._views = views
        self.prepare: Callable[[list[Any], Incoming], list[Any]] | None = None

    def decode(self, body: memoryview, file: mmap | None = None) -> list[Any]:
        """The message in the body of a frame, whose memory file is `file`. Raises Garbage."""
        try:
            message, incoming = wire.read_body(body, file, self._views)
            return message if self.prepare is None else self.prepare(message, incoming)
        except Exception as error:  # the process may send anything
            raise Garbage(f"{type(error).__name__}: {error}") from error
