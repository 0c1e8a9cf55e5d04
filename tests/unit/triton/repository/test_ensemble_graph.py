from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from wherry.triton.repository.ensemble_graph import (
    decoupled,
    graph_problems,
    member_problems,
    members,
)
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonEnsembling,
    TritonEnsemblingStep,
    TritonInput,
    TritonOutput,
    TritonTensorReshape,
    TritonTransactionPolicy,
)


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> TritonEnsemblingStep:
    return TritonEnsemblingStep(model_name=model, input_map=inputs, output_map=outputs)


def ensemble(*steps: TritonEnsemblingStep, max_batch_size: int = 4) -> TritonConfig:
    return TritonConfig(
        name="e",
        platform="ensemble",
        max_batch_size=max_batch_size,
        input=[TritonInput(name="IN", data_type="TYPE_FP32", dims=[2])],
        output=[TritonOutput(name="OUT", data_type="TYPE_FP32", dims=[2])],
        ensemble_scheduling=TritonEnsembling(step=list(steps)),
    )


def member(
    name: str,
    *,
    data_type: str = "TYPE_FP32",
    max_batch_size: int = 8,
    dims: Sequence[int] = (2,),
) -> TritonConfig:
    told: dict[str, Any] = {"data_type": data_type, "dims": [*dims]}
    return TritonConfig(
        name=name,
        max_batch_size=max_batch_size,
        input=[TritonInput(name="x", **told)],
        output=[TritonOutput(name="y", **told)],
    )


CHAIN = ensemble(step("a", {"x": "IN"}, {"y": "MID"}), step("b", {"x": "MID"}, {"y": "OUT"}))
MODELS = {"a": member("a"), "b": member("b")}


def test_a_chain_is_fine() -> None:
    assert graph_problems(CHAIN) == []
    assert member_problems(CHAIN, MODELS.get) == []
    assert members(CHAIN) == ["a", "b"]
    assert not decoupled(CHAIN, MODELS.get)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ensemble(), "needs ensemble_scheduling"),
        (ensemble(step("a", {"x": "IM"}, {"y": "OUT"})), "nothing gives the tensor 'IM'; did you"),
        (ensemble(step("a", {"x": "IN"}, {"y": "ELSE"})), "output 'OUT': nothing gives"),
        (ensemble(step("a", {}, {"y": "OUT"})), "input_map is missing"),
        (ensemble(step("", {"x": "IN"}, {"y": "OUT"})), "model_name is missing"),
        (
            ensemble(step("a", {"x": "IN"}, {"y": "OUT"}), step("b", {"x": "IN"}, {"y": "OUT"})),
            "'OUT' is an output of step\\[0\\] \\(a\\) already",
        ),
        (
            ensemble(step("a", {"x": "Q"}, {"y": "OUT"}), step("b", {"x": "OUT"}, {"y": "Q"})),
            "the steps a, b wait for each other's tensors",
        ),
    ],
)
def test_a_graph_that_cannot_run_says_where(config: TritonConfig, problem: str) -> None:
    problems = graph_problems(config)
    assert len(problems) == 1
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(problems[0])


@pytest.mark.parametrize(
    ("models", "problem"),
    [
        ({"a": member("a")}, "step[1] (b): no such model"),
        (
            {**MODELS, "b": member("b", max_batch_size=2)},
            "step[1] (b): its max_batch_size is 2, less than the ensemble's 4",
        ),
        (
            {**MODELS, "b": member("b", data_type="TYPE_INT64")},
            "step[1] (b): tensor 'MID' is TYPE_FP32 elsewhere, TYPE_INT64 here",
        ),
        (
            {**MODELS, "b": member("b", dims=(3,))},
            "step[1] (b): tensor 'MID' is of shape [-1, 2] elsewhere, [-1, 3] here",
        ),
        (
            {**MODELS, "b": member("b", dims=(-1, 2))},
            "step[1] (b): tensor 'OUT' is of shape [-1, 2] elsewhere, [-1, -1, 2] here",
        ),
        (
            {**MODELS, "b": member("b", dims=(4, 3), max_batch_size=0)},
            "step[1] (b): tensor 'MID' is of shape [-1, 2] elsewhere, [4, 3] here",
        ),
    ],
)
def test_members_that_do_not_fit_are_named(models: dict[str, TritonConfig], problem: str) -> None:
    assert problem in member_problems(CHAIN, models.get)


@pytest.mark.parametrize(
    ("dims", "max_batch_size"),
    [((2,), 8), ((-1,), 8), ((2,), 0), ((-1, 2), 0), ((4, 2), 0), ((-1, -1), 0)],
)
def test_shapes_that_may_agree_fit(dims: Sequence[int], max_batch_size: int) -> None:
    """A member without batches has a row, or a batch as its own first dimension."""
    models = {**MODELS, "b": member("b", dims=dims, max_batch_size=max_batch_size)}
    assert member_problems(CHAIN, models.get) == []


def test_an_ensemble_s_own_tensors_have_the_shape_that_they_are_brought_to() -> None:
    config = ensemble(step("a", {"x": "IN"}, {"y": "OUT"}))
    config.input[0].dims = [2, 1]
    problem = "step[0] (a): tensor 'IN' is of shape [-1, 2, 1] elsewhere, [-1, 2] here"
    assert member_problems(config, MODELS.get) == [problem]
    config.input[0].reshape = TritonTensorReshape(shape=[2])
    assert member_problems(config, MODELS.get) == []


def test_a_tensor_that_a_member_does_not_have_is_named_with_a_guess() -> None:
    config = ensemble(step("a", {"xx": "IN"}, {"y": "OUT"}))
    assert member_problems(config, MODELS.get) == [
        "step[0] (a): the model has no input 'xx'; did you mean 'x'?",
        "step[0] (a): its input 'x' is not in input_map",
    ]


def test_a_member_of_a_member_that_streams_makes_the_ensemble_stream() -> None:
    streaming = member("b")
    streaming.model_transaction_policy = TritonTransactionPolicy(decoupled=True)
    outer = ensemble(step("e", {"IN": "IN"}, {"OUT": "OUT"}))
    assert decoupled(outer, {**MODELS, "b": streaming, "e": CHAIN}.get)
