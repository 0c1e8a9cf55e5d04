"""Does every request end exactly once, and do the counters add up, when everything happens at once?

Random callers from threads and event loops: calls, streams, cancelled tasks, deadlines, bad rows,
split requests, pipelines, models that are loaded and unloaded under them. The seed is in the
test's name; the number of requests is bounded, not the time.
"""

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

import wherry
from tests.fakes import threads
from tests.properties import seeds
from wherry.core.runtime.runtime import Runtime
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    WherryError,
)
from wherry.core.values.reply import Reply
from wherry.core.values.request import Columns, InferResponse

#: What may become of a request here. Anything else fails the test.
EXPECTED = (DeadlineExceeded, InvalidRequest, ModelFailed, ModelNotFound, ModelNotReady, Overloaded)
ENDS = (InferResponse, Cancelled, *EXPECTED)


class Work(wherry.Model):
    """Doubles numbers; cannot bear negative ones, and refuses 13."""

    max_batch_size = 6
    instances = 2
    device = "cpu"
    max_queue_size = 200

    def load(self, device: wherry.Device) -> None:
        self.inside = [threading.Lock()]

    def execute(self, n: list[int]) -> list[int]:
        assert self.inside[0].acquire(blocking=False), "two threads in one instance"
        try:
            for value in n:
                if value < 0:
                    raise ValueError("negative")
                if value == 13:
                    raise InvalidRequest("unlucky")
            return [2 * value for value in n]
        finally:
            self.inside[0].release()

    def unload(self) -> None:
        self.inside = []  # whoever still runs here fails


@wherry.model(max_batch_size=4, device="cpu")
def steps(n: list[int]) -> Iterator[list[int]]:
    for i in range(max(n)):
        yield [i for _ in n]


@wherry.pipeline
async def sums(n: int) -> int:
    inner = await wherry.gather(wherry.gather([work.ainfer(i)]) for i in range(n))
    return int(sum(value for (value,) in inner))


work = Work()


class Caller:
    """One caller's random behaviour, and what it saw."""

    def __init__(self, rt: Runtime, seed: int, requests: int) -> None:
        self.rt = rt
        self.random = random.Random(seed)
        self.requests = requests
        self.seen: Counter[str] = Counter()

    def value(self) -> int:
        return self.random.choice([1, 2, 3, 20, 100, -1, 13])

    def check(self, n: int, result: int) -> None:
        assert result == 2 * n
        self.seen["right"] += 1

    def failed(self, error: WherryError) -> None:
        self.seen[type(error).__name__] += 1

    def in_a_thread(self) -> None:
        for _ in range(self.requests):
            how = self.random.randrange(6)
            n = self.value()
            try:
                if how == 0:
                    self.check(n, self.rt.infer("work", n))
                elif how == 1:
                    self.check(n, self.rt.infer("work", n, timeout=self.random.choice([0.0002, 5])))
                elif how == 2:
                    self.check(n, self.rt.infer("work", n, priority=self.random.randint(1, 10)))
                elif how == 3:
                    rows = [self.value() for _ in range(self.random.randint(1, 15))]
                    got = self.rt.infer_batch("work", n=rows, timeout=5.0)["output"]
                    assert list(got) == [2 * row for row in rows]
                elif how == 4:
                    stream = self.rt.stream("steps", 5)
                    for i, item in zip(range(self.random.randint(1, 9)), stream, strict=False):
                        assert item == i
                    stream.close()  # type: ignore[attr-defined] # it is a generator
                else:
                    assert self.rt.infer("sums", 4) == 12
            except EXPECTED as error:
                self.failed(error)

    async def in_a_loop(self) -> None:
        for _ in range(self.requests // 4):
            values = [self.value() for _ in range(4)]
            tasks = [
                asyncio.ensure_future(
                    self.rt.ainfer("work", n, timeout=self.random.choice([None, 0.0005, 5]))
                )
                for n in values
            ]
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            self.random.choice(tasks).cancel()
            for n, task in zip(values, tasks, strict=True):
                try:
                    self.check(n, await task)
                except asyncio.CancelledError:
                    self.seen["cancelled"] += 1
                except EXPECTED as error:
                    self.failed(error)

    def through_the_front(self) -> None:
        """As a frontend does it: replies of its own, cancelled at any moment."""
        outcomes: list[list[object]] = []
        for _ in range(self.requests):
            told: list[object] = []
            outcomes.append(told)

            def done(reply: Reply[InferResponse], told: list[object] = told) -> None:
                told.append(reply.outcome)

            try:
                loaded = self.rt.model("work")
            except ModelNotFound:
                told.append(None)
                continue
            rows = [abs(self.value()) for _ in range(self.random.randint(1, 9))]
            request = loaded.request(loaded_columns(rows), len(rows), Reply(done))
            loaded.submit([request])
            if self.random.random() < 0.5:
                loaded.cancel(request)
        self.outcomes = outcomes


def loaded_columns(rows: list[int]) -> Columns:
    return {"n": np.array(rows)}


@pytest.fixture
def _threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("_threads_switch_often")
@pytest.mark.parametrize("seed", seeds(3))
def test_every_request_ends_once_and_the_counters_add_up(seed: int) -> None:
    with Runtime(work, steps, sums) as rt:
        calls = settings().max_examples + 20  # of each
        callers = [Caller(rt, seed * 100 + number, calls) for number in range(16)]
        front: list[Caller] = []

        def call(number: int) -> None:
            caller = callers[number]
            if number < 9:
                caller.in_a_thread()
            elif number < 13:
                asyncio.run(caller.in_a_loop())
            elif number < 15:
                front.append(caller)
                caller.through_the_front()
            else:
                for n in range(12):  # the operator
                    rt.load(Work(), max_batch_size=n % 7 + 1)
                    if n % 4 == 3:
                        rt.unload("work")
                        rt.load(work)

        with threads(16, call):
            pass
        models = [rt.model(name) for name in ("work", "steps", "sums")]
        assert rt.drain(10.0)
        for caller in front:
            for told in caller.outcomes:
                assert len(told) == 1, told
                assert told[0] is None or isinstance(told[0], ENDS)
        seen = sum((caller.seen for caller in callers), Counter[str]())
        assert seen["right"] > 100
        for loaded in models:
            statistics = loaded.statistics
            assert sum(statistics.failures.values()) == statistics.fail.count
            assert not loaded.runner.running()
            assert loaded.runner.queued_requests == 0
            executed = sum(n * b.count for n, b in statistics.batch_sizes.items())
            assert executed >= statistics.inference_count >= statistics.success.count


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("_threads_switch_often")
def test_success_and_failure_are_as_many_as_were_sent() -> None:
    """One model that stays: every request has its own reply, told once, counted once."""
    sent, each = 8, 400
    told: list[list[object]] = [[] for _ in range(sent * each)]
    with Runtime(Work()) as rt:
        loaded = rt.model("work")

        def send(number: int) -> None:
            chance = random.Random(number)
            for n in range(number * each, (number + 1) * each):
                request = loaded.request(
                    loaded_columns([chance.choice([1, 2, -1, 13])]),
                    1,
                    Reply(lambda reply, n=n: told[n].append(reply.outcome)),  # type: ignore[misc] # mypy: defaults
                    timeout=chance.choice([None, 0.001, 5.0]),
                    priority=chance.randint(0, 10),
                )
                loaded.submit([request])
                if chance.random() < 0.3:
                    loaded.cancel(request)

        with threads(sent, send):
            pass
        assert rt.drain(10.0)
        assert all(len(outcomes) == 1 for outcomes in told)
        statistics = loaded.statistics
        right = sum(isinstance(outcome, InferResponse) for (outcome,) in told)
        assert statistics.success.count == statistics.inference_count == right
        assert statistics.fail.count == sum(statistics.failures.values()) == sent * each - right
        by_reason = Counter(
            outcome.reason for (outcome,) in told if isinstance(outcome, WherryError)
        )
        assert statistics.failures == by_reason
