"""How much CPU does a batching policy take for a request, at 1, 4, 16 and 64 callers?

    python -m benchmarks.policy_cost [--json benchmarks/results/policy_cost.json]

Policies are pure: the calls of a simulated run are written down once and then replayed with
nothing around them. Every arrival comes alone, which is the dearest way; callers come back 0.25 ms
after their answer from a device of 5 ms and 0.2 ms a row.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks.batching.simulator import CURVES, Arrivals, capacity, simulate
from benchmarks.harness import arguments, report
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Action, Scheduler
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.values.request import InferRequest

REQUESTS = 20_000
LIMIT = 64
Call = tuple[str, tuple[Any, ...]]

POLICIES: dict[str, Callable[[], Scheduler]] = {
    "greedy": lambda: DynamicBatcher(max_batch_size=LIMIT),
    "self-tuning": lambda: SelfTuningBatcher(max_batch_size=LIMIT),
}
ARRIVALS = {f"{n} callers": Arrivals(callers=n) for n in (1, 4, 16, 64)}
ARRIVALS["strangers at 70 %"] = Arrivals(rate=0.7 * capacity(CURVES["gpu"], LIMIT))


class Cost(NamedTuple):
    """Of a policy under one load: CPU us and decisions a request, us of the longest single call."""

    microseconds: float
    decisions: float
    longest: float


class Recorder:
    """A scheduler that writes down what the simulator asks of it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.calls: list[Call] = []

    def enqueue(self, request: InferRequest, now: float) -> bool:
        self.calls.append(("enqueue", (request, now)))
        return self.scheduler.enqueue(request, now)

    def next_action(self, now: float, instance: int = 0) -> Action:
        self.calls.append(("next_action", (now,)))
        return self.scheduler.next_action(now, instance)

    def finished(self, requests: Sequence[InferRequest], seconds: float | None, now: float) -> None:
        self.calls.append(("finished", (requests, seconds, now)))
        self.scheduler.finished(requests, seconds, now)


def seconds_of(calls: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> float:
    started = process_time()
    for function, its_arguments in calls:
        function(*its_arguments)
    return process_time() - started


def longest(make: Callable[[], Scheduler], calls: Sequence[Call], rounds: int) -> float:
    """Seconds of the longest call. Of each call the shortest round counts: what else ran on the
    core took the rest."""
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        scheduler = make()
        gc.disable()
        for number, (name, its_arguments) in enumerate(calls):
            function = getattr(scheduler, name)
            started = perf_counter()
            function(*its_arguments)
            least[number] = min(least[number], perf_counter() - started)
        gc.enable()
    return max(least)


def cost(make: Callable[[], Scheduler], arrivals: Arrivals, rounds: int) -> Cost:
    recorder = Recorder(make())
    simulate(recorder, CURVES["gpu"], arrivals, total=REQUESTS)  # type: ignore[arg-type] # three of its methods
    empty: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
        (lambda *_: None, its_arguments) for _, its_arguments in recorder.calls
    ]
    loop = min(seconds_of(empty) for _ in range(rounds))
    runs = []
    for _ in range(rounds):
        scheduler = make()
        runs.append(seconds_of([(getattr(scheduler, name), a) for name, a in recorder.calls]))
    decisions = sum(name == "next_action" for name, _ in recorder.calls)
    return Cost(
        microseconds=(statistics.median(runs) - loop) / REQUESTS * 1e6,
        decisions=decisions / REQUESTS,
        longest=longest(make, recorder.calls, max(3, rounds)) * 1e6,
    )


def main() -> None:
    options = arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for name, arrivals in ARRIVALS.items():
        costs = {policy: cost(make, arrivals, options.rounds) for policy, make in POLICIES.items()}
        rows.append(
            {
                "what": name,
                "greedy us": round(costs["greedy"].microseconds, 2),
                "self-tuning us": round(costs["self-tuning"].microseconds, 2),
                "decisions a request": round(costs["self-tuning"].decisions, 2),
                "longest single call us": round(costs["self-tuning"].longest, 1),
            }
        )
    report("CPU time of the policy, for each request", rows, options.json)


if __name__ == "__main__":
    main()
