"""How is a unix socket's name taken, and given back only if it is still ours?"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path


class UnixName:
    """The name of one unix socket in the file system. Its methods block."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._inode: int | None = None

    def bind(self) -> socket.socket:
        """A socket of this name, which does not listen yet. OSError if a server listens there, or
        if what lies there is no socket."""
        _remove_stale(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(self._path))
            self._inode = self._path.stat().st_ino
        except BaseException:
            sock.close()
            raise
        return sock

    def remove(self) -> None:
        """Remove the name, unless a successor has taken it."""
        inode, self._inode = self._inode, None
        if inode is not None:
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == inode:
                    self._path.unlink()


def _remove_stale(path: Path) -> None:
    """Make way for a new socket, unless a process listens there or it is no socket at all."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "not a socket; choose another path", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Never block the loop: a listener with a full queue is a listener too.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another server listens on this unix socket", str(path))
