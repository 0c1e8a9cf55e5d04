"""What stands for an input that a caller leaves out?"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.testing import local_server


def test_a_plain_default_of_a_column_fills_each_row_in_one_batch_with_those_that_have_it() -> None:
    batches: list[tuple[list[int], list[float], list[bool], list[str]]] = []
    both = threading.Barrier(2)

    @wherry.model(max_batch_size=2, max_queue_delay=TIMEOUT, run_in_caller=False)
    def cut(
        text: list[str],
        k: list[int] = 1,  # type: ignore[assignment]
        by: list[float] = 2,  # type: ignore[assignment]
        up: list[bool] = False,  # type: ignore[assignment]
        tail: list[str] = "!",  # type: ignore[assignment]
    ) -> list[str]:
        batches.append((k, by, up, tail))
        return [one[:length] for one, length in zip(text, k, strict=True)]

    def call(**inputs: Any) -> Any:
        both.wait(TIMEOUT)
        return runtime.infer("cut", text="abc", **inputs)

    with wherry.Runtime(cut) as runtime, ThreadPoolExecutor(2) as threads:
        without, having = threads.submit(call), threads.submit(call, k=3)
        assert (without.result(), having.result()) == ("a", "abc")
    (batch,) = batches
    assert sorted(batch[0]) == [1, 3]
    assert batch[1:] == ([2.0, 2.0], [False, False], ["!", "!"])
    assert isinstance(batch[1][0], float)


def test_none_of_a_caller_is_an_input_left_out_as_type_checkers_allow_it() -> None:
    @wherry.model
    def cut(text: str, k: int | None = None, tail: str | None = "!") -> str:
        return text[:k] + str(tail)

    with local_server(cut) as server, wherry.Client(server.url) as client:
        calls: list[Callable[..., Any]] = [cut.infer, partial(client.infer, "cut")]
        for infer in calls:
            assert infer(text="abc", k=None, tail=None) == "abc!"
            assert infer("abc", 2, None) == "ab!"
            with pytest.raises(wherry.InvalidRequest, match=r"text|inputs"):
                infer(text=None, k=2)


def test_a_column_of_one_row_as_a_default_fills_each_row_too_as_type_checkers_have_it() -> None:
    @wherry.model(max_batch_size=2)
    def cut(text: list[str], k: list[int] = [2]) -> list[str]:  # noqa: B006
        return [one[:length] for one, length in zip(text, k, strict=True)]

    with wherry.Runtime(cut) as runtime:
        assert runtime.infer_batch("cut", text=["abc", "def"])["output"] == ["ab", "de"]


def test_a_model_called_directly_has_a_plain_default_for_each_row() -> None:
    @wherry.model(max_batch_size=2)
    def cut(text: list[str], k: list[int] = 1) -> list[str]:  # type: ignore[assignment]
        return [one[:length] for one, length in zip(text, k, strict=True)]

    assert cut(["abc", "def"]) == ["a", "d"]
    assert cut(text=["abc"]) == ["a"]
    assert cut(["abc"], [2]) == ["ab"]


@dataclass
class Size:
    width: int = 1


@pytest.mark.parametrize("default", [Size(2), [Size(2)], [1, 2], np.zeros(2), {"a": 1}])
def test_other_defaults_of_a_column_are_errors_of_the_definition(default: Any) -> None:
    def show(text: list[str], size: list[Size] = default) -> list[str]:
        return text

    with pytest.raises(wherry.ConfigError, match=r"parameter 'size': .* write None"):
        wherry.model(show)


def test_code_of_one_row_has_any_default_as_python_does() -> None:
    @wherry.model
    def show(text: str, size: Size = Size(2)) -> str:  # noqa: B008
        return f"{text}{size.width}"

    with wherry.Runtime(show):
        assert show.infer("a") == show("a") == "a2"


def _int(k: list[int] = "1") -> list[int]:  # type: ignore[assignment]
    return k


def _fraction(k: list[int] = 1.5) -> list[int]:  # type: ignore[assignment]
    return k


def _bool(k: list[bool] = 1) -> list[bool]:  # type: ignore[assignment]
    return k


def _text(k: list[str] = 1) -> list[str]:  # type: ignore[assignment]
    return k


def _row(k: int = "1") -> int:  # type: ignore[assignment]
    return k


def _object(k: list[dict[str, int]] = "a") -> list[int]:  # type: ignore[assignment]
    return [1 for _ in k]


def _array(k: Annotated[np.ndarray, wherry.FP32[2]] = "a") -> list[int]:  # type: ignore[assignment]
    return [1 for _ in k]


def _complex(k: list[int] = 1j) -> list[int]:  # type: ignore[assignment]
    return k


def _column(k: list[int] = ["1"]) -> list[int]:  # type: ignore[list-item]  # noqa: B006
    return k


@pytest.mark.parametrize(
    ("function", "row"),
    [
        (_int, "an int"),
        (_fraction, "an int"),
        (_bool, "a bool"),
        (_text, "a str"),
        (_row, "an int"),
        (_object, "an object"),
        (_array, "an array or a number"),
        (_complex, "an int"),
        (_column, "an int"),
    ],
)
def test_a_default_of_a_wrong_type_is_an_error_of_the_definition(
    function: Callable[..., Any], row: str
) -> None:
    with pytest.raises(
        wherry.ConfigError, match=f"'k': its default is .*, but a row of it is {row}"
    ):
        wherry.model(function)


def _beyond(k: list[int] = 2**70) -> list[int]:  # type: ignore[assignment]
    return k


def _beyond_float(k: list[float] = 10**400) -> list[float]:  # type: ignore[assignment]
    return k


def _beyond_byte(k: list[Annotated[int, wherry.INT8]] = 300) -> list[int]:  # type: ignore[assignment]
    return k


def _cut(k: Annotated[np.ndarray, wherry.INT32[2]] = 2.7) -> list[int]:  # type: ignore[assignment]
    return [1 for _ in k]


def _no_unicode(k: list[str] = "\ud800") -> list[str]:  # type: ignore[assignment]
    return k


@pytest.mark.parametrize("function", [_beyond, _beyond_float, _beyond_byte, _cut, _no_unicode])
def test_a_default_that_its_datatype_cannot_have_is_an_error_of_the_definition(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(wherry.ConfigError, match=r"'k': its default .* is not [A-Z]+[0-9]* data; "):
        wherry.model(function)


def test_numbers_of_another_kind_are_refused_with_what_to_do() -> None:
    @wherry.model
    def double(n: Annotated[np.ndarray, wherry.INT64[2]]) -> list[int]:
        return [int(one.sum()) for one in n]

    with wherry.Runtime(double):
        with pytest.raises(wherry.InvalidRequest, match=r"float32 .*use \.astype\('int64'\)"):
            double.infer(n=np.ones(2, np.float32))
        with pytest.raises(wherry.InvalidRequest, match="it has text"):
            double.infer(n=["a", "b"])


@pytest.mark.parametrize("arguments", [((5,), {}), ((), {"tex": ["a"]}), ((), {})])
def test_a_wrong_direct_call_of_a_model_with_defaults_fails_as_pythons_does(
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
) -> None:
    def cut(text: list[str], k: list[int] = 1) -> list[str]:  # type: ignore[assignment]
        return [one[:1] for one in text]

    args, kwargs = arguments
    messages = []
    for function in (cut, wherry.model(max_batch_size=2)(cut)):
        with pytest.raises(TypeError) as raised:
            function(*args, **kwargs)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
