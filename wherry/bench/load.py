"""How is one plan carried out by several load processes, which messages do they and the command
exchange, and how does Ctrl-C end it?
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from typing import Any

import msgspec

from wherry.bench.connection import Encoded, Wire
from wherry.bench.figures import Recorder
from wherry.bench.plan import Plan
from wherry.core.api import WherryError, for_children

#: Seconds between "all are ready" and the common beginning.
HEAD_START = 0.02


class RunLoad(msgspec.Struct, kw_only=True):
    """Prepare this run. The answer is `LoadReady`."""

    plan: Plan
    wire: Wire
    requests: list[Encoded]
    offset: int
    phase: float


class Begin(msgspec.Struct):
    """Begin at this moment of the machine's monotonic clock."""

    at: float


class StopLoad(msgspec.Struct):
    """End now. The answer is `Done`."""


class LoadReady(msgspec.Struct):
    pass


class LoadProgress(msgspec.Struct, kw_only=True):
    """How far a run is. `recent`: some of the latencies (seconds) since the report before."""

    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    recent: list[float] = []


class Done(msgspec.Struct, kw_only=True):
    """The run is over: its time was up, or after a `StopLoad`."""

    records: Recorder
    samples: dict[str, str]
    stopped_because: str
    #: Of the process, while it ran.
    cpu_seconds: float
    seconds: float


class ChildFailed(msgspec.Struct):
    """The load process has raised: a mistake in wherry."""

    traceback: str


ToChild = RunLoad | Begin | StopLoad
FromChild = LoadReady | LoadProgress | Done | ChildFailed


class LoadFailure(WherryError):
    """Raised if a load process ended before it was done; the message holds its error."""


@dataclass(slots=True)
class Raw:
    """The raw result of a run: a row for each request, and the cost to this machine."""

    records: Recorder
    began_at: float
    ended_at: float
    samples: dict[str, str] = field(default_factory=dict)
    stopped_because: str = ""
    #: CPU seconds and wall seconds of each load process.
    client: list[tuple[float, float]] = field(default_factory=list)
    interrupted: bool = False


class Child:
    def __init__(self) -> None:
        self.connection, its = Pipe()
        with its:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wherry.bench.child", str(its.fileno())],
                env=for_children(),
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                process_group=0,  # Ctrl-C is ours; we send it StopLoad
            )
        self.progress = LoadProgress()

    def send(self, message: ToChild) -> None:
        with contextlib.suppress(OSError):  # it is gone; the next read raises
            self.connection.send(message)

    def read(self) -> FromChild:
        """The next message. Blocks until it has come in full."""
        try:
            message: FromChild = self.connection.recv()
        except (EOFError, OSError):
            raise LoadFailure(f"a load process ended with code {self.process.wait()}") from None
        if isinstance(message, ChildFailed):
            raise LoadFailure(f"a load process failed:\n{message.traceback}")
        return message

    def close(self, timeout: float) -> None:
        self.connection.close()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LoadProcesses:
    """A number of load processes, used for one run after the other.

    with LoadProcesses(2) as load:
        raw = load.run(plan, wire, requests)
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._children: list[Child] = []

    def __enter__(self) -> LoadProcesses:
        try:
            for _ in range(self.count):
                self._children.append(Child())
        except BaseException:
            self._close(0.0)
            raise
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        # After an error nothing reads their messages: they might wait for a reader.
        self._close(2.0 if kind is None else 0.0)

    def _close(self, timeout: float) -> None:
        for child in self._children:
            child.close(timeout)
        self._children.clear()

    def run(
        self,
        plan: Plan,
        wire: Wire,
        requests: Sequence[Encoded],
        *,
        on_progress: Callable[[LoadProgress], object] = lambda progress: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Raw:
        """Carry the plan out. `on_progress` is called a few times a second.

        When `interrupted()` is true it ends at once, with what there is.
        """
        parts = [
            (child, share)
            for part, child in enumerate(self._children)
            if (share := plan.share(part, len(self._children))) is not None
        ]
        step = max(1, len(requests) // max(1, len(parts)))
        for part, (child, share) in enumerate(parts):
            offset = part * step % max(1, len(requests))
            child.send(
                RunLoad(
                    plan=share,
                    wire=wire,
                    requests=[*requests],
                    offset=offset,
                    phase=part / len(parts),
                )
            )
        return _watch([child for child, _ in parts], on_progress, interrupted)


def _watch(
    children: list[Child],
    on_progress: Callable[[LoadProgress], object],
    interrupted: Callable[[], bool],
) -> Raw:
    ready, done, stopped = 0, list[Done](), False
    began_at = time.perf_counter()
    running: dict[Any, Child] = {child.connection: child for child in children}
    for child in children:
        child.progress = LoadProgress()
    while running:
        for connection in wait([*running], 0.1):
            match message := running[connection].read():
                case LoadReady():
                    ready += 1
                    if ready == len(children) and not stopped:
                        began_at = time.perf_counter() + HEAD_START
                        for child in children:
                            child.send(Begin(began_at))
                case LoadProgress():
                    running[connection].progress = message
                case Done():
                    done.append(message)
                    del running[connection]
        on_progress(_sum([child.progress for child in children]))
        if interrupted() and not stopped:
            stopped = True
            for child in children:
                child.send(StopLoad())
    return _joined(done, began_at, stopped)


def _sum(parts: list[LoadProgress]) -> LoadProgress:
    return LoadProgress(
        answered=sum(part.answered for part in parts),
        failed=sum(part.failed for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        recent=[latency for part in parts for latency in part.recent],
    )


def _joined(done: list[Done], began_at: float, interrupted: bool) -> Raw:
    records = Recorder()
    samples: dict[str, str] = {}
    reasons = []
    for one in done:
        records.merge(one.records)
        samples = {**one.samples, **samples}
        reasons.append(one.stopped_because)
    ended_at = began_at + max((one.seconds for one in done), default=0.0)
    return Raw(
        records,
        began_at,
        ended_at,
        samples,
        next(filter(None, reasons), ""),
        [(one.cpu_seconds, one.seconds) for one in done],
        interrupted,
    )
