"""How long do rows take that several fronts send to several owners? In virtual time.

An owner runs batches of what waits, one after the other, and learns what they take with wherry's
own Forecast. The fronts and owners are joined by links with a delay each way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random
from typing import Any

from benchmarks.pool.ways import MakeWay, Way
from wherry.scheduler.forecast import Forecast
from wherry.values.load import Load

MS = 1e-3
#: This part of the rows is not counted: the owners do not know their devices yet.
LEARNING = 0.25
#: An owner that has stopped is known to be lost after this many seconds.
LOST_AFTER = 3.0
#: A front that has no rows at an owner is told of its load at most so often (seconds).
TOLD_EACH = 10 * MS


@dataclass(frozen=True)
class Device:
    """Seconds of a batch: `each`, and `by_row` for every row; of at most `full` rows."""

    each: float = 5 * MS
    by_row: float = 0.2 * MS
    full: int = 32
    noise: float = 0.05

    def seconds(self, rows: int) -> float:
        return self.each + rows * self.by_row

    def slower(self, factor: float) -> Device:
        return Device(factor * self.each, factor * self.by_row, self.full, self.noise)

    @property
    def capacity(self) -> float:
        """Rows a second in full batches."""
        return self.full / self.seconds(self.full)


@dataclass(frozen=True)
class Case:
    """Fronts, owners, and what they are sent: `load` is a share of what the devices can do."""

    devices: Sequence[Device]
    load: float = 0.7
    fronts: int = 1
    delay: float = 0.1 * MS
    rows: int = 10_000
    #: Rows are steps of so many sequences, the k-th of which has a share of k ** -`skew`; 0: none.
    sequences: int = 0
    skew: float = 0.0
    #: The owner that stops, after this part of the rows.
    stops: int | None = None
    stops_after: float = 0.3


@dataclass
class Row:
    """One row: when it came, to which front, whether it counts, and its sequence."""

    arrived: float
    front: int
    counts: bool
    sequence: int | None = None


@dataclass
class Result:
    """Seconds from arrival to answer, and rows sent to each owner."""

    seconds: list[float]
    owners: Counter[int]
    batches: int = 0
    #: Rows that an owner got after it had stopped.
    late: int = 0

    @property
    def mean(self) -> float:
        return sum(self.seconds) / len(self.seconds)

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[int(share * len(self.seconds))]

    @property
    def figures(self) -> dict[str, float]:
        return {"mean": self.mean, "p50": self.quantile(0.5), "p99": self.quantile(0.99)}


class Events:
    """What happens, in order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        heappush(self._waiting, (when, next(self._order), what, arguments))

    def run(self) -> None:
        while self._waiting:
            self.now, _, what, arguments = heappop(self._waiting)
            what(*arguments)


@dataclass
class Owner:
    """One instance, its queue, and what it has learnt."""

    number: int
    device: Device
    events: Events
    random: Random
    fronts: Sequence[Front]
    delay: float
    queue: deque[Row] = field(default_factory=deque)
    running: list[Row] = field(default_factory=list)
    forecast: Forecast = field(default_factory=Forecast)
    here: Counter[int] = field(default_factory=Counter)
    told: dict[int, float] = field(default_factory=dict)
    began: float = 0.0
    batches: int = 0
    stopped: bool = False

    def arrive(self, rows: Sequence[Row]) -> None:
        self.queue.extend(rows)
        self.here[rows[0].front] += len(rows)
        if not self.running:
            self._begin()

    def _begin(self) -> None:
        if not self.queue or self.stopped:
            return
        self.running = [self.queue.popleft() for _ in range(min(len(self.queue), self.device.full))]
        self.began = self.events.now
        seconds = self.device.seconds(len(self.running))
        seconds *= self.random.lognormvariate(0, self.device.noise)
        self.batches += 1
        self.events.at(self.began + seconds, self._end)

    def _end(self) -> None:
        if self.stopped:
            return
        now = self.events.now
        done, self.running = self.running, []
        self.forecast.learn(len(done), now - self.began)
        self._begin()
        answers: dict[int, list[Row]] = {}
        for row in done:
            answers.setdefault(row.front, []).append(row)
        load = self.load()
        for front in self.fronts:
            rows = answers.get(front.number, ())
            self.here[front.number] -= len(rows)
            if rows or now - self.told.get(front.number, -1.0) >= TOLD_EACH:
                self.told[front.number] = now
                yours = self.here[front.number]
                self.events.at(now + self.delay, front.answered, self.number, rows, load, yours)

    def load(self) -> Load:
        seconds, running = self.forecast.batch_seconds, len(self.running)
        rest = self.began + seconds(running) - self.events.now if running else 0.0
        return Load(
            ready=True,
            instances=1,
            busy=min(1, running),
            queued_rows=len(self.queue),
            running_rows=running,
            free_after=abs(rest),
            full_rows=self.device.full,
            one_seconds=seconds(1),
            full_seconds=seconds(self.device.full),
        )


class Front:
    """Sends rows where its way says."""

    def __init__(self, number: int, way: Way, events: Events, delay: float, result: Result) -> None:
        self.number, self._way, self._events, self._delay = number, way, events, delay
        self._result = result
        self.owners: Sequence[Owner] = ()
        self._out: dict[int, dict[int, Row]] = {}

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            owner = self._way.choose(self._events.now, row.sequence)
            self._result.owners[owner] += 1
            self._result.late += self.owners[owner].stopped
            self._out.setdefault(owner, {})[id(row)] = row
            at = self._events.now + self._delay
            self._events.at(at, self.owners[owner].arrive, [row])

    def answered(self, owner: int, rows: Sequence[Row], load: Load, yours: int) -> None:
        now = self._events.now
        if rows:
            self._way.ended(owner, len(rows))
            for row in rows:
                del self._out[owner][id(row)]
                if row.counts:
                    self._result.seconds.append(now - row.arrived)
        self._way.reported(owner, load, yours, now)

    def lost(self, owner: int) -> None:
        """An owner is gone: its rows go elsewhere."""
        self._way.removed(owner)
        self.send(list(self._out.pop(owner, {}).values()))


def simulate(case: Case, way: MakeWay, seed: int) -> Result:
    random, events, result = Random(seed), Events(), Result([], Counter())
    count = len(case.devices)
    fronts = [
        Front(n, way(count, Random(seed * 1000 + n), 2 * case.delay), events, case.delay, result)
        for n in range(case.fronts)
    ]
    owners = [
        Owner(n, device, events, Random(seed * 1000 + 500 + n), fronts, case.delay)
        for n, device in enumerate(case.devices)
    ]
    for front in fronts:
        front.owners = owners
        for owner in owners:
            front.answered(owner.number, (), owner.load(), 0)
    rows = arrivals(case, random)
    for row in rows:
        events.at(row.arrived, fronts[row.front].send, [row])
    if case.stops is not None:
        stops_at = case.stops_after * rows[-1].arrived
        events.at(stops_at, setattr, owners[case.stops], "stopped", True)
        for front in fronts:
            events.at(stops_at + LOST_AFTER, front.lost, case.stops)
    events.run()
    result.batches = sum(owner.batches for owner in owners)
    return result


def arrivals(case: Case, random: Random) -> list[Row]:
    """Rows that come at random, each to any front."""
    rate = case.load * sum(device.capacity for device in case.devices)
    moments = list(accumulate(random.expovariate(rate) for _ in range(case.rows)))
    counted = range(int(LEARNING * case.rows), case.rows)
    fronts = random.choices(range(case.fronts), k=case.rows)
    sequences: Sequence[int | None] = [None] * case.rows
    if case.sequences:
        shares = [(k + 1) ** -case.skew for k in range(case.sequences)]
        sequences = random.choices(range(case.sequences), shares, k=case.rows)
    return [Row(moments[n], fronts[n], n in counted, sequences[n]) for n in range(case.rows)]


def central(case: Case, seed: int) -> Result:
    """One queue for all devices, of which the fastest that is idle takes a batch: what no choice
    ahead of time can reach, but for the delay of the link and without learning."""
    random, events, result = Random(seed), Events(), Result([], Counter())
    queue: deque[Row] = deque()
    idle = sorted(range(len(case.devices)), key=lambda n: case.devices[n].seconds(1), reverse=True)
    noise = Random(seed + 1)

    def begin() -> None:
        while queue and idle:
            number = idle.pop()
            device = case.devices[number]
            rows = [queue.popleft() for _ in range(min(len(queue), device.full))]
            seconds = device.seconds(len(rows)) * noise.lognormvariate(0, device.noise)
            result.batches += 1
            result.owners[number] += len(rows)
            events.at(events.now + seconds, end, number, rows)

    def end(number: int, rows: Sequence[Row]) -> None:
        idle.append(number)
        idle.sort(key=lambda n: case.devices[n].seconds(1), reverse=True)
        now = events.now + case.delay
        result.seconds.extend([now - row.arrived for row in rows if row.counts])
        begin()

    def arrive(row: Row) -> None:
        queue.append(row)
        begin()

    for row in arrivals(case, random):
        events.at(row.arrived + case.delay, arrive, row)
    events.run()
    return result
