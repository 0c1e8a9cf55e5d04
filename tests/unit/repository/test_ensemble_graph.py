from __future__ import annotations

import pytest

from wherry.repository.ensemble_graph import decoupled, graph_problems, member_problems, members
from wherry.repository.triton_config import (
    TritonConfig,
    TritonEnsembling,
    TritonEnsemblingStep,
    TritonInput,
    TritonOutput,
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


def member(name: str, *, data_type: str = "TYPE_FP32", max_batch_size: int = 8) -> TritonConfig:
    return TritonConfig(
        name=name,
        max_batch_size=max_batch_size,
        input=[TritonInput(name="x", data_type=data_type, dims=[2])],  # type: ignore[arg-type]
        output=[TritonOutput(name="y", data_type=data_type, dims=[2])],  # type: ignore[arg-type]
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
        ({"a": member("a")}, "step[1] (b): there is no such model"),
        (
            {**MODELS, "b": member("b", max_batch_size=2)},
            "step[1] (b): its max_batch_size is 2, less than the ensemble's 4",
        ),
        (
            {**MODELS, "b": member("b", data_type="TYPE_INT64")},
            "step[1] (b): tensor 'MID' is TYPE_FP32 elsewhere, TYPE_INT64 here",
        ),
    ],
)
def test_members_that_do_not_fit_are_named(models: dict[str, TritonConfig], problem: str) -> None:
    assert problem in member_problems(CHAIN, models.get)


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
