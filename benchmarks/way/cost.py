"""What does a lone request take on each of its ways, counted?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import ne
from typing import NamedTuple

from benchmarks.way.callers import Ask, Kind, in_own_process
from benchmarks.way.calls import Recorder, parted, recorded, single, traced, whole, worker_calls
from benchmarks.way.kernel import family, sleeps, system_calls, why_no_strace
from wherry.core.models.model import Model

#: Requests of which the average is taken.
CALLED, ASKED = 20, 200


CHATS: dict[str, Model] = {"chat": whole, "events": parted}


class Way(NamedTuple):
    kind: Kind
    isolation: str

    @property
    def model(self) -> Model:
        if self.kind in CHATS:
            return CHATS[self.kind]
        return traced if self.isolation == "process" else single


WAYS = {
    "json to a process": Way("json", "process"),
    "json to a thread": Way("json", "thread"),
    "grpc to a process": Way("grpc", "process"),
    "chat to a thread": Way("chat", "thread"),
    "chat in events": Way("events", "thread"),
    "local call": Way("local", "thread"),
}


@dataclass(frozen=True)
class Calls:
    """Python functions of wherry a request, by file, and those in the worker's process."""

    by_file: dict[str, float]
    #: How often a call is followed by one in another folder.
    borders: float
    in_worker: list[str]

    def counts(self) -> dict[str, float]:
        return {
            "calls": round(sum(self.by_file.values()), 2),
            "files": sum(calls >= 0.5 for calls in self.by_file.values()),
            "borders": self.borders,
            "worker_calls": len(self.in_worker),
        }


def calls(way: Way) -> Calls:
    """The least of three rounds: timers and the collector come now and then."""
    recorder = Recorder()
    with recorded(way.kind, way.model, recorder) as ask:
        rounds = [_round(recorder, ask) for _ in range(3)]
        in_worker = worker_calls(ask())
    least = min(rounds, key=len)
    by_file = {file: count / CALLED for file, count in Counter(least).items()}
    folders = [file.rpartition("/")[0] for file in least]
    borders = sum(map(ne, folders, folders[1:])) / CALLED
    return Calls(by_file, borders, [f"{call.file} {call.function}" for call in in_worker])


def _round(recorder: Recorder, ask: Ask) -> list[str]:
    """The files of the calls in order. What follows an answer counts with the next request."""
    recorder.calls = []
    recorder.on = True
    for _ in range(CALLED):
        ask()
    recorder.on = False
    return [call.file for call in recorder.calls]


@dataclass(frozen=True)
class Kernel:
    """What a process asks of the kernel for a request."""

    waits: float
    #: By name; empty where they cannot be counted.
    system_calls: dict[str, float] = field(default_factory=dict)


def kernel(way: Way) -> dict[str, Kernel]:
    """Of "server", and of "worker" if there is one."""
    with in_own_process(way.kind, way.isolation) as (pid, ask):
        server, workers = family(pid)
        pids = [server, *workers]

        def run() -> None:
            for _ in range(ASKED):
                ask()

        before = [sleeps(pid) for pid in pids]
        run()
        waits = [(sleeps(pid) - then) / ASKED for pid, then in zip(pids, before, strict=True)]
        found = [Counter[str]() for _ in pids]
        if not why_no_strace():  # the least of two rounds: a late import asks for much, once
            rounds = zip(system_calls(pids, run), system_calls(pids, run), strict=True)
            found = [first & second for first, second in rounds]
    each = [
        Kernel(waited, {name: count / ASKED for name, count in calls.most_common()})
        for waited, calls in zip(waits, found, strict=True)
    ]
    return dict(zip(("server", "worker"), each, strict=False))
