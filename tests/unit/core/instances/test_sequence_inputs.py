"""What does a model see of a request's place in its sequence?"""

from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import Call
from wherry.core.instances.sequence_inputs import SequenceInputs, callers_signature
from wherry.core.models.config import SequenceBatching, SequenceControl, SequenceState
from wherry.core.models.signature import Signature
from wherry.core.scheduler.open_sequences import NOT_READY, OpenSequence, not_ready
from wherry.core.values.errors import ConfigError, InvalidRequest
from wherry.core.values.request import InferRequest, SequenceStep


def inputs(model: Any, *controls: SequenceControl, **how: Any) -> SequenceInputs:
    return SequenceInputs("m", SequenceBatching(controls=controls, **how), model.signature())


def step(x: Any, *, run: OpenSequence | None = None, **flags: Any) -> InferRequest:
    request = Call(x, name="x").request
    request.sequence = SequenceStep(flags.pop("id", 7), **flags)
    request.run = run or OpenSequence(7)
    return request


@wherry.model
def plain(
    x: list[int],
    start: list[bool],
    end: list[float],
    id: list[str],
    raw: list[bytes],
    wide: Annotated[np.ndarray, wherry.INT32[-1, 2]],
    ragged: Annotated[list[np.ndarray], wherry.FP32[-1]],
) -> list[int]:
    return x


def test_an_input_of_the_signature_is_filled_as_it_is_declared() -> None:
    made = inputs(
        plain,
        SequenceControl("start"),
        SequenceControl("end", false=-1, true=2),
        SequenceControl("id"),
        SequenceControl("id", "raw"),
        SequenceControl("ready", "wide"),
        SequenceControl("start", "ragged"),
    )
    columns = made.columns(SequenceStep(7, start=True))
    assert [
        column.dtype if isinstance(column, np.ndarray) else list
        for column in (columns["start"], columns["end"], columns["wide"])
    ] == [np.bool_, np.float64, np.int32]
    assert columns["start"].tolist() == [True]  # type: ignore[union-attr]
    assert columns["end"].tolist() == [-1.0]  # type: ignore[union-attr]
    assert columns["wide"].tolist() == [[[1, 1]]]  # type: ignore[union-attr]
    assert (columns["id"], columns["raw"]) == (["7"], [b"7"])
    assert columns["ragged"][0].tolist() == [1.0]
    nothing = made.columns(NOT_READY)
    assert nothing["wide"].tolist() == [[[0, 0]]]  # type: ignore[union-attr]
    ended = made.columns(SequenceStep("x", end=True))
    assert ended["end"].tolist() == [2.0]  # type: ignore[union-attr]


def test_an_input_that_the_signature_lacks_is_one_element_of_its_datatype() -> None:
    made = inputs(
        plain,
        SequenceControl("start", "S", 0, 1, "INT32"),
        SequenceControl("id", "C", datatype="BYTES"),
        SequenceControl("id", "N", datatype="UINT32"),
    )
    columns = made.columns(SequenceStep(9, start=True))
    start = columns["S"]
    assert isinstance(start, np.ndarray)
    assert start.dtype == np.int32
    assert start.tolist() == [[1]]
    assert columns["C"] == [[b"9"]]
    number = columns["N"]
    assert isinstance(number, np.ndarray)
    assert number.dtype == np.uint32
    assert number.tolist() == [[9]]


@pytest.mark.parametrize(
    ("id", "why"), [("a", "is text"), (2**32, "does not fit"), (-1, "does not fit")]
)
def test_an_id_that_has_no_such_number_is_refused(id: int | str, why: str) -> None:
    made = inputs(plain, SequenceControl("id", "N", datatype="UINT32"))
    with pytest.raises(InvalidRequest, match=why):
        made.refuse(SequenceStep(id))
    made.refuse(SequenceStep(2**32 - 1))


def test_mistakes_of_the_author_are_told_when_the_model_loads() -> None:
    for controls, states, why in (
        ([SequenceControl("start", "S", datatype="FP31")], [], "unknown datatype 'FP31'"),
        ([SequenceControl("start", "raw")], [], "cannot be text"),
        ([], [SequenceState("old", "new", "FP31")], "unknown datatype 'FP31'"),
        ([], [SequenceState("old", "new", "FP32", (-1,))], "size at the START"),
        ([], [SequenceState("old", "new", "FP32", (2,), b"1234")], "has 4 bytes"),
        ([], [SequenceState("old", "new", "BYTES", (2,), b"1234")], "empty strings"),
    ):
        with pytest.raises(ConfigError, match=why):
            inputs(plain, *controls, states=tuple(states))


def test_a_state_starts_afresh_comes_back_and_starts_afresh_again() -> None:
    made = inputs(plain, states=(SequenceState("old", "new", "INT32", (2,)),))
    run = OpenSequence(7)
    first = step(1, run=run, start=True)
    made.fill([first])
    assert first.inputs["old"].tolist() == [[0, 0]]  # type: ignore[union-attr]
    given = np.array([[3, 4], [5, 6]], np.int32)
    left = made.keep(first, {"y": [1], "new": given[:1]})
    assert left == {"y": [1]}
    given[:] = 99
    second = step(2, run=run)
    made.fill([second])
    assert second.inputs["old"].tolist() == [[3, 4]]  # type: ignore[union-attr]
    again = step(3, run=run, start=True)
    made.fill([again])
    assert again.inputs["old"].tolist() == [[0, 0]]  # type: ignore[union-attr]


def test_a_state_that_is_returned_is_kept_and_given_to_the_caller() -> None:
    made = inputs(plain, states=(SequenceState("old", "new", "INT32", (1,), returned=True),))
    request = step(1, start=True)
    made.fill([request])
    assert list(made.keep(request, {"new": np.ones((1, 1), np.int32)})) == ["new"]
    assert isinstance(request.run, OpenSequence)
    assert list(request.run.state) == ["old"]


def test_only_states_of_another_size_than_at_the_start_keep_rows_apart() -> None:
    made = inputs(plain, states=(SequenceState("old", "new", "INT32", (1,)),))
    run = OpenSequence(7)
    request = step(1, run=run, start=True)
    made.keep(request, {"new": np.ones((1, 1), np.int32)})
    assert run.state_shapes is None
    made.keep(request, {"new": np.ones((1, 5), np.int32)})
    assert run.state_shapes == ((1, 5),)


def test_a_row_that_is_not_ready_has_the_shape_of_the_others() -> None:
    made = inputs(
        plain,
        SequenceControl("ready", "R", datatype="BOOL"),
        states=(SequenceState("old", "new", "INT32", (1,)),),
    )
    run = OpenSequence(7)
    run.state = {"old": np.ones((1, 5), np.int32)}
    real = step(1, run=run)
    made.fill([not_ready(real), real][::-1])
    empty = not_ready(real)
    made.fill([empty, real])
    assert empty.inputs["old"].shape == (1, 5)  # type: ignore[union-attr]
    assert empty.inputs["R"].tolist() == [[False]]  # type: ignore[union-attr]
    assert real.inputs["R"].tolist() == [[True]]  # type: ignore[union-attr]


def test_strings_may_be_a_state() -> None:
    made = inputs(plain, states=(SequenceState("old", "new", "BYTES", (2,)),))
    run = OpenSequence(7)
    request = step(1, run=run, start=True)
    made.fill([request])
    assert request.inputs["old"] == [[b"", b""]]
    made.keep(request, {"new": [[b"a", b"b"]]})
    following = step(2, run=run)
    made.fill([following])
    assert following.inputs["old"] == [[b"a", b"b"]]


def test_callers_neither_see_what_is_filled_in_nor_what_is_kept() -> None:
    batching = SequenceBatching(
        controls=(SequenceControl("start"),), states=(SequenceState("wide", "output"),)
    )
    signature = plain.signature()
    seen: Signature = callers_signature(signature, batching)
    assert {spec.name for spec in signature.inputs} - {spec.name for spec in seen.inputs} == {
        "start",
        "wide",
    }
    assert seen.outputs == ()
    assert callers_signature(signature, None) is signature


def test_a_model_warms_up_with_sequences_of_one_step() -> None:
    made = inputs(
        plain,
        SequenceControl("start", "S", datatype="BOOL"),
        SequenceControl("end", "E", datatype="BOOL"),
        states=(SequenceState("old", "new", "INT32", (2,)),),
    )
    columns = made.for_warm_up({"x": [1, 2, 3]}, 3)
    assert columns["x"] == [1, 2, 3]
    assert [len(column) for column in columns.values()] == [3] * 4
    assert np.asarray(columns["S"]).all()
    assert np.asarray(columns["E"]).all()
