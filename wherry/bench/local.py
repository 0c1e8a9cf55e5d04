"""How is the same load put on models in this process, from threads and without sockets?

A caller is a thread, as it would be in a program that uses wherry; an open load has as many
threads as it needs, up to the plan's connections. `Offline` has no callers, no batcher
and no server: it measures the model's own code on ready batches, over batch sizes and lengths,
which is the limit for a server with one such instance.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import msgspec

from wherry.bench import inputs
from wherry.bench.answers import AnswerReader
from wherry.bench.figures import OK, Recorder
from wherry.bench.inputs import Row, columns_of
from wherry.bench.load import Raw
from wherry.bench.load_protocol import LoadProgress
from wherry.bench.observe import Observer
from wherry.bench.plan import Closed, Plan, joins, moments, thinks
from wherry.bench.report import TargetFacts
from wherry.bench.targets import Sending, rows_for
from wherry.core.api import (
    Columns,
    ConfigError,
    DeadlineExceeded,
    Device,
    Executable,
    Model,
    ModelConfig,
    ModelDescription,
    Runtime,
    WherryError,
    by_place,
    concatenate,
    describe,
    gather_rows,
)
from wherry.server.api import model_config, statistics

#: Calls the model; gives the pieces of a stream, and None for a whole answer.
Call = Callable[[], AnswerReader | None]


class Local:
    """A model of a Runtime in this process. The runtime stays its maker's to close."""

    def __init__(self, runtime: Runtime, sending: Sending) -> None:
        names = sorted({loaded.name for loaded in runtime.models()})
        if sending.model is None and len(names) != 1:
            raise ConfigError(f"say which --model is meant; there are: {', '.join(names)}")
        self._runtime = runtime
        name, _, version = (sending.model or names[0]).partition(":")
        self._loaded = runtime.model(name, version or None)
        if self._loaded is not runtime.model(name):
            raise ConfigError(f"--local calls the highest version of {name!r}, not {version}")
        self._model: ModelDescription = describe(model_config(self._loaded))
        examples = [dict(row) for row in self._loaded.config.examples]
        self._rows, source = rows_for(self._model, sending, lambda: examples)
        self.streams = self._loaded.signature.streams
        self.facts = TargetFacts(
            protocol="local", url="in this process", model=self._loaded.name, inputs=source
        )

    def observer(self) -> Observer:
        return Observer(
            statistics=lambda: msgspec.to_builtins(statistics(self._loaded)),
            queued=lambda: float(self._loaded.runner.queued_requests),
        )

    def run(
        self,
        plan: Plan,
        rows: int,
        tell: Callable[[LoadProgress], object],
        interrupted: Callable[[], bool],
    ) -> Raw:
        """Carry the plan out. A call that does not end in time stays behind in its thread."""
        calls = [self._call(batch) for batch in inputs.batches(self._rows, rows)]
        run = _Run(plan, calls, rows)
        cpu = time.process_time()
        began = time.perf_counter()
        run.start()
        stopped = False
        while not run.over.wait(0.1):
            stopped = stopped or interrupted()
            if stopped or run.out_of_time():
                break
            tell(run.progress())
        run.stop.set()
        records = run.finish(interrupted=stopped)
        ended = time.perf_counter()
        used = (time.process_time() - cpu, ended - began)
        # The models' CPU time is in it, so it says nothing of the client alone.
        return Raw(records, run.began_at, ended, run.samples, "", [], stopped, process=used)

    def _call(self, batch: list[inputs.Row]) -> Call:
        runtime, name = self._runtime, self._loaded.name
        if self.streams:
            if len(batch) > 1:
                raise ConfigError(f"{name!r} streams: it takes one row a request, not {len(batch)}")
            args, named = by_place(self._model, batch[0])
            return lambda: _streamed(runtime.stream(name, *args, **named))
        if len(batch) == 1:
            args, named = by_place(self._model, batch[0])
            return lambda: _answered(runtime.infer(name, *args, **named))
        columns: dict[str, Any] = columns_of(batch)
        return lambda: _answered(runtime.infer_batch(name, **columns))


def _answered(_: Any) -> None:
    """A whole answer has no first piece."""


def _streamed(responses: Iterator[Any]) -> AnswerReader:
    answer = AnswerReader()
    for _ in responses:
        answer.piece(time.perf_counter())
    return answer


@dataclass(slots=True)
class _Thread:
    """A caller's thread, its records, and when its present call began."""

    recorder: Recorder = field(default_factory=Recorder)
    busy_since: float | None = None
    thread: threading.Thread | None = None


class _Run:
    def __init__(self, plan: Plan, calls: list[Call], rows: int) -> None:
        self.plan = plan
        self.stop = threading.Event()
        self.over = threading.Event()
        self.samples: dict[str, str] = {}
        self.began_at = 0.0
        self._rows = rows
        self._calls = itertools.cycle(calls)
        self._lock = threading.Lock()
        self._left = plan.requests if plan.requests is not None else float("inf")
        self._threads: list[_Thread] = []
        self._alive = 0

    def start(self) -> None:
        load = self.plan.load
        if isinstance(load, Closed):
            count = load.callers
        else:
            # A thread costs little, but not nothing: what a rate can need at once.
            count = min(self.plan.connections, 256)
            self._moments = moments(load, seed=self.plan.seed)
        self._threads = [_Thread() for _ in range(count)]
        self._alive = count
        ready = threading.Barrier(count + 1)
        for number, thread in enumerate(self._threads):
            thread.thread = threading.Thread(
                target=self._live, args=(thread, number, ready), name=f"caller-{number}",
                daemon=True,
            )  # fmt: skip
            thread.thread.start()
        self.began_at = time.perf_counter() + 0.005
        ready.wait()

    def out_of_time(self) -> bool:
        """The load has ended, and the last call has had its time."""
        if self.plan.duration is None:
            return False
        return time.perf_counter() > self.began_at + self.plan.duration + self.plan.timeout

    def progress(self) -> LoadProgress:
        progress = LoadProgress()
        for thread in self._threads:
            progress.answered += len(thread.recorder)
            progress.failed += thread.recorder.failures
            progress.in_flight += thread.busy_since is not None
            progress.recent += thread.recorder.latencies(max(0, len(thread.recorder) - 10), 10)
        return progress

    def finish(self, *, interrupted: bool) -> Recorder:
        """The records of all threads; what still runs is a timeout, or nothing if interrupted."""
        until = time.perf_counter() + (1.0 if interrupted else 0.1)
        records = Recorder()
        for thread in self._threads:
            assert thread.thread is not None
            thread.thread.join(max(0.0, until - time.perf_counter()))
            since = thread.busy_since
            records.merge(thread.recorder)
            if thread.thread.is_alive() and since is not None and not interrupted:
                now = time.perf_counter()
                records.add(since, since, now, "timeout", self._rows)
        return records

    def _live(self, own: _Thread, number: int, ready: threading.Barrier) -> None:
        ready.wait()
        load = self.plan.load
        try:
            if isinstance(load, Closed):
                self._as_caller(own, load, number)
            else:
                self._as_server_of_moments(own)
        finally:
            with self._lock:
                self._alive -= 1
                if not self._alive:
                    self.over.set()

    def _as_caller(self, own: _Thread, load: Closed, number: int) -> None:
        self._wait(self.began_at + joins(load)[number])
        pauses = thinks(load, seed=self.plan.seed + number) if load.think else None
        loops = load.loops if load.loops is not None else float("inf")
        while loops > 0 and (call := self._next_call()) is not None:
            loops -= 1
            self._do(own, call, time.perf_counter())
            if pauses is not None:
                self._wait(time.perf_counter() + next(pauses))

    def _as_server_of_moments(self, own: _Thread) -> None:
        while True:
            with self._lock:
                moment = next(self._moments, None)
            if moment is None or (self.plan.duration or float("inf")) <= moment:
                return
            intended = self.began_at + moment
            self._wait(intended)
            if self.stop.is_set() or (call := self._next_call(intended)) is None:
                return
            self._do(own, call, intended)

    def _next_call(self, moment: float | None = None) -> Call | None:
        now = time.perf_counter() if moment is None else moment
        if self.plan.duration is not None and now >= self.began_at + self.plan.duration:
            return None
        with self._lock:
            if self.stop.is_set() or self._left <= 0:
                return None
            self._left -= 1
            return next(self._calls)

    def _do(self, own: _Thread, call: Call, intended: float) -> None:
        sent = time.perf_counter()
        own.busy_since = sent
        answer, outcome = None, OK
        try:
            answer = call()
        except WherryError as error:
            outcome = "timeout" if isinstance(error, DeadlineExceeded) else type(error).__name__
            self.samples.setdefault(outcome, str(error))
        ended = time.perf_counter()
        own.busy_since = None
        own.recorder.add(intended, sent, ended, outcome, self._rows, answer)

    def _wait(self, moment: float) -> None:
        """Until `moment`, or until the run is to stop."""
        left = moment - time.perf_counter()
        if left > 0:
            self.stop.wait(left)


#: A batch size is good if it reaches this share of the best one's rows/s.
GOOD = 0.95


class Cell(msgspec.Struct, kw_only=True):
    """The result of a batch size, for rows of one kind in one order."""

    batch_size: int
    #: Where the rows come from: a distribution of lengths, or the model's examples.
    rows: str
    order: str
    seconds_per_row: float
    #: Rows that were run, and the standard error over passes; None if there was only one.
    measured: int
    error: float | None = None

    @property
    def rows_per_second(self) -> float:
        return 1 / self.seconds_per_row


class OfflineReport(msgspec.Struct, kw_only=True):
    """Everything that one `wherry bench --offline` has measured."""

    schema: int = 1
    tool: str = "wherry bench --offline"
    version: str = ""
    started: str = ""
    command: list[str] = []
    machine: dict[str, Any] = {}
    model: str
    instances: int
    cells: list[Cell] = []
    interrupted: bool = False


def recommended(cells: Sequence[Cell]) -> Cell:
    """The smallest batch size that is nearly as fast as the best: a larger one only waits."""
    best = min(cell.seconds_per_row for cell in cells)
    return min(
        (cell for cell in cells if cell.seconds_per_row * GOOD <= best),
        key=lambda cell: cell.batch_size,
    )


def length_of(row: Row) -> float:
    """The key that rows are sorted by: characters of texts, elements of arrays."""
    return sum(
        len(value) if isinstance(value, str | bytes) else getattr(value, "size", 1)
        for value in row.values()
    )


def batches(rows: Sequence[Row], size: int, *, in_order: bool) -> list[list[Row]]:
    """All rows in batches of `size`, the last one perhaps smaller; `in_order`: by length."""
    if in_order:
        rows = sorted(rows, key=length_of)
    return [list(rows[n : n + size]) for n in range(0, len(rows), size)]


class Offline:
    """A model that is loaded in this process and measured cell by cell.

    with Offline(model, Device()) as offline: ...
    """

    def __init__(self, model: Model, config: ModelConfig, device: Device) -> None:
        self._executable = Executable(model, config)
        if self._executable.signature.streams:
            raise ConfigError(f"model {config.name!r} streams: it has no seconds per row")
        self._device = device
        self._name = config.name

    def __enter__(self) -> Offline:
        self._executable.load(self._device)
        return self

    def __exit__(self, *exc: object) -> None:
        self._executable.unload()

    def measure(
        self,
        rows: Sequence[Row],
        size: int,
        *,
        name: str,
        in_order: bool,
        seconds: float,
        interrupted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Cell | None:
        """Run all rows in batches of `size`, again and again for about `seconds`, but at
        least once: cells are comparable because they have done the same work. The first batch is
        run once before, unmeasured. None if it was interrupted before there was anything to say.
        """
        ready = [
            (concatenate([self._executable.columns_of(row) for row in batch]), len(batch))
            for batch in batches(rows, size, in_order=in_order)
        ]
        self._execute(*ready[0])
        passes: list[float] = []
        until = clock() + seconds
        while (not passes or clock() < until) and not interrupted():
            began = clock()
            for columns, count in ready:
                self._execute(columns, count)
                if interrupted() and not passes:
                    return None
            passes.append((clock() - began) / len(rows))
        if not passes:
            return None
        return Cell(
            batch_size=size,
            rows=name,
            order="sorted" if in_order else "as they come",
            seconds_per_row=fmean(passes),
            measured=len(rows) * len(passes),
            error=stdev(passes) / len(passes) ** 0.5 if len(passes) > 1 else None,
        )

    def _execute(self, columns: Columns, size: int) -> None:
        self._executable.execute(gather_rows([columns], once=False), size)
