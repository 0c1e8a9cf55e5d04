"""A step of a user's model that finds no memory is done by halves, and ends no other request."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import wherry
from wherry.core.instances.step_loop import STEPS_OF_CAUTION, StepLoop
from wherry.core.instances.worker_protocol import Share


@pytest.fixture(autouse=True)
def _only_what_a_test_makes_is_collected() -> None:
    """Late in a run a collection of all that other tests have left takes a second, in each step.

    It stays so: to unfreeze would be for all that collecting the tests has made, too.
    """
    gc.freeze()


class Memory(bytearray):
    """What a step has computed before it finds no more."""


class Diffusion(wherry.StepModel):
    """Counts down; there is memory for `fits` requests at once, and for none above 1,000."""

    max_batch_size = 16

    def __init__(self, fits: int, error: Exception | None = None) -> None:
        self.fits = fits
        self.error = error or MemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        self.calls: list[int] = []
        self.failed = 0
        self.stopped: list[list[int]] = []
        self.held: list[weakref.ref[Memory]] = []

    def start(self, n: int) -> list[int]:
        return [n]

    def step(self, active: list[list[int]]) -> list[wherry.Step[int]]:
        gc.collect()
        assert not any(one() for one in self.held), "memory of a failed call is held"
        latents = Memory(9)
        self.held.append(weakref.ref(latents))
        if len(active) > self.fits or any(left[0] > 1000 for left in active):
            self.failed += 1
            raise type(self.error)(*self.error.args)
        self.calls.append(len(active))
        for left in active:
            left[0] -= 1
        del self.held[-1]
        return [wherry.Step([left[0]], done=left[0] == 0) for left in active]

    def stop(self, state: list[int]) -> None:
        self.stopped.append(state)


def loop_of(model: Diffusion, *counts: int) -> StepLoop:
    loop = StepLoop(model, model.config())
    for key, count in enumerate(counts):
        assert loop.join(key, {"n": np.array([count])}) is None
    return loop


def finish(loop: StepLoop) -> dict[int, list[Any]]:
    """The responses of each request, or what it has failed with."""
    found: dict[int, list[Any]] = {}
    shares: list[Share]
    while loop.active_requests:
        keys = list(loop._active)
        shares = loop.step()
        assert [share.key for share in shares] == keys
        for share in shares:
            own = found.setdefault(share.key, [])
            own += [int(one["output"][0]) for one in share.responses]
            if share.failure is not None:
                own.append(share.failure.message)
    return found


@pytest.mark.parametrize("fits", [15, 8, 3, 1])
def test_requests_go_on_in_as_many_calls_as_there_is_memory_for(fits: int) -> None:
    model = Diffusion(fits)
    counts = [5 + number % 3 for number in range(16)]
    found = finish(loop_of(model, *counts))
    assert found == {key: [*reversed(range(count))] for key, count in enumerate(counts)}
    assert max(model.calls) <= fits
    assert 0 < model.failed < 16  # and not at each step
    assert model.stopped == []


def test_one_that_finds_no_memory_alone_ends_alone() -> None:
    model = Diffusion(16)
    found = finish(loop_of(model, 3, 3, 2000, 3, 3))
    (message,) = found.pop(2)
    assert "CUDA out of memory. Tried to allocate 2 GiB" in message
    assert found == {key: [2, 1, 0] for key in (0, 1, 3, 4)}
    assert model.stopped == [[2000]]
    assert model.calls[-1] == 4


def test_when_there_is_memory_again_all_share_a_call_again() -> None:
    model = Diffusion(2)
    loop = loop_of(model, *[900] * 8)
    loop.step()
    model.fits = 16
    for _ in range(3 * STEPS_OF_CAUTION):
        loop.step()
    assert model.calls[-1] == 8
    assert model.calls.count(4) > STEPS_OF_CAUTION


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] can't allocate memory"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_what_is_no_lack_of_memory_ends_them_all_at_once(error: Exception, goes_on: bool) -> None:
    model = Diffusion(4, error)
    found = finish(loop_of(model, *[3] * 8))
    if goes_on:
        assert found == {key: [2, 1, 0] for key in range(8)}
    else:
        assert model.failed == 1
        assert all("cannot be multiplied" in one for (one,) in found.values())
        assert len(found) == 8
