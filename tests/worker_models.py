"""Models that worker processes load in tests: obedient ones, which do what a row tells them to."""

import ctypes
import faulthandler
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import wherry


def _wait(fifo: str) -> None:
    """Meet the test: opening a FIFO waits for the other side, reading it for its end."""
    Path(fifo).read_bytes()


def _until(path: str) -> None:
    """Meet the test at a file, which stays: say by another one that the row runs."""
    Path(f"{path}.runs").touch()
    while not os.path.exists(path):
        time.sleep(0.001)


def _raise(message: str) -> None:
    raise ValueError(message)


def _segfault(_: str) -> None:
    ctypes.string_at(0)


def _sockets() -> list[int]:
    return [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
        and os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    ]


def _write_garbage(text: str) -> None:
    for file in _sockets():
        os.write(file, text.encode() * 10)


def _close_sockets(fifo: str) -> None:
    for file in _sockets():
        os.close(file)
    _wait(fifo)


def _fork(fifo: str) -> None:
    """Leave a child behind, in a session of its own, that holds every descriptor, and die."""
    if os.fork() == 0:
        os.setsid()
        _wait(fifo)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _thread_exit(_: str) -> None:
    threading.Thread(target=os._exit, args=(7,)).start()
    threading.Event().wait()


def _log(message: str) -> None:
    logging.getLogger("shop.checkout").warning(message, extra={"basket": 3})
    try:
        raise ValueError("out of apples")
    except ValueError:
        logging.getLogger("shop.checkout").exception("sold out")
    logging.getLogger("shop.checkout").debug("nobody asked for this")


def _print(message: str) -> None:
    print(message)  # noqa: T201
    sys.stderr.write(message.upper() + "\n")
    os.write(1, b"from C without an end")


def _flood(lines: str) -> None:
    for number in range(int(lines)):
        sys.stdout.write(f"line {number} {'x' * 80}\n")


ORDERS: dict[str, Callable[[str], object]] = {
    "wait": _wait,
    "until": _until,
    "raise": _raise,
    "raise_json": lambda text: _raise(json.loads(text)),
    "segfault": _segfault,
    "abort": lambda _: os.abort(),
    "garbage": _write_garbage,
    "close": _close_sockets,
    "fork": _fork,
    "thread_exit": _thread_exit,
    "log": _log,
    "print": _print,
    "flood": _flood,
    "exit": lambda status: os._exit(int(status)),
    "sys_exit": lambda status: sys.exit(int(status)),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "quiet": lambda _: faulthandler.disable(),
}


@wherry.model(max_batch_size=8)
def obedient(text: list[str]) -> list[str]:
    for row in text:
        order, _, argument = row.partition(" ")
        if order in ORDERS:
            ORDERS[order](argument)
    return [f"{row} in {os.getpid()}" for row in text]


@wherry.model(max_batch_size=8)
def batches(text: list[str]) -> list[int]:
    """How many rows were in the batch."""
    obedient(text)
    return [len(text)] * len(text)


@wherry.model(max_batch_size=32)
def plus_one(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x + 1


@wherry.model(max_batch_size=8)
def doubling(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> list[float]:
    """Doubles its input in place, and then fails if that is too large."""
    x *= 2
    if x.max() > 100:
        raise ValueError("too large")
    return list(x[:, 0].tolist())


class Keeps(wherry.Model):
    """The difference of each row to the row before it, which the model keeps: a view of it."""

    max_batch_size = 1
    before: Any = 0.0

    def execute(self, x: Annotated[np.ndarray, wherry.FP32[-1]]) -> list[float]:
        difference = float((x[0] - self.before).max())
        self.before = x[0, :]
        return [difference]


class KeepsInStream(Keeps):
    def execute(  # type: ignore[override]
        self, x: Annotated[np.ndarray, wherry.FP32[-1]]
    ) -> Iterator[list[float]]:
        yield [float((x[0] - self.before).max())]
        self.before = x[:, ::2][0, :1]


@wherry.model(max_batch_size=32)
def same(x: Annotated[np.ndarray, wherry.FP32[-1]]) -> Annotated[np.ndarray, wherry.FP32[-1]]:
    return x


@wherry.model(max_batch_size=8)
def reverse(
    x: Annotated[list[np.ndarray], wherry.INT32[-1]],
) -> Annotated[list[np.ndarray], wherry.INT32[-1]]:
    return [row[::-1] for row in x]


@dataclass
class Point:
    x: int
    y: int = 0


@wherry.model(max_batch_size=8)
def mirror(point: list[Point]) -> list[Point]:
    return [Point(p.y, p.x) for p in point]


@wherry.model(max_batch_size=8)
def json_row(row: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are hard to send."""
    return [
        {"number": np.float32(0.5), "array": np.arange(3), "bad": {"set", object}}
        if r.get("bad")
        else {"number": np.float32(0.5), "array": np.arange(3), "row": r}
        for r in row
    ]


@wherry.model(max_batch_size=8)
async def later(text: list[str]) -> list[str]:
    return [row.upper() for row in text]


@wherry.model(max_batch_size=4)
def count(to: list[int]) -> Iterator[list[int]]:
    for number in range(max(to)):
        rows: list[Any] = [number if number < end else None for end in to]
        yield rows


@wherry.model(max_batch_size=1)
def endless(fifo: list[str]) -> Iterator[list[str]]:
    """Responses until the caller is gone; says so by meeting it at the FIFO."""
    try:
        while True:
            yield ["more"]
    finally:
        _wait(fifo[0])


@wherry.model(max_batch_size=1)
def big_stream(
    n: list[int],
) -> Iterator[Annotated[np.ndarray, wherry.FP32[100_000]]]:
    for number in range(n[0]):
        yield np.full((1, 100_000), number, np.float32)


@wherry.model(max_batch_size=4)
def says_twice(text: list[str]) -> Iterator[list[str]]:
    yield text
    yield text


@wherry.model(max_batch_size=4)
def small_files(
    file: list[Annotated[bytes, wherry.FileSpec(max_bytes=3)]],
) -> Iterator[list[int]]:
    yield [len(one) for one in file]


@wherry.model(max_batch_size=1)
def dies_in_stream(text: list[str]) -> Iterator[list[str]]:
    yield ["one"]
    obedient(text)


@wherry.model(max_batch_size=8)
def dies_once_in_stream(marker: list[str]) -> Iterator[list[str]]:
    """Its worker dies before the first response, or before the second, where the file is not
    there yet."""
    when, _, path = marker[0].partition(" ")
    for number in range(2):
        if str(number) == when and not os.path.exists(path):
            Path(path).touch()
            os._exit(3)
        yield [f"response {number}"] * len(marker)


class Loader(wherry.Model):
    """Says how its load goes, and that it was unloaded."""

    def __init__(self, order: str = "", log: str = "") -> None:
        self.order = order
        self.log = log

    def load(self, device: wherry.Device) -> None:
        obedient([self.order])
        self.where = f"{self.order}|{device}"

    def execute(self, text: list[str]) -> list[str]:
        obedient(text)
        return [self.where for _ in text]

    def unload(self) -> None:
        if self.log:
            Path(self.log).write_text("unloaded")


class Stubborn(wherry.Model):
    """Never finishes its unload."""

    def execute(self, text: list[str]) -> list[str]:
        return text

    def unload(self) -> None:
        threading.Event().wait()


class FailsToUnload(Loader):
    def unload(self) -> None:
        raise ValueError("still needed")


class SecondTimeUnlucky(wherry.Model):
    """Loads once; every worker after the first dies."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def load(self, device: wherry.Device) -> None:
        if self.marker.exists():
            os._exit(9)
        self.marker.touch()

    def execute(self, text: list[str]) -> list[str]:
        return obedient(text)


class Spelled(wherry.StepModel):
    """One letter of its text a step; for ever, once there is none left."""

    max_batch_size = 4

    def start(self, text: str) -> list[str]:
        return list(text)

    def step(self, active: list[list[str]]) -> list[wherry.Step[str]]:
        return [
            wherry.Step([letters.pop(0)], done=len(letters) == 0) if letters else wherry.Step()
            for letters in active
        ]

    def stop(self, state: list[str]) -> None:
        pass


class BreaksDeviceInSteps(Spelled):
    """After "!" every step fails."""

    is_broken = False

    def step(self, active: list[list[str]]) -> list[wherry.Step[str]]:
        self.is_broken |= any(letters[0] == "!" for letters in active)
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().step(active)


class BreaksDevice(wherry.Model):
    """From the row "assert" on every call fails, as on a GPU after a failed assertion."""

    def __init__(self) -> None:
        self.is_broken = False

    max_batch_size = 8

    def execute(self, text: list[str]) -> list[str]:
        self.is_broken |= "assert" in text
        if self.is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")
        return [f"{row} in {os.getpid()}" for row in text]


class StartsProcesses(wherry.Model):
    """Answers its process id; each process that it starts has this FIFO open."""

    def __init__(self, fifo: str) -> None:
        self.fifo = fifo

    def load(self, device: wherry.Device) -> None:
        self.file = os.open(self.fifo, os.O_WRONLY)
        self.start()

    def start(self) -> None:
        command = "trap '' TERM; sleep 1000 & sleep 1000"
        subprocess.Popen(["sh", "-c", command], pass_fds=[self.file])

    def execute(self, row: list[str]) -> list[int]:
        self.start()
        return [os.getpid() for _ in row]


class SharesMemory(wherry.Model):
    """Answers its process id and the name of a segment that it leaves open, as does its child."""

    def execute(self, row: list[str]) -> list[str]:
        segment = shared_memory.SharedMemory(create=True, size=16)
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=time.sleep, args=(1000,), daemon=True)
        child.start()
        self.kept = segment, child
        return [f"{segment.name} {os.getpid()}" for _ in row]
