"""What a user writes for a model that works in steps, and what is wrong if it is not that."""

from dataclasses import dataclass
from typing import Any

import pytest

import wherry


@dataclass
class Counter:
    left: int


class Countdown(wherry.StepModel):
    max_batch_size = 4

    def start(self, n: int, label: str = "") -> Counter:
        return Counter(n)

    def step(self, active: list[Counter]) -> list[wherry.Step[int]]:
        for counter in active:
            counter.left -= 1
        return [wherry.Step([c.left], done=not c.left) for c in active]


def test_inputs_are_those_of_start_and_responses_those_of_step() -> None:
    signature = Countdown().signature("countdown")
    assert [(spec.name, spec.optional) for spec in signature.inputs] == [
        ("n", False),
        ("label", True),
    ]
    assert [str(spec.datatype) for spec in signature.outputs] == ["INT64"]
    assert signature.streams
    assert signature.row_wise


def test_max_batch_size_counts_requests() -> None:
    assert Countdown().config().max_batch_size == 4
    with pytest.raises(wherry.ConfigError, match="max_batch_size must be at least 1"):
        Countdown().config(max_batch_size=0)


def test_a_missing_method_is_named() -> None:
    class NoStep(wherry.StepModel):
        def start(self, n: int) -> int:
            return n

    class NoStart(wherry.StepModel):
        def step(self, active: list[int]) -> list[wherry.Step[int]]:
            return []

    with pytest.raises(wherry.ConfigError, match=r"'no_step': NoStep has no step\(\) method"):
        NoStep().config()
    with pytest.raises(wherry.ConfigError, match=r"NoStart has no start\(\) method"):
        NoStart().config()


def test_annotations_that_do_not_say_enough_are_refused() -> None:
    class Vague(wherry.StepModel):
        def start(self, n: int) -> int:
            return n

        def step(self, active: list[int]) -> list[Any]:
            return []

    class Columns(wherry.StepModel):
        def start(self, n: list[int]) -> int:
            return 0

        def step(self, active: list[int]) -> list[wherry.Step[int]]:
            return []

    with pytest.raises(wherry.ConfigError, match=r"list\[wherry.Step\[str\]\]"):
        Vague().config()
    with pytest.raises(wherry.ConfigError, match="takes one row"):
        Columns().config()


def test_in_a_runtime_its_responses_stream() -> None:
    with wherry.Runtime(Countdown()) as runtime:
        assert list(runtime.stream("countdown", 3)) == [2, 1, 0]
        with pytest.raises(wherry.Unsupported, match="use stream"):
            runtime.infer("countdown", 3)
