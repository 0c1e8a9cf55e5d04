"""Sequences end to end: real threads and worker processes, several callers at once."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes import TIMEOUT, threads
from tests.sequence_models import Adder, ByRow, Growing, Stateless
from wherry import (
    InvalidRequest,
    ModelFailed,
    Runtime,
    SequenceLost,
    SequenceStep,
    WherryError,
    WorkerDied,
)
from wherry.core.models.settings import Isolation, ModelSettings


@pytest.fixture(
    params=["thread", pytest.param("process", marks=pytest.mark.slow)],
)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    kind: Isolation = request.param
    return kind


def first(id: int | str) -> SequenceStep:
    return SequenceStep(id, start=True)


def last(id: int | str) -> SequenceStep:
    return SequenceStep(id, end=True)


def test_a_model_keeps_what_it_knows_of_a_sequence(isolation: Isolation) -> None:
    with Runtime(Adder(), isolation=isolation) as runtime:
        assert runtime.infer("adder", 1, sequence_step=first("a")) == 1
        assert runtime.infer("adder", 10, sequence_step=first(7)) == 10
        assert runtime.infer("adder", 2, sequence_step=SequenceStep("a")) == 3
        assert runtime.infer("adder", 5, sequence_step=first(7)) == 5
        assert runtime.infer("adder", 3, sequence_step=last("a")) == 6
        with pytest.raises(InvalidRequest, match="must specify the START flag"):
            runtime.infer("adder", 4, sequence_step=SequenceStep("a"))


@pytest.mark.parametrize("step", [None, SequenceStep(0), SequenceStep("")])
def test_a_request_without_an_id_is_refused_in_tritons_words(step: SequenceStep | None) -> None:
    with Runtime(Adder()) as runtime, pytest.raises(InvalidRequest) as caught:
        runtime.infer("adder", 1, sequence_step=step)
    assert str(caught.value) == (
        "inference request to model 'adder' must specify a non-zero or non-empty correlation ID"
    )


def test_a_step_has_one_row() -> None:
    with Runtime(Adder()) as runtime:
        loaded = runtime.model("adder")
        with pytest.raises(InvalidRequest, match="must specify batch-size 1 due to"):
            loaded.request({"x": [1, 2]}, 2, None, sequence=first(1))  # type: ignore[arg-type]


def test_nobody_sends_the_controls_and_nobody_sees_the_states() -> None:
    with Runtime(Adder(), Stateless()) as runtime:
        assert [spec.name for spec in runtime.model("adder").signature.inputs] == ["x"]
        stateless = runtime.model("stateless").signature
        assert [spec.name for spec in stateless.inputs] == ["x"]
        assert [spec.name for spec in stateless.outputs] == ["total"]
        with pytest.raises(InvalidRequest, match="has no input 'start'"):
            runtime.infer("adder", x=1, start=True, sequence_step=first(1))


def test_an_id_that_the_model_cannot_be_told_is_refused() -> None:
    with Runtime(ByRow()) as runtime:
        for bad in ("text", 2**64, -1):
            with pytest.raises(InvalidRequest, match="sequence id"):
                runtime.infer("by_row", [1], sequence_step=first(bad))


def test_rows_are_slots_and_say_if_they_have_anything_to_run(isolation: Isolation) -> None:
    with Runtime(ByRow(), isolation=isolation) as runtime:
        for id in (1, 2, 3):
            runtime.infer("by_row", [id], sequence_step=first(id))
        told = runtime.infer("by_row", [9], sequence_step=last(3))
        assert told["told"] == "3:33:9;"
        assert runtime.infer("by_row", [5], sequence_step=last(1))["told"] == "1:11:5;"
        counted = runtime.model("by_row").statistics
        assert counted.inference_count == 5, "rows that were not ready are nobody's"
        assert counted.success.count == 5
        assert max(counted.batch_sizes) == 3, "but they run"


def test_the_server_keeps_the_states_between_the_steps(isolation: Isolation) -> None:
    with Runtime(Stateless(), isolation=isolation) as runtime:
        one = runtime.infer("stateless", [1, 2], sequence_step=first("a"))
        assert list(one) == ["total"]
        assert one["total"].tolist() == [101, 2]
        runtime.infer("stateless", [50, 50], sequence_step=first("b"))
        assert runtime.infer("stateless", [1, 1], sequence_step=SequenceStep("a"))[
            "total"
        ].tolist() == [
            102,
            3,
        ]
        again = runtime.infer("stateless", [0, 0], sequence_step=first("a"))
        assert again["total"].tolist() == [100, 0]


def test_states_may_grow(isolation: Isolation) -> None:
    async def walk(runtime: Runtime, id: int, steps: int) -> list[int]:
        return [
            (
                await runtime.ainfer(
                    "growing",
                    [0.0],
                    sequence_step=SequenceStep(id, start=n == 0, end=n == steps - 1),
                )
            )["length"]
            for n in range(steps)
        ]

    async def main(runtime: Runtime) -> list[list[int]]:
        return await asyncio.gather(*(walk(runtime, id, 3 + id % 4) for id in range(1, 13)))

    with Runtime(Growing(), isolation=isolation) as runtime:
        lengths = asyncio.run(main(runtime))
    assert lengths == [list(range(1, 4 + id % 4)) for id in range(1, 13)]


def test_many_callers_over_several_instances_each_get_their_own_sums(isolation: Isolation) -> None:
    with Runtime(Adder(), isolation=isolation, overrides={"adder": {"instances": 2}}) as runtime:

        def walk(number: int) -> None:
            chance = random.Random(number)
            for turn in range(6):
                id = f"{number}/{turn}"
                values = [chance.randint(0, 99) for _ in range(chance.randint(1, 8))]
                sums = [
                    runtime.infer(
                        "adder",
                        value,
                        sequence_step=SequenceStep(id, start=n == 0, end=n == len(values) - 1),
                    )
                    for n, value in enumerate(values)
                ]
                assert sums == np.cumsum(values).tolist()

        with threads(12, walk):  # more sequences than there are slots
            pass
        assert runtime.model("adder").runner.explain()["open_sequences"] == 0


def test_a_step_that_raises_fails_alone_is_not_run_twice_and_the_sequence_goes_on() -> None:
    with Runtime(Adder()) as runtime:
        runtime.infer("adder", 1, sequence_step=first("a"))
        with pytest.raises(ModelFailed):
            runtime.infer("adder", -1, sequence_step=SequenceStep("a"))
        assert runtime.infer("adder", 2, sequence_step=SequenceStep("a")) == 3
        assert runtime.model("adder").statistics.execution_count == 3


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_sequences_along_and_says_so() -> None:
    async def main(runtime: Runtime) -> list[Any]:
        steps = [(-9, SequenceStep("a")), (2, SequenceStep("a")), (3, last("a")), (4, first("a"))]
        return await asyncio.gather(
            *(runtime.ainfer("adder", x, sequence_step=step) for x, step in steps),
            return_exceptions=True,
        )

    with Runtime(Adder(), isolation="process") as runtime:
        runtime.infer("adder", 1, sequence_step=first("a"))
        died, lost, also_lost, new = asyncio.run(main(runtime))
        assert isinstance(died, WorkerDied)
        assert isinstance(lost, SequenceLost)
        assert isinstance(also_lost, SequenceLost)
        assert new == 4
        assert runtime.infer("adder", 1, sequence_step=SequenceStep("a")) == 5


@pytest.mark.slow
def test_whatever_dies_leaves_or_is_late_nobody_waits_for_ever_and_no_sum_is_wrong() -> None:
    async def walk(runtime: Runtime, number: int) -> None:
        chance = random.Random(number)
        for turn in range(12):
            id = f"{number}/{turn}"
            total = 0
            for n in range(chance.randint(1, 6)):
                dies = (number, turn, n) in [(1, 2, 1), (13, 6, 0)]
                value = -9 if dies else chance.randint(0, 9)
                total += value
                step = SequenceStep(id, start=n == 0, end=chance.random() < 0.2)
                timeout = 0.002 if chance.random() < 0.05 else None
                call = asyncio.ensure_future(
                    runtime.ainfer("adder", value, sequence_step=step, timeout=timeout)
                )
                if chance.random() < 0.05:
                    await asyncio.sleep(0)
                    call.cancel()
                try:
                    assert await call == total
                except (WherryError, asyncio.CancelledError):
                    break
                if step.end:
                    break

    async def main(runtime: Runtime) -> None:
        await asyncio.gather(*(walk(runtime, n) for n in range(24)))  # pytest-timeout ends a hang

    # Most are never ended: what is idle must go soon.
    brief = replace(Adder.sequence, max_sequence_idle=0.1)
    settings: ModelSettings = {"instances": 2, "crash_budget": 1000, "sequence": brief}
    with Runtime(Adder(), isolation="process", overrides={"adder": settings}) as runtime:
        asyncio.run(main(runtime))
        runner = runtime.model("adder").runner
        assert runner.drain(TIMEOUT)
        assert runner.queued_requests == 0


def test_a_caller_that_leaves_breaks_its_own_sequence_only() -> None:
    async def main(runtime: Runtime) -> None:
        loaded = runtime.model("adder")
        tasks = [
            asyncio.ensure_future(
                runtime.ainfer("adder", 1, sequence_step=SequenceStep("a", start=n == 0))
            )
            for n in range(3)
        ]
        other = asyncio.ensure_future(runtime.ainfer("adder", 5, sequence_step=first("b")))
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, other, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[3] == 5
        assert loaded.runner.queued_requests == 0

    with Runtime(Adder()) as runtime:
        asyncio.run(main(runtime))
