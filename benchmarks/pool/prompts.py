"""What does it bring that prompts which begin alike go to one replica, and what does it cost?

Replicas of a language model that read one prompt at a time, faster if they have its beginning
cached. The time of a first response counts. In virtual time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.pool.simulator import MS, Events
from wherry.instances.step_runner import cached_share
from wherry.remote.choice import Replica, ReplicaChoice
from wherry.scheduler.first_responses import FirstResponses
from wherry.values.load import Load

#: Seconds to read the common beginning of a prompt and the rest of it, and to generate.
BEGINNING, REST, GENERATING = 180 * MS, 20 * MS, 1.0
#: Beginnings, those that one replica can keep, and requests that generate on it at once.
BEGINNINGS, KEPT, SLOTS = 64, 16, 32
#: Each request that generates slows the others down by this.
SLOWER = 0.02


@dataclass
class Prompt:
    number: int
    arrived: float
    beginning: int


class Engine:
    """One replica."""

    def __init__(self, choice: ReplicaChoice, number: int, events: Events) -> None:
        self.replica: Replica = choice.added(str(number))
        self._choice = choice
        self._events = events
        self._first = FirstResponses()
        self._waiting: deque[Prompt] = deque()
        self._reads = False
        self._generating = 0
        self._cached: dict[int, None] = {}
        self._counts = {"prefix_cache_queries_total": 0.0, "prefix_cache_hits_total": 0.0}
        self.hits = 0
        self.seconds: list[float] = []
        self._report()

    def take(self, prompt: Prompt) -> None:
        self._first.arrived(prompt.number, 1.0, self._events.now)
        self._waiting.append(prompt)
        self._read()

    def _read(self) -> None:
        if self._reads or not self._waiting:
            return
        self._reads = True
        prompt = self._waiting.popleft()
        hit = prompt.beginning in self._cached
        self.hits += hit
        self._counts["prefix_cache_queries_total"] += BEGINNING + REST
        self._counts["prefix_cache_hits_total"] += BEGINNING * hit
        self._cached.pop(prompt.beginning, None)
        self._cached[prompt.beginning] = None
        if len(self._cached) > KEPT:
            del self._cached[next(iter(self._cached))]
        seconds = (REST if hit else BEGINNING + REST) * (1 + SLOWER * self._generating)
        self._events.at(self._events.now + seconds, self._responds, prompt)

    def _responds(self, prompt: Prompt) -> None:
        self._first.responded(prompt.number, self._events.now)
        self.seconds.append(self._events.now - prompt.arrived)
        self._reads = False
        self._generating += 1
        self._events.at(self._events.now + GENERATING, self._ends)
        self._report()
        self._read()

    def _ends(self) -> None:
        self._generating -= 1
        self._choice.ended(self.replica, 1)
        self._report()

    def _report(self) -> None:
        one, here = self._first.mean_seconds, len(self._waiting) + self._reads
        load = Load(
            ready=True,
            instances=1,
            queued_rows=here,
            running_rows=self._generating,
            full_rows=SLOTS,
            one_seconds=one,
            full_seconds=one * SLOTS,
            joins=True,
            prefill_seconds=one / (1 - cached_share([self._counts])),
        )
        self._choice.reported(self.replica, load, here + self._generating, self._events.now)


def prompts(
    rate: float, *, seed: int, replicas: int = 8, count: int = 6000, skew: float = 1.0
) -> dict[str, dict[str, Any]]:
    """So many prompts a second, the k-th beginning with a share of k ** -skew, to replicas chosen
    by prediction alone, by prediction and beginning, and by beginning alone."""
    found = {}
    for way in ("prediction", "beginning and prediction", "beginning"):
        random, events, choice = Random(seed), Events(), ReplicaChoice(Random(seed + 1))
        engines = {one.replica: one for one in (Engine(choice, n, events) for n in range(replicas))}
        shares = [(k + 1) ** -skew for k in range(BEGINNINGS)]

        def send(
            prompt: Prompt,
            way: str = way,
            choice: ReplicaChoice = choice,
            engines: dict[Replica, Engine] = engines,
        ) -> None:
            text = str(prompt.beginning).encode()
            if way == "beginning":
                replica = choice.choose_for_sequence(text, prompt.arrived, starts=True)
            else:
                known = text if way == "beginning and prediction" else b""
                replica = choice.choose(1, prompt.arrived, known)
            assert replica is not None
            choice.sent(replica, 1, prompt.arrived)
            engines[replica].take(prompt)

        moment = 0.0
        for number in range(count):
            moment += random.expovariate(rate)
            (beginning,) = random.choices(range(BEGINNINGS), shares)
            events.at(moment, send, Prompt(number, moment, beginning))
        events.run()
        seconds = sorted(s for engine in engines.values() for s in engine.seconds)
        found[way] = {
            "hits": sum(engine.hits for engine in engines.values()) / count,
            "mean": sum(seconds) / count,
            "p50": seconds[count // 2],
            "p99": seconds[int(0.99 * count)],
        }
    return found
