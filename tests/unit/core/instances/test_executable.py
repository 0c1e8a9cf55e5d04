"""What does the user's code see, and what if it raises or returns something else?"""

import asyncio
import copy
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypedDict, Unpack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests.properties import examples
from wherry.core.instances.executable import Executable
from wherry.core.instances.own_rows import gather_rows
from wherry.core.instances.reruns import MAX_RERUNS
from wherry.core.models.model import Device, FunctionModel
from wherry.core.models.settings import FunctionSettings
from wherry.core.values.datatypes import BF16, DATATYPES, FP16, FP32, INT8, INT64, UINT8
from wherry.core.values.errors import BadModelOutput, InvalidRequest, ModelFailed, Unsupported
from wherry.core.values.execution import Execution, Failure
from wherry.core.values.request import Columns, concatenate

Rows = Annotated[np.ndarray, FP32[2]]


def executable(function: Callable[..., Any], **settings: Unpack[FunctionSettings]) -> Executable:
    settings = {"name": "m", "max_batch_size": 8, **settings}
    if function.__annotations__.get("text") is str:  # it takes one row
        settings["max_batch_size"] = 1
    model = FunctionModel(function, settings)
    return Executable(model, model.config())


def run_batch(one: Executable, columns: Columns, counts: list[int]) -> Execution:
    return one.run(gather_rows([columns]), counts, lambda: columns)


def run(
    function: Callable[..., Any], rows: list[dict[str, Any]], counts: list[int] | None = None
) -> Columns:
    """Call the model once with these rows."""
    one = executable(function)
    columns = concatenate([one.columns_of(row) for row in rows])
    (outcome,) = run_batch(one, columns, [len(rows)] if counts is None else counts).outcomes
    assert not isinstance(outcome, Failure), outcome
    return outcome


def output_error(function: Callable[..., Any], rows: int = 2) -> str:
    """What a caller is told when the model returns nonsense."""
    (outcome,) = run_batch(executable(function), {"x": ["a"] * rows}, [rows]).outcomes
    assert isinstance(outcome, Failure)
    error = outcome.as_exception()
    assert type(error) is BadModelOutput, error
    return str(error)


# Columns in, columns out


class Seen:
    """What the user's code was given."""

    value: Any = None


class Point(TypedDict):
    x: int


@dataclasses.dataclass
class Person:
    name: str
    age: int = 7


@pytest.mark.parametrize(
    ("hint", "values", "seen"),
    [
        (list[str], ["a", "b"], ["a", "b"]),
        (list[bytes], [b"a", bytearray(b"b")], [b"a", b"b"]),
        (list[int], [1, 2], [1, 2]),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (list[bool], [True, False], [True, False]),
        (list[dict[str, Any]], [{"a": 1}, {}], [{"a": 1}, {}]),
        (list[Person], [{"name": "A"}, {"name": "B", "age": 1}], [Person("A"), Person("B", 1)]),
        (list[Point], [{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 2}]),
        (list[list[int]], [[1], []], [[1], []]),
    ],
    ids=str,
)
def test_code_sees_lists_of_what_its_annotation_says(
    hint: Any, values: list[Any], seen: list[Any]
) -> None:
    def model(x: Any) -> list[str]:
        Seen.value = x
        return ["ok"] * len(x)

    model.__annotations__["x"] = hint
    run(model, [{"x": value} for value in values])
    assert Seen.value == seen
    assert [type(v) for v in Seen.value] == [type(v) for v in seen]


@pytest.mark.parametrize("datatype", [FP16, FP32, BF16, INT8, UINT8, wherry.BOOL], ids=str)
def test_code_sees_one_array_with_the_rows_first(datatype: Any) -> None:
    def model(x: Any) -> Any:
        Seen.value = x
        return x

    model.__annotations__ = dict.fromkeys(("x", "return"), Annotated[np.ndarray, datatype[2]])
    outputs = run(model, [{"x": [0, 1]}, {"x": np.array([1, 0])}] if datatype != wherry.BOOL else
                  [{"x": [False, True]}, {"x": [True, False]}])  # fmt: skip
    assert Seen.value.dtype == datatype.dtype
    assert Seen.value.tolist() == [[0, 1], [1, 0]]
    assert outputs["output"].tolist() == [[0, 1], [1, 0]]  # type: ignore[union-attr] # an array


def test_code_sees_a_list_of_arrays_of_different_shapes() -> None:
    def model(x: Annotated[list[np.ndarray], INT64[-1]]) -> list[int]:
        assert all(isinstance(row, np.ndarray) for row in x)
        return [len(row) for row in x]

    assert list(run(model, [{"x": [1, 2, 3]}, {"x": [1]}, {"x": []}])["output"]) == [3, 1, 0]


def test_code_for_one_row_sees_its_values() -> None:
    def model(text: str, times: int, vector: Rows) -> str:
        assert isinstance(times, int)
        assert vector.shape == (2,)
        return text * times

    row = {"text": "ab", "times": 2, "vector": [1, 2]}
    assert run(model, [row])["output"] == ["abab"]


@pytest.mark.parametrize("hint", [str, int, list[str], Rows], ids=str)
def test_without_a_batch_dimension_a_row_is_what_was_sent(hint: Any) -> None:
    def model(x: Any) -> Any:
        Seen.value = x
        return x

    model.__annotations__ = {"x": hint, "return": hint}
    if hint == list[str]:
        with pytest.raises(wherry.ConfigError, match="no batch dimension"):
            executable(model, max_batch_size=0)
        return
    one = executable(model, max_batch_size=0)
    value: Any = {str: "abc", int: 3}.get(hint, np.array([1, 2], np.float32))
    outputs = one.execute(one.columns_of({"x": value}), 1)
    assert np.array_equal(Seen.value, value)
    assert np.array_equal(outputs["output"][0], value)


@pytest.mark.parametrize(
    ("hint", "default", "seen"),
    [
        (list[int], 1, [1, 1]),
        (list[float], 1, [1.0, 1.0]),
        (list[bool], False, [False, False]),
        (list[str], "abc", ["abc", "abc"]),
        (list[bytes], b"abc", [b"abc", b"abc"]),
        (list[int], [1], [1, 1]),
        (list[int], None, None),
        (list[int], [], []),
    ],
    ids=str,
)
def test_the_default_of_a_column_is_that_of_each_row(hint: Any, default: Any, seen: Any) -> None:
    def model(x: Any, option: Any = default) -> list[str]:
        Seen.value = option
        return ["ok"] * len(x)

    model.__annotations__.update(x=list[str], option=hint)
    run(model, [{"x": "a"}, {"x": "b"}])
    assert Seen.value == seen
    if seen:
        assert [type(v) for v in Seen.value] == [type(v) for v in seen]


def test_all_inputs_of_a_batch_may_be_left_out() -> None:
    def model(option: list[int] = 3) -> list[int]:  # type: ignore[assignment]
        return [one + 1 for one in option]

    (outcome,) = run_batch(executable(model), {}, [2]).outcomes
    assert outcome["output"].tolist() == [4, 4]  # type: ignore[index, union-attr]


def test_an_optional_input_that_is_not_sent_has_its_default() -> None:
    def model(a: list[str], b: list[int] | None = None) -> list[str]:
        return [f"{x}{b}" for x in a]

    assert run(model, [{"a": "x"}])["output"] == ["xNone"]
    assert run(model, [{"a": "x", "b": 1}])["output"] == ["x[1]"]


class Both(NamedTuple):
    a: list[str]
    b: Rows


class BothDict(TypedDict):
    a: list[str]
    b: Rows


@dataclasses.dataclass
class BothClass:
    a: list[str]
    b: Rows


@pytest.mark.parametrize("kind", [Both, BothDict, BothClass])
def test_several_outputs_come_back_by_name(kind: Any) -> None:
    def model(x: list[str]) -> Any:
        return kind(a=x, b=np.zeros((len(x), 2), np.float32))

    model.__annotations__["return"] = kind
    outputs = run(model, [{"x": "p"}, {"x": "q"}])
    assert outputs["a"] == ["p", "q"]
    assert np.shape(outputs["b"]) == (2, 2)


def test_a_tuple_of_outputs_comes_back_by_number() -> None:
    def model(x: list[str]) -> tuple[list[str], list[int]]:
        return x, [1] * len(x)

    outputs = run(model, [{"x": "p"}, {"x": "q"}])
    assert outputs["output0"] == ["p", "q"]
    assert list(outputs["output1"]) == [1, 1]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (list[str], ("a", "b")),
        (list[str], np.array(["a", "b"])),
        (list[bytes], [b"a", b"b"]),
        (list[dict[str, int]], [{"a": 1}, None]),
        (list[float], [1, 2]),
        (list[float], np.ones(2, np.float32)),
        (list[int], np.ones(2, np.int32)),
        (Annotated[list[int], UINT8], [1, 255]),
        (Annotated[np.ndarray, INT8[1]], [[1], [-128]]),
        (Annotated[np.ndarray, FP32[-1]], np.zeros((2, 5), np.float64)),
        (Annotated[list[np.ndarray], FP32[-1]], [[1.0], [1.0, 2.0]]),
    ],
    ids=str,
)
def test_outputs_may_be_whatever_means_the_same(hint: Any, value: Any) -> None:
    def model(x: list[str]) -> Any:
        return value

    model.__annotations__["return"] = hint
    assert len(run(model, [{"x": "a"}, {"x": "b"}])["output"]) == 2


EMPTY: list[Any] = [
    [],
    (),
    np.array([]),
    np.array([], np.int64),
    np.array([], np.object_),
    np.array([], "S1"),
]


@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=str)
def test_an_empty_array_has_the_datatype_that_was_declared(datatype: Any, empty: Any) -> None:
    """Of an empty list numpy cannot know the kind: it says float64."""

    def rows(text: list[str]) -> Any:
        return [empty for _ in text]

    rows.__annotations__["return"] = Annotated[list[np.ndarray], datatype[-1]]
    (column,) = executable(rows).execute({"text": ["a", "b"]}, 2).values()
    assert [len(row) for row in column] == [0, 0]
    if datatype is not wherry.BYTES:
        assert {row.dtype for row in column} == {datatype.dtype}

    def whole(text: list[str]) -> Any:
        return np.array([[] for _ in text])

    whole.__annotations__["return"] = Annotated[np.ndarray, datatype[-1]]
    (column,) = executable(whole).execute({"text": ["a", "b"]}, 2).values()
    assert [len(row) for row in column] == [0, 0]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (list[str], ["one"], "has 1 rows for 2 input rows; return exactly one row out"),
        (list[str], ["a", "b", "c"], "has 3 rows for 2 input rows"),
        (list[str], None, "one row for each of the 2 input rows, not NoneType"),
        (list[str], "ab", "one row for each of the 2 input rows, not str"),
        (list[bytes], b"ab", "one row for each of the 2 input rows, not bytes"),
        (list[str], {"a": 1, "b": 2}, "one row for each of the 2 input rows, not dict"),
        pytest.param(
            list[str], {"a", "b"}, "one row for each of the 2 input rows, not set", id="set"
        ),
        pytest.param(
            list[str],
            (x for x in "ab"),
            "one row for each of the 2 input rows, not generator",
            id="generator",
        ),
        (list[str], 5, "one row for each of the 2 input rows, not int"),
        (list[str], ["a", None], "must hold str rows, not NoneType"),
        (list[str], ["a", b"b"], "must hold str rows, not bytes"),
        (list[bytes], ["a", b"b"], "must hold bytes rows, not str"),
        (list[int], [1, 2.5], "must be INT64"),
        (list[int], ["1", "2"], "must be INT64"),
        (list[float], [1.0, None], "must be FP64"),
        (list[bool], [1, 0], "must be BOOL"),
        (Annotated[list[int], UINT8], [1, 256], "must be UINT8"),
        (Annotated[list[int], UINT8], [1, -1], "must be UINT8"),
        (Rows, np.zeros((2, 3)), "has rows of shape [3], declared is [2]"),
        (Rows, np.zeros(2), "has rows of shape [], declared is [2]"),
        (Rows, np.zeros((3, 2)), "has 3 rows for 2 input rows"),
        (Rows, np.float32(1), "one row for each of the 2 input rows, not float32"),
        (Rows, [[1.0, 2.0], [1.0]], "must be FP32"),
        (Annotated[list[np.ndarray], INT64[-1]], [[1], [1.5]], "must be INT64"),
        (Annotated[list[np.ndarray], FP32[-1]], [[1], ["x"]], "must be FP32"),
        (Annotated[list[np.ndarray], FP32[2]], [[1, 2], [1]], "rows of shape [1], declared is [2]"),
        (tuple[list[str], list[str]], ["a", "b"], "a tuple of 2 outputs, not list"),
        (tuple[list[str], list[str]], (["a", "b"],), "a tuple of 2 outputs, not tuple"),
        (BothDict, {"a": ["x", "y"]}, "returned no output 'b'"),
        (Both, None, "output 'a' must hold one row"),
        (BothClass, 3, "output 'a' must hold one row"),
    ],
    ids=str,
)
def test_a_wrong_output_names_the_model_the_output_and_what_is_wrong(
    hint: Any, value: Any, expected: str
) -> None:
    def model(x: list[str]) -> Any:
        return value

    model.__annotations__["return"] = hint
    message = output_error(model)
    assert message.startswith("model 'm'")
    assert expected in message
    if not isinstance(value, tuple | dict) and "tuple" not in expected:
        assert "output 'output'" in message or "output 'a'" in message


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (list[str], 5, "must be a str, not int"),
        (list[str], None, "must be a str, not NoneType"),
        (list[bytes], "text", "must be bytes, not str"),
        (list[int], 1.5, "must be INT64 data, not float"),
        (list[int], "1", "must be INT64 data, not str"),
        (list[int], 2**63, "must be INT64 data, not int"),
        (list[int], 2**70, "must be INT64 data, not int"),
        (list[int], None, "must be INT64 data, not NoneType"),
        (list[bool], 1, "must be BOOL data, not int"),
        (Annotated[list[int], UINT8], -1, "must be UINT8 data, not int"),
        (Annotated[list[int], INT8], 128, "must be INT8 data, not int"),
        (list[float], [1.0], "has shape [1]; one row has shape []"),
        (Rows, [1.0], "has shape [1]; one row has shape [2]"),
        (Rows, [[1.0, 2.0]], "has shape [1, 2]; one row has shape [2]"),
        (Rows, [[1.0], [1.0, 2.0]], "must be FP32 data, not list"),
        (Rows, np.array(["a", "b"]), "must be FP32 data, not ndarray of shape [2]"),
    ],
    ids=str,
)
def test_a_wrong_input_names_the_model_the_input_and_what_is_wanted(
    hint: Any, value: Any, expected: str
) -> None:
    def model(x: Any) -> list[str]:
        return x  # type: ignore[no-any-return] # never called

    model.__annotations__["x"] = hint
    with pytest.raises(InvalidRequest) as raised:
        executable(model).columns_of({"x": value})
    assert str(raised.value).startswith("model 'm': input 'x' ")
    assert expected in str(raised.value)


def test_missing_and_unknown_inputs_are_named() -> None:
    def model(a: list[str], b: list[str]) -> list[str]:
        return a

    one = executable(model)
    with pytest.raises(InvalidRequest, match="input 'b' is missing"):
        one.columns_of({"a": "x"})
    with pytest.raises(InvalidRequest, match=r"no input 'c'; its inputs are: a, b"):
        one.columns_of({"a": "x", "b": "y", "c": "z"})


# What raises


def failing(*bad: int) -> Executable:
    """A model of numbers that cannot bear some of them."""

    def model(x: list[int]) -> list[int]:
        for value in x:
            if value in bad:
                raise ValueError(f"bad {value}")
        return [value * 10 for value in x]

    return executable(model, max_batch_size=1024)


def outcomes(execution: Execution) -> list[Any]:
    return [
        outcome.message if isinstance(outcome, Failure) else list(outcome["output"])
        for outcome in execution.outcomes
    ]


def batch_of(count: int) -> Columns:
    return {"x": np.arange(count)}


def test_one_bad_row_fails_alone() -> None:
    execution = run_batch(failing(5), batch_of(8), [1] * 8)
    expected: list[Any] = [[n * 10] for n in range(8)]
    expected[5] = "model 'm' failed: ValueError: bad 5"
    assert outcomes(execution) == expected
    assert execution.executed_rows == [8, 4, 4, 2, 1, 1, 2]


def test_callers_are_isolated_not_rows() -> None:
    execution = run_batch(failing(3), batch_of(6), [2, 3, 1])
    assert outcomes(execution) == [[0, 10], "model 'm' failed: ValueError: bad 3", [50]]


@pytest.mark.parametrize("count", [7, 8])
def test_rows_of_one_caller_that_find_no_memory_together_run_in_halves(count: int) -> None:
    def scarce(x: list[int]) -> list[int]:
        if len(x) > 4:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [10 * one for one in x]

    execution = run_batch(executable(scarce, max_batch_size=8), batch_of(count), [count])
    assert outcomes(execution) == [[10 * n for n in range(count)]]


@examples(0.6)
@given(st.integers(1, 64), st.data())
def test_every_good_caller_of_a_small_batch_is_answered(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    execution = run_batch(failing(*bad), batch_of(count), [1] * count)
    for n, outcome in enumerate(outcomes(execution)):
        assert outcome == ([n * 10] if n not in bad else f"model 'm' failed: ValueError: bad {n}")
    assert len(execution.executed_rows) <= 1 + MAX_RERUNS


@pytest.mark.parametrize("count", [1, 8, 256])
def test_when_all_rows_are_bad_the_reruns_are_bounded(count: int) -> None:
    execution = run_batch(failing(*range(count)), batch_of(count), [1] * count)
    assert len(execution.outcomes) == count
    assert all(isinstance(outcome, Failure) for outcome in execution.outcomes)
    assert len(execution.executed_rows) <= 1 + MAX_RERUNS


Row = Annotated[np.ndarray, FP32[1]]


def doubled(x: Row) -> Row:
    x *= 2
    return x


def doubled_rows(x: Annotated[list[np.ndarray], FP32[-1]]) -> Row:
    for row in x:
        row *= 2
    return np.stack(x)


def popped(x: list[dict[str, Any]]) -> list[int]:
    return [2 * row.pop("n") for row in x]


def popped_within(x: list[list[Any]]) -> list[int]:
    return [2 * row[0].pop() for row in x]


def emptied(x: list[str]) -> list[int]:
    return [2 * int(x.pop(0)) for _ in range(len(x))]


@pytest.mark.parametrize(
    ("model", "column"),
    [
        (doubled, np.arange(4.0, dtype=np.float32)[:, None]),
        (doubled_rows, [np.full(1, n, np.float32) for n in range(4)]),
        (popped, [{"n": n} for n in range(4)]),
        (popped_within, [[[n]] for n in range(4)]),
        (emptied, ["0", "1", "2", "3"]),
    ],
)
@pytest.mark.parametrize("error", [ValueError, MemoryError])
@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [4]])
def test_a_batch_runs_again_with_rows_that_the_code_has_not_changed(
    model: Callable[..., Any], column: Any, error: type[Exception], counts: list[int]
) -> None:
    def execute(x: Any) -> Any:
        count = len(x)
        result = model(x)
        if count > 1:
            raise error
        return result

    execute.__annotations__ = model.__annotations__
    execution = run_batch(executable(execute), {"x": copy.deepcopy(column)}, counts)
    answered = [one for one in execution.outcomes if not isinstance(one, Failure)]
    if counts == [4] and error is ValueError:
        assert execution.executed_rows == [4]  # nothing else would be to blame
    else:
        assert np.ravel([one["output"] for one in answered]).tolist() == [0, 2, 4, 6]


def test_isolation_of_errors_can_be_switched_off() -> None:
    def model(x: list[int]) -> list[int]:
        raise ValueError("no")

    execution = run_batch(executable(model, isolate_errors=False), batch_of(4), [1] * 4)
    assert outcomes(execution) == ["model 'm' failed: ValueError: no"] * 4
    assert execution.executed_rows == [4]


def too_few(x: list[str]) -> list[str]:
    return x[:1]


def no_list(x: list[str]) -> list[str]:
    return "ab"  # type: ignore[return-value]


def of_another_shape(x: list[str]) -> Annotated[np.ndarray, FP32[2]]:
    return np.zeros((len(x), 3), np.float32)


@pytest.mark.parametrize("model", [too_few, no_list, of_another_shape])
def test_an_output_that_is_wrong_for_all_rows_is_not_tried_again(model: Callable[..., Any]) -> None:
    execution = run_batch(executable(model), {"x": ["a", "b"]}, [1, 1])
    assert execution.executed_rows == [2]
    assert all(isinstance(outcome, Failure) for outcome in execution.outcomes)


def text_or_none(x: list[str]) -> list[str]:
    return [None if row == "bad" else row for row in x]  # type: ignore[misc]


def number_or_text(x: list[str]) -> Annotated[np.ndarray, FP32]:
    return ["many" if row == "bad" else 1.0 for row in x]  # type: ignore[return-value]


def row_or_half_of_it(x: list[str]) -> Annotated[np.ndarray, FP32[2]]:
    return [[1.0] if row == "bad" else [1.0, 2.0] for row in x]  # type: ignore[return-value]


def array_or_other(x: list[str]) -> Annotated[list[np.ndarray], FP32[2]]:
    return [np.zeros(3 if row == "bad" else 2, np.float32) for row in x]


def picture_or_none(x: list[str]) -> list[wherry.Image]:
    return ["no" if row == "bad" else np.zeros((2, 2, 3), np.uint8) for row in x]  # type: ignore[misc]


@pytest.mark.parametrize(
    "model", [text_or_none, number_or_text, row_or_half_of_it, array_or_other, picture_or_none]
)
def test_a_row_that_the_model_answers_wrongly_fails_alone(model: Callable[..., Any]) -> None:
    execution = run_batch(executable(model), {"x": ["a", "b", "bad", "c"]}, [1] * 4)
    failed = [isinstance(outcome, Failure) for outcome in execution.outcomes]
    assert failed == [False, False, True, False]
    failure = execution.outcomes[2]
    assert isinstance(failure, Failure)
    assert type(failure.as_exception()) is BadModelOutput
    assert "model 'm': output 'output'" in failure.message


class TooRude(InvalidRequest):
    """A user's own kind of bad request."""


@pytest.mark.parametrize(
    ("raised", "expected", "status"),
    [
        (InvalidRequest("say please"), InvalidRequest, 400),
        (TooRude("say please"), InvalidRequest, 400),
        (wherry.RequestTooLarge("too long"), wherry.RequestTooLarge, 413),
        (Unsupported("not in this language"), Unsupported, 501),
        (ValueError("x"), ModelFailed, 500),
        (SystemExit(3), ModelFailed, 500),
        (asyncio.CancelledError(), ModelFailed, 500),
        (MemoryError(), ModelFailed, 500),
        (StopIteration(), ModelFailed, 500),
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_model_raises_keeps_its_class_if_the_caller_must_act(
    raised: BaseException, expected: type[wherry.WherryError], status: int, is_async: bool
) -> None:
    def model(x: list[str]) -> list[str]:
        raise raised

    async def async_model(x: list[str]) -> list[str]:
        raise raised

    one = executable(async_model if is_async else model)
    try:
        (outcome,) = run_batch(one, {"x": ["a"]}, [1]).outcomes
    finally:
        one.unload()
    assert isinstance(outcome, Failure)
    error = outcome.as_exception()
    assert type(error) is expected
    assert error.http_status == status
    if expected is not ModelFailed:
        assert str(error) == str(raised)
    elif not isinstance(raised, StopIteration):
        assert error.__cause__ is raised
        assert type(raised).__name__ in str(error)


@pytest.mark.parametrize("base", [ValueError, InvalidRequest])
def test_an_error_that_cannot_say_what_it_is_fails_its_request_only(base: type[Exception]) -> None:
    class Mute(base):  # type: ignore[valid-type,misc]
        def __str__(self) -> str:
            raise RuntimeError("no str")

    def model(x: list[str]) -> list[str]:
        raise Mute

    (outcome,) = run_batch(executable(model), {"x": ["a"]}, [1]).outcomes
    assert isinstance(outcome, Failure)
    assert "<its str() raised>" in outcome.as_exception().args[0]


def test_json_rows_that_do_not_fit_their_class_are_the_callers_fault() -> None:
    def model(x: list[Person]) -> list[str]:
        return [p.name for p in x]

    execution = run_batch(executable(model), {"x": [{"name": "A"}, {"name": 5}]}, [1, 1])
    good, bad = execution.outcomes
    assert good == {"output": ["A"]}
    assert isinstance(bad, Failure)
    error = bad.as_exception()
    assert type(error) is InvalidRequest
    assert "input 'x'" in str(error)
    assert "name" in str(error)


# Async, streams, life


def test_an_async_model_keeps_one_loop_until_it_is_unloaded() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def model(x: list[str]) -> list[str]:
        loops.append(asyncio.get_running_loop())
        return x

    one = executable(model)
    for _ in range(2):
        assert one.execute({"x": ["a"]}, 1) == {"output": ["a"]}
    assert loops[0] is loops[1]
    one.unload()
    assert loops[0].is_closed()


def test_what_a_task_of_one_call_leaves_the_loop_with_fails_no_later_call() -> None:
    """sys.exit() in a task leaves the loop while the call still waits for that task."""

    async def leave(how: str) -> None:
        if how == "exit":
            raise SystemExit(3)
        if how == "stop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)

    async def model(x: list[str]) -> list[str]:
        await asyncio.gather(leave(x[0]), leave(""))
        return x

    one = executable(model)
    for how in ("exit", "stop"):
        with pytest.raises((SystemExit, RuntimeError)):
            one.execute({"x": [how]}, 1)
        for _ in range(3):
            assert one.execute({"x": ["good"]}, 1) == {"output": ["good"]}
    one.unload()


class Closing:
    """Generators that say when they were closed."""

    def __init__(self) -> None:
        self.closed = 0

    def plain(self, x: list[str]) -> Iterator[list[str | None]]:
        try:
            for n in range(3):
                yield [f"{value}{n}" for value in x]
        finally:
            self.closed += 1

    async def awaited(self, x: list[str]) -> AsyncIterator[list[str]]:
        try:
            for n in range(3):
                await asyncio.sleep(0)
                yield [f"{value}{n}" for value in x]
        finally:
            self.closed += 1


Closing.plain.__annotations__["return"] = Iterator[list[str]]  # None is for a row without response


@pytest.mark.parametrize("name", ["plain", "awaited"])
def test_a_generator_gives_its_responses_and_is_closed(name: str) -> None:
    closing = Closing()
    one = executable(getattr(closing, name))
    responses = list(one.stream({"x": ["a", "b"]}, 2))
    assert responses == [{"output": [f"a{n}", f"b{n}"]} for n in range(3)]
    assert closing.closed == 1
    one.unload()


@pytest.mark.parametrize("name", ["plain", "awaited"])
def test_a_generator_that_nobody_reads_to_its_end_is_closed(name: str) -> None:
    closing = Closing()
    one = executable(getattr(closing, name))
    stream = one.stream({"x": ["a"]}, 1)
    next(stream)
    stream.close()  # type: ignore[attr-defined] # it is a generator
    assert closing.closed == 1
    one.unload()


def test_a_response_of_the_wrong_length_is_refused() -> None:
    def model(x: list[str]) -> Iterator[list[str]]:
        yield ["only one"]

    with pytest.raises(BadModelOutput, match="1 rows for 2 input rows"):
        list(executable(model).stream({"x": ["a", "b"]}, 2))


def test_a_stream_may_have_nothing_for_a_row_this_time() -> None:
    def model(x: list[str]) -> Iterator[list[str]]:
        yield ["a", None]  # type: ignore[list-item] # no response for the second row

    assert list(executable(model).stream({"x": ["a", "b"]}, 2)) == [{"output": ["a", None]}]


def test_warm_up_runs_the_samples_or_else_the_first_example() -> None:
    seen: list[str] = []

    def model(x: list[str]) -> list[str]:
        seen.extend(x)
        return x

    executable(model, warmup=[{"x": "1"}, {"x": "2"}], examples=[{"x": "3"}]).load(Device())
    executable(model, examples=[{"x": "4"}, {"x": "5"}]).load(Device())
    executable(model).load(Device())
    assert seen == ["1", "2", "4"]


def test_warm_up_reads_a_stream_to_its_end() -> None:
    closing = Closing()
    executable(closing.plain, warmup=[{"x": "a"}]).load(Device())
    assert closing.closed == 1


def test_a_bad_sample_says_which_input_is_wrong() -> None:
    def model(x: list[str]) -> list[str]:
        return x

    with pytest.raises(wherry.ConfigError, match=r"input 'x' is missing \(warmup\[0\]\)"):
        executable(model, warmup=[{}]).load(Device())


class AsyncLoad(wherry.Model):
    """Loads and unloads in the event loop that its calls run in."""

    async def load(self) -> None:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()

    async def execute(self, text: str) -> bool:
        return asyncio.get_running_loop() is self.loop

    async def unload(self) -> None:  # type: ignore[override]
        self.unloaded_in = asyncio.get_running_loop()


def test_an_async_load_and_unload_are_awaited_in_the_loop_of_the_calls() -> None:
    model = AsyncLoad()
    with wherry.Runtime(model, isolation="thread") as rt:
        assert rt.infer("async_load", "a") is True
    assert model.unloaded_in is model.loop


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("view", [False, True])
def test_an_array_is_copied_only_if_something_else_refers_to_it(keeps: bool, view: bool) -> None:
    kept: list[Any] = []
    addresses: list[int] = []

    def model(x: list[int]) -> Annotated[np.ndarray, FP32[10_000]]:
        array = np.zeros((len(x) + view, 10_000), np.float32)
        addresses.append(array.ctypes.data)
        if keeps:
            kept.append(array)
        return array[: len(x)] if view else array

    outcome = executable(model).outcome({"x": np.array([1, 2])}, 2)
    assert not isinstance(outcome, Failure), outcome
    array: Any = outcome["output"]
    assert (array.ctypes.data != addresses[0]) == keeps


@pytest.mark.parametrize(
    ("rows_of", "size", "copied"),
    [
        (lambda array: [array[0] for _ in array], 20_000, [False, True, True]),
        (
            lambda array: [array.ravel()[n : n + 20_000] for n in range(3)],
            20_000,
            [False, True, True],
        ),
        (lambda array: list(array[:, ::2]), 40_000, [True, True, True]),  # not looked into
        (list, 20_000, [False, False, False]),
        (list, 4, [True, True, True]),  # quicker than to look
    ],
)
def test_rows_that_may_have_memory_in_common_are_copied(
    rows_of: Any, size: int, copied: list[bool]
) -> None:
    """Or a caller that writes into its answer would change that of another one."""
    kept: list[int] = []

    def model(x: list[int]) -> Annotated[list[np.ndarray], FP32[-1]]:
        array = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        kept.append(array.ctypes.data)
        rows: list[np.ndarray] = rows_of(array)
        return rows

    outcome = executable(model).outcome({"x": np.array([1, 2, 3])}, 3)
    assert not isinstance(outcome, Failure), outcome
    rows: Any = outcome["output"]
    end = kept[0] + 3 * size * 4
    assert [not kept[0] <= row.ctypes.data < end for row in rows] == copied
    for row, other in itertools.combinations(rows, 2):
        assert not np.shares_memory(row, other)


def test_outputs_that_have_memory_in_common_are_copied() -> None:
    def model(
        x: list[int],
    ) -> tuple[Annotated[np.ndarray, FP32[4]], Annotated[np.ndarray, FP32[2]]]:
        array = np.zeros((len(x), 4), np.float32)
        return array[:], array[:, 2:]

    outcome = executable(model).outcome({"x": np.array([1, 2, 3])}, 3)
    assert not isinstance(outcome, Failure), outcome
    whole, part = map(np.asarray, outcome.values())
    assert not np.shares_memory(whole, part)


def test_what_a_model_returns_of_its_inputs_is_not_copied_unless_it_keeps_them() -> None:
    given: list[int] = []
    kept: list[Any] = []

    def model(x: Rows) -> Rows:
        given.append(x.ctypes.data)
        return x

    def keeping(x: Rows) -> Rows:
        kept.append(x)
        return x

    columns: Columns = {"x": np.ones((2, 2), np.float32)}
    outputs = executable(model).outcome(gather_rows([columns, columns]), 4)
    assert not isinstance(outputs, Failure)
    assert np.asarray(outputs["output"]).ctypes.data == given[0]
    outputs = executable(keeping).outcome(gather_rows([columns, columns]), 4)
    assert not isinstance(outputs, Failure)
    assert not np.shares_memory(kept[0], np.asarray(outputs["output"]))


@pytest.mark.parametrize("first", ["text", b"bytes", 1, None, [b"bytes"], [], np.ones(2)])
def test_the_rows_of_neighbours_are_a_models_own_whatever_the_first_one_is(first: Any) -> None:
    row = {"left": [1]}
    columns = gather_rows([{"x": [first]}, {"x": [row]}, {"x": [[row]]}])
    columns["x"][1].pop("left")
    columns["x"][2][0]["left"].append(2)
    assert row == {"left": [1]}
