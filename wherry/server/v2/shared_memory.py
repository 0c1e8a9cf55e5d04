"""How does a tensor come from, and go to, memory that a client on this machine shares with us?

A client registers a region (a POSIX shared memory key, a part of it) under a name; its requests
then name the region in place of data. Inputs are read where they lie, outputs are written there.

Only for clients that are trusted: a registered key is any object of this machine's shared memory
that the server's user may open, and a client that makes its object smaller while the server reads
it ends the server (the system sends SIGBUS). Hence off, unless the operator allows it.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from wherry.core.api import (
    AlreadyRegistered,
    Buffer,
    InvalidRequest,
    RegionNotFound,
    Tag,
    Unsupported,
    WherryError,
)

log = logging.getLogger("wherry")


#: Shared memory that other programs keep to themselves: Triton's and torch's worker processes,
#: the C library's semaphores, NCCL.
RESERVED: Final = ("triton_python_backend_shm", "torch_", "sem.", "nccl-")
#: Each holds a descriptor and a mapping.
MAX_REGIONS: Final = 1024
MAX_NAME_CHARS: Final = 255


class SharedRegion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A registered region: `byte_size` bytes of the object `key` from `offset` on."""

    name: str
    key: str
    offset: int
    byte_size: int


class Window:
    """The part of a region that one tensor has. Stays valid when the region is unregistered."""

    __slots__ = ("_map", "_start", "_stop", "_what")

    def __init__(self, map: mmap.mmap, start: int, stop: int, what: str) -> None:
        self._map = map
        self._start = start
        self._stop = stop
        self._what = what

    def __len__(self) -> int:
        return self._stop - self._start

    def read(self) -> memoryview:
        """The client's own memory, not to be written to. InvalidRequest if it is not there."""
        self._check()
        return memoryview(self._map)[self._start : self._stop].toreadonly()

    def write(self, data: Buffer) -> None:
        """Put `data` at the window's start; InvalidRequest if it does not fit."""
        view = memoryview(data)
        if len(view) > len(self):
            raise InvalidRequest(
                f"{self._what}: the tensor has {len(view)} bytes, shared_memory_byte_size is"
                f" {len(self)}",
                tag=Tag.INTERNAL,
            )
        self._check()
        self._map[self._start : self._start + len(view)] = view

    def _check(self) -> None:
        """Touching what is no longer there would end the process."""
        if self._map.size() < self._stop:
            raise InvalidRequest(
                f"{self._what}: the shared memory object is smaller than when it was registered"
            )


class SharedMemory:
    """The regions that the clients of one server have registered. Safe from any thread."""

    def __init__(self, *, allowed: bool = False) -> None:
        self.allowed = allowed
        self._regions: dict[str, tuple[SharedRegion, mmap.mmap]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<SharedMemory: {len(self._regions)} regions>"

    def register(self, name: str, key: str, byte_size: int, offset: int = 0) -> None:
        """Map the object `key`; its creator may unlink it from now on."""
        self._check_allowed(f"shared memory region '{name}'")
        if len(name) > MAX_NAME_CHARS:
            raise InvalidRequest(f"a region's name has at most {MAX_NAME_CHARS} characters")
        with self._lock:
            if name in self._regions:
                raise AlreadyRegistered(f"shared memory region '{name}' already in manager")
            if len(self._regions) >= MAX_REGIONS:
                raise InvalidRequest(
                    f"{MAX_REGIONS} shared memory regions are registered; unregister some first"
                )
            mapped = _map(name, key, byte_size, offset)
            self._regions[name] = (SharedRegion(name, key, offset, byte_size), mapped)

    def use(self, regions: Sequence[SharedRegion]) -> None:
        """Have these regions, as another process has registered them, and no others. What cannot be
        mapped here is logged and left out."""
        with self._lock:
            kept = {name: one for name, one in self._regions.items() if one[0] in regions}
            self._regions = kept
            for region in regions:
                if region.name in kept:
                    continue
                try:
                    mapped = _map(region.name, region.key, region.byte_size, region.offset)
                except WherryError as error:
                    log.warning("a region is not usable here", extra={"why": str(error)})
                else:
                    kept[region.name] = region, mapped

    def unregister(self, name: str | None = None) -> None:
        """Forget a region, or all; a name that is not there is not an error. Requests that use it
        go on: the memory is unmapped after the last one."""
        with self._lock:
            if name is None:
                self._regions.clear()
            else:
                self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[SharedRegion]:
        """The region of that name, or all; RegionNotFound if there is none."""
        with self._lock:
            if name is None:
                return [region for region, _ in self._regions.values()]
            if name not in self._regions:
                raise RegionNotFound(f"Unable to find system shared memory region: '{name}'")
            return [self._regions[name][0]]

    def window(self, name: str, offset: int, byte_size: int, what: str) -> Window:
        """Part of a region, from `offset` within it; `what` begins the errors ("input 'x'")."""
        self._check_allowed(what)
        with self._lock:
            found = self._regions.get(name)
        if found is None:
            raise RegionNotFound(f"{what}: Unable to find shared memory region: '{name}'")
        region, mapped = found
        ends = offset + byte_size
        if offset < 0 or byte_size < 0 or max(ends, offset + 1) > region.byte_size:
            wrong = "offset" if offset >= region.byte_size else "offset + byte size"
            raise InvalidRequest(
                f"{what}: Invalid {wrong} for shared memory region: '{name}'",
                more=f"; it has {region.byte_size} bytes, not {byte_size} from {offset} on",
            )
        start = region.offset + offset
        return Window(mapped, start, start + byte_size, what)

    def _check_allowed(self, what: str) -> None:
        if not self.allowed:
            raise Unsupported(
                f"{what}: shared memory is not allowed by this server; its operator may start it"
                " with --allow-client-shm"
            )


def _map(name: str, key: str, byte_size: int, offset: int) -> mmap.mmap:
    fd = _open(name, key)
    size = offset + byte_size
    try:
        if byte_size < 1 or offset < 0:
            raise InvalidRequest(
                f"shared memory region '{name}': byte_size must be at least 1 and offset at"
                f" least 0; they are {byte_size} and {offset}"
            )
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < size:
            raise InvalidRequest(
                f"shared memory region '{name}': object '{key}' has {status.st_size} bytes, but"
                f" offset and byte_size need {size}"
            )
        return mmap.mmap(fd, size)
    except WherryError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise _unable(name, key, getattr(error, "strerror", None) or str(error)) from None
    finally:
        os.close(fd)


def _open(name: str, key: str) -> int:
    plain = key.removeprefix("/")
    if not plain or "/" in plain or "\0" in plain or plain in (".", ".."):
        raise InvalidRequest(
            f"shared memory region '{name}': key '{key}' is not a name of a shared memory object",
            tag=Tag.INTERNAL,
        )
    if plain.startswith(RESERVED):
        raise InvalidRequest(f"shared memory region '{name}': key '{key}' is reserved")
    try:
        import _posixshmem  # type: ignore[import-not-found]  # what multiprocessing uses
    except ImportError:  # Windows
        raise Unsupported("shared memory by POSIX key is not there on this system") from None
    try:
        # Non-blocking: whatever lies under that name, opening it must not wait.
        fd: int = _posixshmem.shm_open(f"/{plain}", os.O_RDWR | os.O_NONBLOCK, mode=0)
    except (OSError, ValueError) as error:
        raise _unable(name, key, getattr(error, "strerror", None) or str(error)) from None
    return fd


def _unable(name: str, key: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unable to open shared memory region: '{name}'",
        tag=Tag.INTERNAL,
        more=f" (key '{key}'): {why.lower()}",
    )
