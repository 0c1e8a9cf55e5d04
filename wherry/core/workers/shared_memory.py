"""Which memory do this process and a worker share, and what is written where?

A slab is mapped by both: the parent writes inputs into its first half, the worker outputs into its
second. Each half is filled from its start for each batch, so only one batch at a time uses it.
What does not fit travels in a memory file of its own, which goes with its last array.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from wherry.core.values.request import Array

#: Virtual size of a slab; only what was written to takes memory.
SLAB_BYTES = 64 << 20
#: Arrays begin at multiples of this: a cache line, and what vector instructions need.
ALIGNMENT = 64


class Slab:
    def __init__(self, file: int, size: int = SLAB_BYTES) -> None:
        self.memory = mmap.mmap(file, size)
        half = size // 2
        self.inputs = Region(self.memory, 0, half)
        self.outputs = Region(self.memory, half, size)

    @classmethod
    def open(cls, file: int) -> Slab:
        """The slab behind a descriptor that came from the parent."""
        return cls(file, os.fstat(file).st_size)

    def close(self) -> None:
        # A traceback, or a model, may still hold an array in here: then it goes with that.
        with contextlib.suppress(BufferError):
            self.memory.close()


class Region:
    """A part of a slab, filled from its start."""

    def __init__(self, memory: mmap.mmap, start: int, stop: int) -> None:
        self.memory = memory
        self._start = self._next = start
        self._stop = stop

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        whole: Array = np.frombuffer(self.memory, np.uint8)
        return int(whole.ctypes.data) + self._start

    @property
    def size(self) -> int:
        return self._stop - self._start

    def clear(self) -> None:
        self._next = self._start

    def take(self, size: int) -> int | None:
        """The offset of `size` free bytes; None: they do not fit."""
        offset = self._next
        if offset + size > self._stop:
            return None
        self._next = offset + -(-size // ALIGNMENT) * ALIGNMENT
        return offset

    def write(self, parts: Sequence[Array], shape: tuple[int, ...], offset: int) -> None:
        """Write arrays one after the other, as one of this shape, at an offset from `take`."""
        place: Array = np.frombuffer(self.memory, parts[0].dtype, math.prod(shape), offset)
        place = place.reshape(shape)
        if len(parts) == 1:
            place[...] = parts[0]
            return
        row = 0
        for part in parts:
            place[row : row + len(part)] = part
            row += len(part)


class ArrayFile:
    """A memory file for the arrays of one message."""

    def __init__(self) -> None:
        self.fileno = memory_file("wherry-arrays")
        self._size = 0

    def append(self, parts: Sequence[Array]) -> int:
        """Write arrays one after the other. Returns their offset."""
        offset = at = self._size
        for part in parts:
            flat: Any = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            with memoryview(flat) as data:
                written = 0
                while written < len(data):
                    written += os.pwrite(self.fileno, data[written:], at + written)
                at += written
        self._size = -(-at // ALIGNMENT) * ALIGNMENT
        return offset

    def close(self) -> None:
        os.close(self.fileno)


def memory_file(name: str, size: int = 0) -> int:
    """A descriptor of memory without a name in any file system: it goes with its last user."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    if size:
        os.ftruncate(file, size)
    return file
