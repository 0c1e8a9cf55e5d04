"""frontends/grpc/turn_budget.py: what has much to do shares each turn of the loop."""

import asyncio

from tests.unit.frontends.grpc.raw import looped
from wherry.frontends.grpc.turn_budget import CALL_WORK, TURN_WORK, ReadTurn, TurnBudget


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
    turn = ReadTurn(budget)
    turn.begin()
    assert turn.share == TURN_WORK
    turn.work += 500
    turn.end()
    assert budget.share == TURN_WORK - 500
    await asyncio.sleep(0)
