"""Is the time of a step that of the device, and is nothing waited for before somebody asks?"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from wherry.llm.engine.device_time import HostTimer, end_of, timer_of  # noqa: E402

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
    monkeypatch.setattr("wherry.llm.engine.device_time.perf_counter", lambda: next(times))
    timer = timer_of(torch.device("cpu"))
    assert type(timer) is HostTimer
    timer.start()
    assert timer.stop()() == 0.5
    end_of(torch.device("cpu"))()
