"""A model repository in a zip file: `wherry serve zip:///srv/models.zip`."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from wherry.triton.api import is_name


class ZipSource:
    """Unpacks a model when it is looked at, and again what has changed. Any thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder = tempfile.mkdtemp(prefix="wherry-zip-")
        self._lock = threading.Lock()
        #: The checksums of the files that were unpacked.
        self._unpacked: dict[str, int] = {}

    def list(self) -> None:
        with self._opened() as file:
            names = {name.partition("/")[0] for name in file.namelist() if "/" in name}
            found = set(filter(is_name, names))
            for name in found:
                os.makedirs(os.path.join(self.folder, name), exist_ok=True)
            for name in set(os.listdir(self.folder)) - found:
                self._forget(name)

    def copy(self, name: str) -> None:
        if not is_name(name):
            return
        with self._opened() as file:
            there = {
                one.filename: one.CRC
                for one in file.infolist()
                if one.filename.startswith(f"{name}/") and not one.is_dir()
            }
            for member, checksum in there.items():
                if self._unpacked.get(member) != checksum:
                    self._unpack(file, member)
                    self._unpacked[member] = checksum
            for member in [m for m in self._unpacked if m.startswith(f"{name}/")]:
                if member not in there:
                    del self._unpacked[member]
                    os.unlink(os.path.join(self.folder, member))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _opened(self) -> Iterator[ZipFile]:
        try:
            with self._lock, ZipFile(self.url.partition("://")[2]) as file:
                yield file
        except BadZipFile as error:
            raise OSError(str(error)) from error

    def _unpack(self, file: ZipFile, member: str) -> None:
        """Beside its place and then into it: a model that runs keeps the file that it has open."""
        target = Path(self.folder, member)
        if ".." in target.parts:
            raise OSError(f"{member} leaves the repository")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        part.write_bytes(file.read(member))
        part.replace(target)

    def _forget(self, name: str) -> None:
        shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
        self._unpacked = {
            m: crc for m, crc in self._unpacked.items() if not m.startswith(f"{name}/")
        }
