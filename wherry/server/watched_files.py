"""Which files that a server has read have changed, and are read again?"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Final

from wherry.core.api import ConfigError
from wherry.server.http.listener import tls_context
from wherry.server.options import TlsFiles

log = logging.getLogger("wherry")

#: Seconds between two looks at the files.
INTERVAL: Final = 1.0

_Signature = list[tuple[int, ...] | None]


class WatchedFiles:
    """Reads files now, and again when one of them has changed, in a thread of its own.

    What cannot be read then changes nothing, and is logged at `level` if it is still so at the next
    look: files that belong together are not written at once.
    """

    def __init__(self) -> None:
        self.level = logging.ERROR
        self._all: dict[tuple[str, ...], _Files] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self, paths: Sequence[str], read: Callable[[], None]) -> None:
        """Call `read()` now, and again after each change. Raises the ConfigError of the first."""
        files = self._all.setdefault(tuple(paths), _Files(paths))
        read()
        files.readers.append(read)

    def start(self) -> None:
        if self._all:
            self._thread = threading.Thread(target=self._run, name="wherry-files", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Read what has changed since it was read."""
        for files in self._all.values():
            files.look(self.level)

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            self.look()


class _Files:
    """Files that are read together, as they were when they were read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self.readers: list[Callable[[], None]] = []
        self._read = _signature(paths)
        self._failed: _Signature | None = None

    def look(self, level: int) -> None:
        if (now := _signature(self._paths)) == self._read:
            return
        fields = {"file": ", ".join(self._paths)}
        try:
            for read in self.readers:
                read()
        except ConfigError as error:
            if now == self._failed:
                self._read = now
                log.log(level, "changed file is not used", extra={**fields, "why": str(error)})
            self._failed = now
            return
        self._read = now
        log.log(min(level, logging.INFO), "file read again", extra=fields)


def _signature(paths: Sequence[str]) -> _Signature:
    found: _Signature = []
    for path in paths:
        try:
            of = os.stat(path)
            found.append((of.st_mtime_ns, of.st_ctime_ns, of.st_size, of.st_ino))
        except OSError:
            found.append(None)
    return found


def watched_context(
    watched: WatchedFiles, files: TlsFiles, alpn: str = "http/1.1"
) -> ssl.SSLContext:
    """TLS for a listener, whose handshakes are with the files as they are by then. ConfigError."""
    now: list[ssl.SSLContext] = []

    def read() -> None:
        now[:] = [_context(files, alpn)]

    def choose(handshake: ssl.SSLObject, _: str, context: ssl.SSLContext) -> None:
        if context is not now[0]:
            handshake.context = now[0]

    watched.read([file for file in files if file is not None], read)
    # A context of its own for each reading: one into which another certificate is loaded keeps the
    # one before if its key is of another kind, and half of it if the key does not fit.
    now[0].sni_callback = choose
    return now[0]


def _context(files: TlsFiles, alpn: str) -> ssl.SSLContext:
    certfile, keyfile, client_ca = files
    assert certfile is not None
    try:
        return tls_context(certfile, keyfile, client_ca, alpn=alpn)
    except OSError as error:  # the error of a missing or malformed file does not name it
        named = ", ".join(file for file in files if file is not None)
        raise ConfigError(f"TLS from {named}: {error.strerror or error}") from None
