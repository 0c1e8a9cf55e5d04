"""Which Python functions of wherry does a request go through?"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import wherry
from benchmarks.way.callers import Ask, Kind, in_this_process
from wherry.core.models.model import Model


class Call(NamedTuple):
    thread: str
    depth: int
    #: Of wherry's own files, their path in the package; "C" for a function of C.
    file: str
    function: str

    @property
    def is_wherrys(self) -> bool:
        return self.file.endswith(".py")


class Recorder:
    """Keeps the calls of all threads that are started under it, while `on`."""

    def __init__(self, c_calls: bool = False) -> None:
        self.on = False
        self.calls: list[Call] = []
        self._c_calls = c_calls
        self._depths: dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Be a profile function, as `sys.setprofile` takes it."""
        if not self.on:
            return
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        if event == "call":
            self._depths[thread] = depth + 1
            code = frame.f_code
            _, inside, file = code.co_filename.rpartition("/wherry/")
            if inside:
                self._keep(depth, file, code.co_qualname)
        elif event == "return":
            self._depths[thread] = max(0, depth - 1)
        elif event == "c_call" and self._c_calls:
            self._keep(depth, "C", getattr(argument, "__qualname__", str(argument)))

    def _keep(self, depth: int, file: str, function: str) -> None:
        self.calls.append(Call(threading.current_thread().name, depth, file, function))


@contextmanager
def recorded(kind: Kind, model: Model, recorder: Recorder) -> Iterator[Ask]:
    """`in_this_process`, all of whose threads and calls the recorder sees; warmed up."""
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        with in_this_process(kind, model) as ask:
            for _ in range(50):
                ask()
            yield ask
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


@wherry.model(max_batch_size=1)
def single(text: list[str]) -> list[str]:
    return text


@wherry.model
def whole(messages: Sequence[dict[str, Any]]) -> str:
    return str(messages[-1]["content"])


@wherry.model
def parted(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield from (messages[-1]["role"], messages[-1]["content"])


_in_worker = Recorder()
#: A call as `traced` answers it, whatever the answer is encoded as.
TOLD = re.compile(rb"(\d+) ([\w/]+\.py) ([\w.<>]+)")


@wherry.model(max_batch_size=1, isolation="process")
def traced(text: list[str]) -> list[str]:
    """Answer with the calls in the worker since the answer before."""
    calls, _in_worker.calls = _in_worker.calls, []
    _in_worker.on = True
    sys.setprofile(_in_worker)
    return ["\n".join(f"{call.depth} {call.file} {call.function}" for call in calls)]


def worker_calls(answer: bytes) -> list[Call]:
    """What an answer of `traced` tells."""
    return [
        Call("worker", int(depth), file.decode(), function.decode())
        for depth, file, function in TOLD.findall(answer)
    ]
