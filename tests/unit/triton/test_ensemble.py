from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.core.values.errors import DeadlineExceeded, InvalidRequest, ModelFailed, ModelNotReady
from wherry.core.values.request import Columns, InferResponse
from wherry.triton.ensemble import EnsembleModel
from wherry.triton.repository.triton_config import (
    TritonConfig,
    TritonEnsembling,
    TritonEnsemblingStep,
    TritonInput,
    TritonOutput,
    TritonTransactionPolicy,
)

Pair = Annotated[np.ndarray, wherry.FP32[2]]
Open = Annotated[np.ndarray, wherry.FP32[-1]]


@wherry.model(max_batch_size=8)
def double(x: Pair) -> Pair:
    return 2 * x


@wherry.model(max_batch_size=8)
def increment(x: Pair) -> Pair:
    return x + 1


@wherry.model(max_batch_size=8)
def both(left: Pair, right: Pair) -> Pair:
    difference: np.ndarray = left - right
    return difference


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> TritonEnsemblingStep:
    return TritonEnsemblingStep(model_name=model, input_map=inputs, output_map=outputs)


def ensemble(
    *steps: TritonEnsemblingStep,
    outputs: tuple[str, ...] = ("OUT",),
    decoupled: bool = False,
    max_batch_size: int = 8,
    most: int = 0,
    optional: bool = False,
) -> EnsembleModel:
    dims = [2] if max_batch_size else [-1, 2]
    return EnsembleModel(
        "/nowhere",
        "1",
        TritonConfig(
            name="e",
            platform="ensemble",
            max_batch_size=max_batch_size,
            input=[TritonInput(name="IN", data_type="TYPE_FP32", dims=dims, optional=optional)],
            output=[TritonOutput(name=name, data_type="TYPE_FP32", dims=dims) for name in outputs],
            ensemble_scheduling=TritonEnsembling(step=list(steps), max_inflight_requests=most),
            model_transaction_policy=TritonTransactionPolicy(decoupled=decoupled),
        ),
    )


ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
DIAMOND = (
    step("both", {"left": "TWICE", "right": "MORE"}, {"output": "OUT"}),
    step("double", {"x": "IN"}, {"output": "TWICE"}),
    step("increment", {"x": "IN"}, {"output": "MORE"}),
)


def test_tensors_flow_through_the_steps_whatever_their_order() -> None:
    with wherry.Runtime(ensemble(*DIAMOND), both, double, increment) as runtime:
        outputs = runtime.infer_batch("e", IN=ROWS)
    np.testing.assert_array_equal(outputs["OUT"], 2 * ROWS - (ROWS + 1))


def test_a_request_without_any_of_its_optional_inputs_is_one_row() -> None:
    @wherry.model(max_batch_size=8)
    def zeros(x: Pair | None = None) -> Pair:
        return np.zeros((1, 2), np.float32) if x is None else x

    step_of = step("zeros", {"x": "IN"}, {"output": "OUT"})
    with wherry.Runtime(zeros, ensemble(step_of, optional=True)) as runtime:
        assert runtime.infer("e")["OUT"].tolist() == [0, 0]
        assert runtime.infer("e", ROWS[0])["OUT"].tolist() == [1, 2]


def test_steps_that_do_not_need_each_other_run_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=TIMEOUT)

    @wherry.model(max_batch_size=8)
    def one(x: Pair) -> Pair:
        together.wait()
        return x

    @wherry.model(max_batch_size=8)
    def other(x: Pair) -> Pair:
        together.wait()
        return x

    model = ensemble(
        step("one", {"x": "IN"}, {"output": "L"}),
        step("other", {"x": "IN"}, {"output": "R"}),
        step("both", {"left": "L", "right": "R"}, {"output": "OUT"}),
    )
    with wherry.Runtime(model, one, other, both) as runtime:
        np.testing.assert_array_equal(runtime.infer_batch("e", IN=ROWS)["OUT"], 0 * ROWS)


def test_a_step_may_write_into_a_tensor_that_others_have() -> None:
    @wherry.model(max_batch_size=8)
    def negate(x: Pair) -> Pair:
        x *= -1
        return x

    kept: list[np.ndarray] = []

    @wherry.model(max_batch_size=8)
    def keep(x: Pair) -> Pair:
        for old in kept:
            old[:] = 99
        kept.append(x)
        return x + 1

    model = ensemble(
        step("double", {"x": "IN"}, {"output": "TWICE"}),
        step("negate", {"x": "TWICE"}, {"output": "NEGATIVE"}),
        step("keep", {"x": "TWICE"}, {"output": "MORE"}),
        outputs=("TWICE", "NEGATIVE", "MORE"),
    )
    with wherry.Runtime(model, double, negate, keep) as runtime:
        answers = [runtime.infer("e", IN=row) for row in ROWS]
    for row, answer in zip(ROWS, answers, strict=True):
        np.testing.assert_array_equal(answer["TWICE"], 2 * row)
        np.testing.assert_array_equal(answer["NEGATIVE"], -2 * row)
        np.testing.assert_array_equal(answer["MORE"], 2 * row + 1)


def test_a_tensor_that_several_responses_have_is_each_ones_own() -> None:
    @wherry.model(max_batch_size=8)
    def count(x: Pair) -> Iterator[Pair]:
        for n in range(3):
            yield x + n

    @wherry.model(max_batch_size=1)
    def add(x: Pair, to: Pair) -> Pair:
        to += x
        return to

    model = ensemble(
        step("double", {"x": "IN"}, {"output": "TWICE"}),
        step("count", {"x": "IN"}, {"output": "COUNT"}),
        step("add", {"x": "COUNT", "to": "TWICE"}, {"output": "SUM"}),
        outputs=("TWICE", "SUM"),
        decoupled=True,
    )
    found = []
    with wherry.Runtime(model, double, count, add) as runtime:
        for response in runtime.stream("e", IN=ROWS[0]):
            found.append([response["TWICE"].tolist(), response["SUM"].tolist()])
            response["TWICE"][:] = 99
    assert found == [[[2, 4], [3 + n, 6 + n]] for n in range(3)]


def test_a_step_that_nobody_wants_is_not_run() -> None:
    @wherry.model(max_batch_size=8)
    def forbidden(x: Pair) -> Pair:
        raise AssertionError("nobody asked for this")

    model = ensemble(
        step("double", {"x": "IN"}, {"output": "OUT"}),
        step("forbidden", {"x": "OUT"}, {"output": "OTHER"}),
        outputs=("OUT", "OTHER"),
    )

    async def main(runtime: wherry.Runtime) -> InferResponse:
        return await runtime.answer(runtime.model("e"), {"IN": ROWS}, 3, requested_outputs=("OUT",))

    with wherry.Runtime(model, double, forbidden) as runtime:
        response = asyncio.run(main(runtime))
        assert list(response.outputs) == ["OUT"]
        with pytest.raises(ModelFailed, match="nobody asked"):
            runtime.infer_batch("e", IN=ROWS)


def test_a_failing_step_fails_the_request_with_its_own_words_and_the_next_is_fine() -> None:
    @wherry.model(max_batch_size=8)
    def picky(x: Pair) -> Pair:
        if (x > 5).any():
            raise ValueError("too large")
        return x

    with wherry.Runtime(ensemble(step("picky", {"x": "IN"}, {"output": "OUT"})), picky) as runtime:
        with pytest.raises(
            ModelFailed, match=r"^in ensemble 'e', model 'picky' failed: ValueError: too large"
        ):
            runtime.infer_batch("e", IN=ROWS)
        np.testing.assert_array_equal(runtime.infer_batch("e", IN=ROWS[:1])["OUT"], ROWS[:1])


def test_an_error_of_a_batch_names_the_ensemble_of_each_request_that_came_by_one() -> None:
    arrived = threading.Barrier(2)

    @wherry.model(max_batch_size=2, max_queue_delay=60)
    def picky(x: Pair) -> Pair:
        raise InvalidRequest("too large", field="x")

    model = ensemble(step("picky", {"x": "IN"}, {"output": "OUT"}))
    with wherry.Runtime(model, picky) as runtime:

        def told(name: str, **columns: Any) -> InvalidRequest:
            arrived.wait()
            with pytest.raises(InvalidRequest) as refused:
                runtime.infer_batch(name, **columns)
            return refused.value

        with ThreadPoolExecutor(2) as pool:
            through = pool.submit(told, "e", IN=ROWS[:1])
            direct = pool.submit(told, "picky", x=ROWS[:1])
            errors = through.result(), direct.result()
    assert [error.field for error in errors] == ["x", "x"]
    assert str(errors[0]) == f"in ensemble 'e', {errors[1]}"
    assert "too large" in str(errors[1])
    assert "ensemble" not in str(errors[1])


def test_a_member_that_is_not_loaded_makes_it_not_ready() -> None:
    with (
        wherry.Runtime(ensemble(*DIAMOND), both, double) as runtime,
        pytest.raises(ModelNotReady, match=r"ensemble 'e'.*'increment' is not found"),
    ):
        runtime.infer_batch("e", IN=ROWS)


def test_a_row_that_does_not_fit_the_next_step_names_both() -> None:
    @wherry.model(max_batch_size=8)
    def narrow(x: Annotated[np.ndarray, wherry.FP32[1]]) -> Pair:
        raise AssertionError("never called")

    with (
        wherry.Runtime(ensemble(step("narrow", {"x": "IN"}, {"output": "OUT"})), narrow) as runtime,
        pytest.raises(InvalidRequest, match=r"step 'narrow': a row of 'x' has shape \[2\]"),
    ):
        runtime.infer_batch("e", IN=ROWS)


def test_without_a_batch_dimension_the_first_one_is_the_members_batch() -> None:
    model = ensemble(*DIAMOND, max_batch_size=0)
    with wherry.Runtime(model, both, double, increment) as runtime:
        result = runtime.infer("e", IN=ROWS)
    np.testing.assert_array_equal(result["OUT"], ROWS - 1)


@wherry.model(max_batch_size=8)
def open_double(x: Open) -> Open:
    assert x.ndim == 2
    return 2 * x


@wherry.model(max_batch_size=0)
def whole(x: Open) -> Open:
    assert x.ndim == 1
    return x + 1


@pytest.mark.parametrize(
    "steps",
    [
        (step("open_double", {"x": "IN"}, {"output": "OUT"}),),
        (
            step("open_double", {"x": "IN"}, {"output": "MORE"}),
            step("whole", {"x": "MORE"}, {"output": "OUT"}),
        ),
        (
            step("whole", {"x": "IN"}, {"output": "MORE"}),
            step("open_double", {"x": "MORE"}, {"output": "OUT"}),
        ),
    ],
)
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [5.0], []])
def test_a_row_is_a_batch_of_one_between_models_with_and_without_a_batch_dimension(
    steps: tuple[TritonEnsemblingStep, ...], values: list[float]
) -> None:
    triton = TritonConfig(
        name="e",
        platform="ensemble",
        input=[TritonInput(name="IN", data_type="TYPE_FP32", dims=[-1])],
        output=[TritonOutput(name="OUT", data_type="TYPE_FP32", dims=[-1])],
        ensemble_scheduling=TritonEnsembling(step=list(steps)),
    )
    given = np.array(values, np.float32)
    expected = {("open_double",): 2 * given, ("open_double", "whole"): 2 * given + 1}
    names = tuple(one.model_name for one in steps)
    model = EnsembleModel("/nowhere", "1", triton)
    with wherry.Runtime(model, open_double, whole) as runtime:
        result = np.asarray(runtime.infer("e", IN=given)["OUT"])
    np.testing.assert_array_equal(result, expected.get(names, 2 * (given + 1)))


def test_a_scalar_of_a_model_without_a_batch_dimension_is_an_array() -> None:
    @wherry.model(max_batch_size=0)
    def third(x: float) -> float:
        return x / 3

    @wherry.model(max_batch_size=0)
    def half(x: float) -> float:
        return x / 2

    model = EnsembleModel(
        "/nowhere",
        "1",
        TritonConfig(
            name="e",
            platform="ensemble",
            input=[TritonInput(name="IN", data_type="TYPE_FP64", dims=[1])],
            output=[TritonOutput(name="OUT", data_type="TYPE_FP64", dims=[1])],
            ensemble_scheduling=TritonEnsembling(
                step=[
                    step("third", {"x": "IN"}, {"output": "A"}),
                    step("half", {"x": "A"}, {"output": "OUT"}),
                ]
            ),
        ),
    )
    with wherry.Runtime(model, third, half) as runtime:
        assert np.ravel(runtime.infer_batch("e", IN=np.array([[12.0]]))["OUT"]).tolist() == [2.0]


def test_strings_cross_between_models_with_and_without_a_batch_dimension() -> None:
    @wherry.model(max_batch_size=8)
    def loud(x: list[bytes]) -> list[bytes]:
        return [text.upper() for text in x]

    def strings(max_batch_size: int, dims: list[int]) -> EnsembleModel:
        return EnsembleModel(
            "/nowhere",
            "1",
            TritonConfig(
                name=f"e{max_batch_size}",
                max_batch_size=max_batch_size,
                platform="ensemble",
                input=[TritonInput(name="IN", data_type="TYPE_STRING", dims=dims)],
                output=[TritonOutput(name="OUT", data_type="TYPE_STRING", dims=dims)],
                ensemble_scheduling=TritonEnsembling(
                    step=[step("loud", {"x": "IN"}, {"output": "OUT"})]
                ),
            ),
        )

    def answer(runtime: wherry.Runtime, name: str, columns: Columns, rows: int) -> Any:
        loop_answer = runtime.answer(runtime.model(name), columns, rows)
        return asyncio.run(loop_answer).outputs["OUT"]

    with wherry.Runtime(strings(4, [1]), strings(0, [-1]), loud) as runtime:
        assert answer(runtime, "e4", {"IN": [[b"a"], [b"b"]]}, 2) == [[b"A"], [b"B"]]
        assert answer(runtime, "e0", {"IN": [[b"a", b"b"]]}, 1) == [[b"A", b"B"]]


@wherry.model(max_batch_size=1)
def count(x: Pair) -> Iterator[Pair]:
    for number in range(int(x[0, 0])):
        yield x * 0 + number


async def responses(runtime: wherry.Runtime, row: list[float]) -> list[float]:
    columns: Columns = {"IN": np.array([row], np.float32)}
    async with aclosing(runtime.responses(runtime.model("e"), columns, 1)) as answers:
        return [float(np.asarray(answer.outputs["OUT"])[0, 0]) async for answer in answers]


@pytest.mark.parametrize("most", [0, 1])
def test_each_response_of_a_member_that_streams_flows_on_in_order(most: int) -> None:
    model = ensemble(
        step("double", {"x": "IN"}, {"output": "N"}),
        step("count", {"x": "N"}, {"output": "EACH"}),
        step("both", {"left": "EACH", "right": "IN"}, {"output": "OUT"}),
        decoupled=True,
        max_batch_size=1,
        most=most,
    )
    with wherry.Runtime(model, double, count, both) as runtime:
        assert asyncio.run(responses(runtime, [3, 0])) == [-3, -2, -1, 0, 1, 2]
        assert asyncio.run(responses(runtime, [0, 0])) == []


def test_a_response_does_not_wait_for_the_next_one_of_its_source() -> None:
    """Of a source that takes its time each was late by one."""
    seen = threading.Event()

    @wherry.model(max_batch_size=1)
    def patient(x: Pair) -> Iterator[Pair]:
        yield x
        yield x * 0 + float(seen.wait(5))

    model = ensemble(
        step("patient", {"x": "IN"}, {"output": "EACH"}),
        step("double", {"x": "EACH"}, {"output": "OUT"}),
        decoupled=True,
        max_batch_size=1,
    )
    with wherry.Runtime(model, patient, double) as runtime:
        answers = []
        for row in runtime.stream("e", IN=np.array([3, 0], np.float32)):
            answers.append(float(row["OUT"][0]))
            seen.set()
    assert answers == [6, 2]


def test_an_error_behind_a_stream_ends_it_after_what_was_good() -> None:
    @wherry.model(max_batch_size=1)
    def until_two(x: Pair) -> Pair:
        if x[0, 0] == 2:
            raise ValueError("two")
        return x

    model = ensemble(
        step("count", {"x": "IN"}, {"output": "EACH"}),
        step("until_two", {"x": "EACH"}, {"output": "OUT"}),
        decoupled=True,
        max_batch_size=1,
        most=1,
    )
    with wherry.Runtime(model, count, until_two) as runtime:
        seen: list[float] = []
        stream = runtime.stream("e", IN=np.array([5, 0], np.float32))
        with pytest.raises(ModelFailed, match="two"):
            seen.extend(float(row["OUT"][0]) for row in stream)
    assert seen == [0, 1]


def test_a_members_queue_policy_holds_for_its_ensemble_too() -> None:
    may_answer = threading.Event()

    @wherry.model(max_batch_size=1, queue_policies=(wherry.QueuePolicy(max_queue_size=2),))
    def narrow(x: Pair) -> Pair:
        assert may_answer.wait(10)
        return x

    async def outcomes() -> list[Any]:
        columns: Columns = {"IN": np.array([[0, 0]], np.float32)}
        calls = [runtime.answer(runtime.model("e"), columns, 1) for _ in range(20)]
        threading.Timer(0.3, may_answer.set).start()
        found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        return found

    model = ensemble(step("narrow", {"x": "IN"}, {"output": "OUT"}), max_batch_size=1)
    with wherry.Runtime(model, narrow) as runtime:
        found = asyncio.run(outcomes())
    refused = [one for one in found if isinstance(one, wherry.QueueFull)]
    assert len(refused) + sum(not isinstance(one, Exception) for one in found) == 20
    assert 10 < len(refused) < 20


def test_a_deadline_holds_for_the_whole_way_and_lets_the_members_go() -> None:
    may_finish = threading.Event()

    @wherry.model(max_batch_size=8)
    def slow(x: Pair) -> Pair:
        may_finish.wait()
        return x

    model = ensemble(
        step("slow", {"x": "IN"}, {"output": "MID"}),
        step("double", {"x": "MID"}, {"output": "OUT"}),
    )
    with wherry.Runtime(model, slow, double) as runtime:
        with pytest.raises(DeadlineExceeded):
            runtime.infer_batch("e", IN=ROWS, timeout=0.01)
        may_finish.set()
        assert runtime.drain(TIMEOUT)
        assert runtime.model("double").statistics.execution_count == 0
