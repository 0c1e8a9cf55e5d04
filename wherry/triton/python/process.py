"""How is the process of a Python model started, with which Python, how does it import the model's
file, and how are messages encoded as frames and decoded from them?
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol

from wherry.core.api import (
    ConfigError,
    FrameSocket,
    Garbage,
    LoadFailed,
    cache_folder,
    for_children,
    shortage,
    start_worker,
)
from wherry.triton.python.stub import wire
from wherry.triton.python.stub.wire import Arena, Incoming, Outgoing, SlabViews

#: Outputs of at least this size are views of the slab, up to this number at once; others are
#: copied: making a view takes as long as copying that many bytes.
_LEAST_VIEW = 64 << 10
_MOST_VIEWS = 32


class StubMessage(Protocol):
    def build(self, out: Outgoing) -> list[Any]:
        """The message as a list that begins with its kind; its tensors are added to `out`. In any
        thread. What this raises is reported to the link as a refusal."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
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
        """The process no longer uses the tensors at these offsets. TypeError or ValueError for what
        is not an offset."""
        for offset in offsets:
            self.arena.release(int(offset))

    def close(self) -> None:
        """Release the memory, which is freed with the last output in it that a caller holds."""
        self.views.close()
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError):
                memory.close()


@dataclass(frozen=True, slots=True)
class _TensorFile:
    fileno: int


class StubEncoder:
    """Makes frames of messages. The second element of each lists the blocks of the slab that the
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
    """Makes messages of the bodies of frames. `prepare(message, incoming)` does the slow part
    of decoding one, maybe in another thread. For one thread at a time."""

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


log = logging.getLogger("wherry")

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Interpreter:
    python: str
    environment: Mapping[str, str]


def interpreter(model: str, folder: str, execution_env_path: str) -> Interpreter:
    """The interpreter for a model in `folder`. ConfigError if there is none. Blocks: unpacking may
    take minutes."""
    if not execution_env_path:
        return Interpreter(sys.executable, for_children())
    where = execution_env_path.replace(_MODEL_DIRECTORY, folder)
    if not os.path.isabs(where):
        where = os.path.join(folder, where)
    if not os.path.exists(where):
        raise ConfigError(
            f"model {model!r}: EXECUTION_ENV_PATH {execution_env_path!r} is not there: put an"
            " environment's folder or its .tar.gz (conda-pack) there, or leave the parameter out to"
            " run the model with wherry's own Python"
        )
    if os.path.isfile(where):
        where = str(_unpacked(model, Path(where)))
    python = os.path.join(where, "bin", "python")
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"model {model!r}: EXECUTION_ENV_PATH {execution_env_path!r} must be an environment's"
            " folder (with bin/python in it) or its .tar.gz"
        )
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    }
    environment["VIRTUAL_ENV"] = where
    for name, folder in (("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")):
        own, others = os.path.join(where, folder), environment.get(name)
        environment[name] = os.pathsep.join([own, others]) if others else own
    return Interpreter(python, environment)


def _unpacked(model: str, archive: Path) -> Path:
    """The folder of the unpacked archive, in the user's cache, identified by the archive's path,
    size and time of change."""
    status = archive.stat()
    identity = f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    place = cache_folder() / "environments" / name
    if place.is_dir():
        return place
    # In Triton's words, which people look for in the log while this takes minutes.
    log.info("Extracting Python execution env", extra={"model": model, "archive": archive.name})
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="unpacking-") as unpacking:
        whole = Path(unpacking) / "environment"
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(whole, filter=_inside)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise ConfigError(
                f"model {model!r}: EXECUTION_ENV_PATH {archive.name!r} cannot be unpacked: {error}"
            ) from None
        try:
            whole.rename(place)
        except OSError:
            if not place.is_dir():  # else another process has unpacked it
                raise
    repair = place / "bin" / "conda-unpack"
    if repair.exists():  # its scripts contain the path where it was packed
        subprocess.run([place / "bin" / "python", repair], check=False, stdin=subprocess.DEVNULL)
    return place


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo:
    """Refuse a file that would leave the environment, in the words of Triton's library.

    Links may lead out of it, as those of conda environments do ("data" would refuse them), but
    nothing is written through them.
    """
    if member.name.startswith("/"):
        raise tarfile.TarError(f"Path is absolute: {member.name}")
    if ".." in member.name.split("/"):
        raise tarfile.TarError(f"Path contains '..': {member.name}")
    return tarfile.tar_filter(member, place)


_STUB = os.path.join(os.path.dirname(os.path.abspath(wire.__file__)), "__main__.py")


class PythonProcess:
    """The process of a Python model, its sockets and the memory that it shares with this one.

    An instance takes all three; until then `close` ends it. Raises OSError if the server lacks
    memory, file descriptors or processes.
    """

    def __init__(self, runs: Interpreter, model: str, instance: str) -> None:
        file = wire.memory_file("wherry-slab", wire.SLAB_BYTES)
        try:
            self.memory = StubMemory(file)
            try:
                self.process, source, target = start_worker(
                    [runs.python, _STUB], runs.environment, model, instance, file
                )
            except BaseException:
                self.memory.close()
                raise
        finally:
            os.close(file)
        self.decoder = StubDecoder(self.memory.views)
        encoder = StubEncoder(self.memory)
        self.sockets = FrameSocket(
            source, target, encoder, self.decoder, wait=self.process.wait_for
        )

    def open(self, start: dict[str, Any]) -> str | None:
        """Make it import the model's file. Returns the completed configuration, if `start` requests
        it. Blocks. Raises LoadFailed."""
        try:
            self.sockets.send(Plain(["start", start]))
            message = self.sockets.receive()
            if message[0] == "failed":
                raise load_failed(message)
            if message[0] != "opened":
                raise Garbage(f"{message[0]!r} instead of an opened model")
        except (EOFError, OSError, Garbage) as error:
            if shortage(error):  # of the server: nothing is wrong with the process
                raise
            how, _ = self.process.end(error if isinstance(error, Garbage) else EOFError())
            text = f"its process {how} while it imported the model; what it wrote is in the log"
            raise LoadFailed(text) from None
        completed: str | None = message[2]
        return completed

    def close(self) -> None:
        """End it without finalize(): it was not initialized."""
        self.process.kill()
        self.process.wait()
        self.sockets.close()
        self.process.close()
        self.memory.close()


def load_failed(message: Sequence[Any]) -> LoadFailed:
    _, _, kind, text, traceback = message
    if kind == "ModuleNotFoundError":
        text += (
            "; install it for the Python that wherry runs with, or give the model a Python of its"
            " own (EXECUTION_ENV_PATH)"
        )
    failed = LoadFailed(f"{kind}: {text}")
    failed.add_note(traceback)
    return failed
