"""The time of a step is the device's, which computes long after it was given the calls."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import pytest
import torch
from torch import Tensor

from wherry.llm.engine.engine import Engine
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.sequence import Sequence

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
