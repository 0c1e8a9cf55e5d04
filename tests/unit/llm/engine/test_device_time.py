"""The time of a step is the device's, which computes long after it was given the calls."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest
import torch
from torch import Tensor

from wherry.llm.engine.device import HostTimer, end_of, timer_of
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.sequence import Sequence

GPU = torch.device("cuda", 1)


class FakeGpu:
    """Computes what it was given, `work`, when somebody waits for it. As much of torch.cuda as
    timers use."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.now = 0.0
        self.waited = 0

    def work(self, seconds: float) -> None:
        self.queue.append(seconds)

    def current_stream(self, device: Any) -> Any:
        assert device == GPU
        return self

    def Event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event()


class Event:
    at: float | None = None

    def record(self, stream: FakeGpu) -> None:
        self.stream = stream
        stream.queue.append(self)

    def synchronize(self) -> None:
        self.stream.waited += 1
        while self.at is None:
            done = self.stream.queue.pop(0)
            if isinstance(done, Event):
                done.at = self.stream.now
            else:
                self.stream.now += done

    def elapsed_time(self, end: Event) -> float:
        if self.at is None or end.at is None:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end.at - self.at) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    for name in ("Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_each_of_several_steps_in_flight_takes_what_the_device_needed(gpu: FakeGpu) -> None:
    timer = timer_of(GPU)
    asked = []
    for seconds in (0.25, 0.5, 2.0):
        gpu.work(8.0)  # of something else, between the steps
        timer.start()
        gpu.work(seconds)
        asked.append(timer.stop())
    assert gpu.waited == 0
    assert [seconds() for seconds in asked] == [0.25, 0.5, 2.0]
    assert [seconds() for seconds in reversed(asked)] == [2.0, 0.5, 0.25]


def test_a_step_is_waited_for_without_what_was_given_later(gpu: FakeGpu) -> None:
    timer = timer_of(GPU)
    timer.start()
    gpu.work(1.0)
    seconds = timer.stop()
    gpu.work(100.0)
    assert seconds() == 1.0
    assert gpu.now == 1.0


def test_what_was_given_so_far_can_be_waited_for(gpu: FakeGpu) -> None:
    gpu.work(3.0)
    ended = end_of(GPU)
    gpu.work(4.0)
    assert (gpu.now, gpu.waited) == (0.0, 0)
    ended()
    assert (gpu.now, gpu.waited) == (3.0, 1)


def test_a_processor_has_computed_when_its_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.5])
    monkeypatch.setattr("wherry.llm.engine.device.perf_counter", lambda: next(times))
    timer = timer_of(torch.device("cpu"))
    assert type(timer) is HostTimer
    timer.start()
    assert timer.stop()() == 0.5
    end_of(torch.device("cpu"))()


#: An 8B model's: seconds for the weights, and for each token.
FIXED, EACH = 6e-3, 12e-6
#: Of the host, to give a step to the device: a replay, or call by call.
REPLAYED, CALLED = 0.4e-3, 7e-3


class AsyncDevice:
    """A device with a clock of its own, which a runner gives steps to and a timer asks."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0
        self.steps: list[list[Chunk]] = []
        self.computed = 0.0

    def run(self, chunks: Many[Chunk]) -> Tensor:
        tokens = sum(chunk.count for chunk in chunks)
        begin = max(self.now, self.free_at)
        self.now += REPLAYED if tokens == len(chunks) else CALLED
        self.free_at = max(self.now, begin + FIXED + EACH * tokens)
        self.computed += self.free_at - begin
        self.steps.append([*chunks])
        return torch.zeros(sum(chunk.logits for chunk in chunks), 8)

    def start(self) -> None:
        self._start = max(self.now, self.free_at)

    def stop(self) -> Callable[[], float]:
        start, end = self._start, self.free_at

        def seconds() -> float:
            self.now = max(self.now, end)
            return end - start

        return seconds


def engine(device: AsyncDevice) -> Engine:
    return Engine(
        device.run,
        KVCache(2000, 16),
        name="m",
        vocabulary=8,
        context_tokens=4096,
        max_running=32,
        timer=device,
    )


WISH = Sampling(temperature=0.0, max_tokens=400, ignore_eos=True)


def steps_of(device: AsyncDevice, sequence: Sequence) -> int:
    return sum(any(c.sequence is sequence and c.count > 1 for c in step) for step in device.steps)


def test_a_prompt_beside_streams_has_as_many_tokens_of_a_step_as_its_duration_allows() -> None:
    device = AsyncDevice()
    made = engine(device)
    streams = [made.add([number] * 40, WISH)[0] for number in range(8)]
    streams += [made.add([number, *[7] * 300], WISH)[0] for number in range(8)]
    for _ in range(60):
        made.step()
    assert all(stream.generated_tokens > 20 for stream in streams)
    (prompt,) = made.add([7, 6] * 750, WISH)
    while not prompt.generated_tokens:
        made.step()
    assert steps_of(device, prompt) == 4  # of 512 tokens; 12 by the host's times
    assert made.scheduler.pace.free_tokens == pytest.approx(FIXED / EACH, rel=0.15)


def test_a_models_seconds_are_those_that_its_device_computed() -> None:
    device = AsyncDevice()
    made = engine(device)
    made.add([1] * 1300, Sampling(temperature=0.0, max_tokens=3, ignore_eos=True))
    while made.busy:
        made.step()
    seconds = made.gauges()["model_seconds_total"]
    assert seconds == pytest.approx(device.computed)


def test_the_host_is_never_more_than_a_step_before_the_device() -> None:
    """A prompt's steps but its last choose no token, and are waited for nevertheless."""
    device = AsyncDevice()
    made = engine(device)
    made.add([1] * 1300, WISH)
    for _ in range(3):
        made.step()
        assert device.now >= device.free_at
