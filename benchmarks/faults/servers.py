"""Which servers are harmed, and what is left of them at the end?"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
from contextlib import suppress
from pathlib import Path

from benchmarks.harness import ROOT, memory_mb
from wherry.testing import ServerProcess

MODELS = str(ROOT / "benchmarks" / "faults" / "models.py")
#: In the environment of every process of a run, by which those that are left over are found.
MARK = "FAULTS_MARK"

_MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

runs = os.open(os.environ["FAULTS_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy()
            os.write(runs, "".join(f"{one}\\n" for one in number.ravel()).encode())
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", number)]))
        return answers
"""
_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "NUMBER" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "ANSWER" data_type: TYPE_INT64 dims: [ 1 ] }
dynamic_batching { }
"""


def repository(folder: Path) -> Path:
    """A repository with the model that is loaded anew while it is called."""
    version = folder / "repository" / "reloaded" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_MODEL)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    return folder / "repository"


class Starter:
    """Starts the servers of one run, with the same token, log of runs, and mark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.mark = secrets.token_hex(8)
        self._models = [MODELS, str(repository(folder))]

    def runs(self, name: str) -> Path:
        return self._folder / f"runs-{name}"

    def _start(self, name: str, *arguments: str) -> ServerProcess:
        env = {
            MARK: self.mark,
            "FAULTS_RUNS": str(self.runs(name)),
        }
        return ServerProcess(*arguments, env=env, ready_timeout=90.0).start()

    def fronts(self, name: str) -> ServerProcess:
        flags: tuple[str, ...] = ("--fronts", "2", "--grpc-port", "0")
        flags += ("--model-control-mode", "explicit", "--load-model", "reloaded")
        return self._start(name, *self._models, *flags)

    def left_over(self) -> list[str]:
        """The processes of this run that live."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for pid, folder in _processes():
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(f"{pid} {_command(folder)[:120]}")
        return found


def logged(server: ServerProcess, name: str) -> str:
    """The value of a field of its log, such as its address for gRPC."""
    found = re.search(rf"\b{name}=(\S+)", server.log)
    assert found is not None, server.log
    return found[1]


def fronts_of(pid: int) -> list[int]:
    return _children(pid, "wherry.server.front")


def workers_of(pid: int) -> list[int]:
    return _children(pid, "wherry.core.instances.worker")


def _processes() -> list[tuple[int, Path]]:
    return [(int(folder.name), folder) for folder in Path("/proc").glob("[0-9]*")]


def _children(pid: int, module: str) -> list[int]:
    """The children of a process that run this module."""
    found = []
    for child, folder in _processes():
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and module in _command(folder).split():
                found.append(child)
    return found


def _command(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def figures(pid: int) -> tuple[int, float]:
    """Open descriptors and MiB of memory."""
    return len(os.listdir(f"/proc/{pid}/fd")), memory_mb(pid)


def kill(pid: int) -> bool:
    """False if it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


async def ended(server: ServerProcess) -> int:
    return await asyncio.to_thread(server.process.wait)


def end(server: ServerProcess) -> None:
    """End it in whatever state it is, and give its log back."""
    if server.process.poll() is None:
        server.send(signal.SIGCONT)
    with suppress(RuntimeError):
        server.stop()
