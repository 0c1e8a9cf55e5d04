"""server/grpc/work.py: what a turn of the loop has room for, and a client between two sweeps."""

import asyncio

import pytest

from tests.unit.server.grpc.raw import looped
from wherry.server.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault
from wherry.server.grpc.work import (
    CALL_WORK,
    MAX_NOISE,
    MAX_RESETS,
    TURN_WORK,
    ClientWork,
    TurnBudget,
)


@looped
async def test_each_turn_has_its_work_anew() -> None:
    budget = TurnBudget()
    assert budget.share == TURN_WORK
    budget.spend(TURN_WORK)
    assert budget.is_spent
    assert budget.share == CALL_WORK  # one call may always be begun
    await asyncio.sleep(0)
    assert not budget.is_spent
    assert budget.share == TURN_WORK


@looped
async def test_what_goes_on_in_the_next_turn_has_its_share_of_this_one() -> None:
    budget, called = TurnBudget(), list[int]()
    for n in range(3):
        budget.later(lambda n=n: called.append(n))  # type: ignore[misc]
    assert (budget.behind, called) == (3, [])
    assert budget.share == TURN_WORK // 4
    await asyncio.sleep(0)
    assert (budget.behind, called) == (0, [0, 1, 2])


@looped
async def test_the_work_of_a_read_is_spent_when_it_ends() -> None:
    budget = TurnBudget()
    work = ClientWork(budget)
    work.begin_turn()
    assert work.share == TURN_WORK
    work.done += 500
    budget.spend(work.done)
    assert budget.share == TURN_WORK - 500
    await asyncio.sleep(0)


def test_resets_and_noise_have_a_limit_each() -> None:
    work = ClientWork(TurnBudget())
    work.note_reset(MAX_RESETS)
    work.note_noise(MAX_NOISE)
    for note in (work.note_reset, work.note_noise):
        with pytest.raises(ConnectionFault) as caught:
            note()
        assert caught.value.code == ENHANCE_YOUR_CALM


def test_a_sweep_begins_to_count_anew() -> None:
    work = ClientWork(TurnBudget())
    for _ in range(3):
        work.note_reset(MAX_RESETS)
        work.note_noise(MAX_NOISE)
        work.sweep()
