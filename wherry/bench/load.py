"""How is one plan carried out by several load processes, and how does Ctrl-C end it?"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wherry.bench import load_protocol
from wherry.bench.connection import Encoded, Wire
from wherry.bench.figures import Recorder
from wherry.bench.plan import Plan
from wherry.core.api import WherryError, for_children

#: Seconds between "all are ready" and the common beginning.
HEAD_START = 0.02


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
    """A load process, for its parent."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "wherry.bench.child"],
            env=for_children(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is ours; we tell it
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self.frames = load_protocol.Frames(load_protocol.FromChild)
        self.progress = load_protocol.LoadProgress()

    def say(self, message: load_protocol.ToChild) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone; reading from it says so
            self.input.write(load_protocol.frame(message))
            self.input.flush()

    def read(self) -> list[load_protocol.FromChild]:
        """The messages that have come in full. Blocks until bytes come."""
        data = os.read(self.output.fileno(), 2**20)
        if not data:
            code = self.process.wait()
            raise LoadFailure(f"a load process ended with code {code}")
        found: list[load_protocol.FromChild] = self.frames.feed(data)
        for message in found:
            if isinstance(message, load_protocol.ChildFailed):
                raise LoadFailure(f"a load process failed:\n{message.traceback}")
        return found

    def close(self, timeout: float) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


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
        # After an error nothing reads their messages: they might wait for that.
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
        tell: Callable[[load_protocol.LoadProgress], object] = lambda reported: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Raw:
        """Carry the plan out. `tell` is called a few times a second.

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
            child.say(
                load_protocol.RunLoad(
                    plan=share,
                    wire=wire,
                    requests=[*requests],
                    offset=offset,
                    phase=part / len(parts),
                )
            )
        children = [child for child, _ in parts]
        with selectors.DefaultSelector() as selector:
            for child in children:
                child.progress = load_protocol.LoadProgress()
                selector.register(child.output, selectors.EVENT_READ, child)
            return self._watch(children, selector, tell, interrupted)

    def _watch(
        self,
        children: list[Child],
        selector: selectors.BaseSelector,
        tell: Callable[[load_protocol.LoadProgress], object],
        interrupted: Callable[[], bool],
    ) -> Raw:
        ready, done, stopped = 0, list[load_protocol.Done](), False
        began_at = time.perf_counter()
        while len(done) < len(children):
            for key, _ in selector.select(0.1):
                for message in key.data.read():
                    match message:
                        case load_protocol.LoadReady():
                            ready += 1
                            if ready == len(children) and not stopped:
                                began_at = time.perf_counter() + HEAD_START
                                for child in children:
                                    child.say(load_protocol.Begin(began_at))
                        case load_protocol.LoadProgress():
                            key.data.progress = message
                        case load_protocol.Done():
                            done.append(message)
                            selector.unregister(key.fileobj)
            tell(_sum([child.progress for child in children]))
            if interrupted() and not stopped:
                stopped = True
                for child in children:
                    child.say(load_protocol.StopLoad("interrupted"))
        return _joined(done, began_at, stopped)


def _sum(parts: list[load_protocol.LoadProgress]) -> load_protocol.LoadProgress:
    return load_protocol.LoadProgress(
        answered=sum(part.answered for part in parts),
        failed=sum(part.failed for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        recent=[latency for part in parts for latency in part.recent],
    )


def _joined(done: list[load_protocol.Done], began_at: float, interrupted: bool) -> Raw:
    records = Recorder()
    samples: dict[str, str] = {}
    reasons = []
    for one in done:
        records.merge(Recorder.unpacked(one.records))
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
