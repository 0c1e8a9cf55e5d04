"""What do the tests of the core share? Fakes at one seam each: the clock, the timer, the model.

Nothing here waits for time to pass: a test moves the clock itself, and a gated model waits for the
test.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import wherry
from wherry.core.instances.dispatcher import Dispatcher
from wherry.core.instances.instance import Instance
from wherry.core.instances.resources import Resources
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.thread import ThreadInstance
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse

#: A wait of a test for something that must come: longer only if it fails.
TIMEOUT = 30.0


def until(condition: Callable[[], object], timeout: float = TIMEOUT) -> None:
    """Wait for what another thread or process does without telling anybody."""
    gives_up_at = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < gives_up_at, "what the test waits for does not happen"
        time.sleep(0.001)


class ManualClock:
    """Time that only the test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class ManualTimer(Timer):
    """Calls what is due when the test advances the clock, in the test's own thread."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def wake_at(self, when: float, callback: Callable[[], None]) -> None:
        self.waiting.append((when, callback))

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        while due := [entry for entry in self.waiting if entry[0] <= self.clock.now]:
            first = min(due, key=lambda entry: entry[0])
            self.waiting.remove(first)
            first[1]()


class Gate:
    """Says when a batch has started, and holds it until the test lets it go."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self._started = threading.Semaphore(0)
        self._may_finish = threading.Semaphore(0)

    def hold(self, rows: Sequence[Any]) -> None:
        """For the model: a batch has started."""
        self.batches.append(list(rows))
        self._started.release()
        assert self._may_finish.acquire(timeout=TIMEOUT), "the test never opened the gate"

    def started(self) -> None:
        """For the test: wait until one more batch has started."""
        assert self._started.acquire(timeout=TIMEOUT), "no batch has started"

    def open(self, batches: int = 1) -> None:
        """Let so many batches finish, running now or later."""
        self._may_finish.release(batches)


def gated(gate: Gate, **settings: Any) -> Model:
    """A model that answers in capitals, once the gate lets it."""

    @wherry.model(**{"name": "gated", "max_batch_size": 8, "run_in_caller": False, **settings})
    def shout(text: list[str]) -> list[str]:
        gate.hold(text)
        if "bad" in text:
            raise ValueError("a bad row")
        return [t.upper() for t in text]

    return shout


class Call:
    """One request with a reply that a test can look at and wait for."""

    def __init__(
        self,
        *rows: Any,
        name: str = "text",
        stream: bool = False,
        priority: int = 5,
        deadline: float | None = None,
        shape_key: object = None,
    ) -> None:
        self._done = threading.Event()
        self.outcomes: list[object] = []
        self.responses: list[InferResponse] = []
        reply: Reply[InferResponse]
        if stream:
            reply = StreamReply(lambda _, response: self.responses.append(response), self._settled)
        else:
            reply = Reply(self._settled)
        self.request = InferRequest(
            {name: list(rows)},
            len(rows),
            reply,
            id=str(rows[0]),
            priority=priority,
            deadline=deadline,
            shape_key=shape_key,
        )

    def _settled(self, reply: Reply[InferResponse]) -> None:
        self.outcomes.append(reply.outcome)
        self._done.set()

    @property
    def answered(self) -> bool:
        return self._done.is_set()

    def wait(self) -> Any:
        """The outcome as a value, an error too."""
        assert self._done.wait(TIMEOUT), f"{self.request} was never answered"
        (outcome,) = self.outcomes
        return outcome

    def rows(self, name: str = "output") -> list[Any]:
        outcome = self.wait()
        assert isinstance(outcome, InferResponse), outcome
        return list(outcome.outputs[name])

    def error(self) -> Exception:
        outcome = self.wait()
        assert isinstance(outcome, Exception), outcome
        return outcome


class ManualDispatcher:
    """A dispatcher whose clock and timer belong to the test."""

    def __init__(self, dispatcher: Dispatcher, clock: ManualClock, timer: ManualTimer) -> None:
        self.dispatcher = dispatcher
        self.clock = clock
        self.timer = timer

    def ask(self, *rows: Any, timeout: float | None = None, **how: Any) -> Call:
        deadline = None if timeout is None else self.clock.now + timeout
        call = Call(*rows, deadline=deadline, **how)
        self.dispatcher.submit([call.request])
        return call

    def ask_all(self, *rows: Any, **how: Any) -> list[Call]:
        """One request for each row, submitted together."""
        calls = [Call(row, **how) for row in rows]
        self.dispatcher.submit([call.request for call in calls])
        return calls


@contextmanager
def desk(
    model: Model,
    *,
    make: Callable[[int, ModelConfig], Instance] | None = None,
    scheduler: Scheduler | None = None,
    clock: ManualClock | None = None,
    ready: bool = True,
    gate: Gate | None = None,
    resources: Resources | None = None,
    sequence_inputs: SequenceInputs | None = None,
    **settings: Any,
) -> Iterator[ManualDispatcher]:
    """Serve `model` in thread instances; at the end `gate` is opened for whatever still runs."""
    config = model.config(**settings)
    clock = clock or ManualClock(1000.0)
    timer = ManualTimer(clock)

    def thread(number: int, config: ModelConfig) -> Instance:
        return ThreadInstance(f"{config.name}_{number}", Device(), model, config)

    made = make or thread
    dispatcher = Dispatcher(
        config,
        scheduler or batcher(config),
        [
            lambda number=number: made(number, config)  # type: ignore[misc] # mypy: defaults
            for number in range(sum(group.count for group in config.instances))
        ],
        clock=clock,
        timer=timer,
        statistics=ModelStatistics(),
        resources=resources,
        sequence_inputs=sequence_inputs,
    )
    try:
        dispatcher.start()
        if ready:
            dispatcher.wait_ready(TIMEOUT)
        yield ManualDispatcher(dispatcher, clock, timer)
    finally:
        if gate is not None:
            gate.open(1000)
        dispatcher.close()


def batcher(config: ModelConfig) -> DynamicBatcher:
    return DynamicBatcher(
        max_batch_size=config.max_batch_size,
        max_queue_delay=config.max_queue_delay or 0.0,
        preferred_batch_sizes=config.preferred_batch_sizes,
        max_queue_size=config.max_queue_size,
    )


def rows_of_call(outputs: Columns) -> list[Any]:
    return list(outputs["output"])


@contextmanager
def threads(count: int, work: Callable[[int], None]) -> Iterator[None]:
    """Run `work(number)` in so many threads at once; what one of them raises is raised here."""
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            together.wait(TIMEOUT)
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed on to the test below
            errors.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        for thread in started:
            thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in started), "a thread hangs"
    if errors:
        raise errors[0]


@contextmanager
def no_new_threads(times: int = 10**6) -> Iterator[None]:
    """The system gives no thread, as at a limit of processes, for the next `times` that are asked
    for."""
    start, left = threading.Thread.start, [times]

    def refuse(thread: threading.Thread) -> None:
        if left[0] <= 0:
            start(thread)
            return
        left[0] -= 1
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
