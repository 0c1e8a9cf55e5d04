"""Which inputs and outputs does a function have, and does each mistake say what to do?"""

# Functions here are read, never called.
# mypy: disable-error-code="empty-body"

import dataclasses
import datetime
import pathlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from typing import Iterator as TypingIterator  # noqa: UP035 - the old spelling is read too

import msgspec
import numpy as np
import pytest

import wherry
from wherry.core.models.signature import Signature, read_signature
from wherry.core.values.datatypes import (
    BF16,
    BOOL,
    BYTES,
    DATATYPES,
    FP16,
    FP32,
    FP64,
    INT64,
    UINT8,
    Datatype,
    Form,
)
from wherry.core.values.errors import ConfigError


@dataclasses.dataclass
class Person:
    name: str
    age: int = 0


class Struct(msgspec.Struct):
    name: str


class Named(TypedDict):
    label: list[str]
    score: list[float]


class Tupled(NamedTuple):
    label: list[str]
    score: Annotated[np.ndarray, FP32[2]]


@dataclasses.dataclass
class Classed:
    label: list[str]
    score: list[int]


class Foreign:
    """A class that looks as torch's tensor does."""


Foreign.__module__, Foreign.__qualname__ = "torch", "Tensor"


class Nothing(TypedDict):
    pass


UserId = NewType("UserId", int)


def annotated(hint: Any, returns: Any = list[str]) -> Callable[..., Any]:
    """A function with one parameter `x` of this annotation."""

    def function(x: Any) -> Any: ...

    function.__annotations__ = {"x": hint, "return": returns}
    return function


def read(function: Callable[..., Any]) -> Signature:
    return read_signature(function, "m")


@pytest.mark.parametrize(
    ("hint", "datatype", "shape", "form"),
    [
        (list[str], BYTES, (), Form.TEXT),
        (list[bytes], BYTES, (), Form.BYTES),
        (list[UserId], INT64, (), Form.SCALARS),
        (list[Annotated[int, "the user"]], INT64, (), Form.SCALARS),
        (list[Annotated[int, UINT8]], UINT8, (), Form.SCALARS),
        (list[Annotated[str, msgspec.Meta(description="said")]], BYTES, (), Form.TEXT),
        (list[int], INT64, (), Form.SCALARS),
        (list[float], FP64, (), Form.SCALARS),
        (list[bool], BOOL, (), Form.SCALARS),
        (list[dict[str, Any]], BYTES, (), Form.JSON),
        (list[dict], BYTES, (), Form.JSON),  # type: ignore[type-arg] # as users write it
        (list[Mapping[str, int]], BYTES, (), Form.JSON),
        (list[list[int]], BYTES, (), Form.JSON),
        (list[Person], BYTES, (), Form.JSON),
        (list[Named], BYTES, (), Form.JSON),
        (list[Struct], BYTES, (), Form.JSON),
        (Annotated[list[float], FP32], FP32, (), Form.SCALARS),
        (Annotated[list[int], UINT8], UINT8, (), Form.SCALARS),
        (Annotated[np.ndarray, FP32], FP32, (), Form.ARRAY),
        (Annotated[np.ndarray, FP32[384]], FP32, (384,), Form.ARRAY),
        (Annotated[np.ndarray, FP16[3, 224, 224]], FP16, (3, 224, 224), Form.ARRAY),
        (Annotated[np.ndarray, BF16[None, 4]], BF16, (-1, 4), Form.ARRAY),
        (Annotated[np.typing.NDArray[np.float32], FP32[-1]], FP32, (-1,), Form.ARRAY),
        (Annotated[list[np.ndarray], FP32[-1]], FP32, (-1,), Form.ARRAYS),
        (Annotated[list[np.ndarray], "a note", FP32[2]], FP32, (2,), Form.ARRAYS),
    ],
    ids=str,
)
def test_a_column_of_each_kind_is_read_as_input_and_as_output(
    hint: Any, datatype: Datatype, shape: tuple[int, ...], form: Form
) -> None:
    signature = read(annotated(hint, hint))
    for spec, name in ((signature.inputs[0], "x"), (signature.outputs[0], "output")):
        assert (spec.name, spec.datatype, spec.shape, spec.form) == (name, datatype, shape, form)
        assert not spec.optional
    assert (signature.row_wise, signature.streams, signature.is_async) == (False, False, False)
    assert signature.returns == "single"


@pytest.mark.parametrize("datatype", [d for d in DATATYPES.values() if d is not BYTES], ids=str)
def test_every_datatype_of_numbers_can_be_an_array(datatype: Datatype) -> None:
    spec = read(annotated(Annotated[np.ndarray, datatype[2]])).inputs[0]
    assert (spec.datatype, spec.shape) == (datatype, (2,))


@pytest.mark.parametrize(
    ("hint", "form"),
    [
        (str, Form.TEXT),
        (bytes, Form.BYTES),
        (int, Form.SCALARS),
        (float, Form.SCALARS),
        (bool, Form.SCALARS),
        (dict[str, Any], Form.JSON),
        (Person, Form.JSON),
    ],
    ids=str,
)
def test_a_function_of_single_values_takes_one_row(hint: Any, form: Form) -> None:
    signature = read(annotated(hint, str))
    assert signature.row_wise
    assert signature.inputs[0].form is form
    assert signature.outputs[0].shape == ()


@pytest.mark.parametrize(
    ("hint", "form"), [(list[str], Form.TEXT), (list[float], Form.ARRAYS), (list[int], Form.ARRAYS)]
)
def test_a_list_out_of_one_row_is_a_row_of_any_length(hint: Any, form: Form) -> None:
    (output,) = read(annotated(str, hint)).outputs
    assert (output.form, output.shape) == (form, (-1,))


def test_arrays_alone_are_columns_and_beside_single_values_a_row() -> None:
    def columns(x: Annotated[np.ndarray, FP32[2]]) -> list[str]: ...

    def row(x: Annotated[np.ndarray, FP32[2]], text: str) -> str: ...

    assert not read(columns).row_wise
    assert read(row).row_wise


def test_parameters_with_a_default_are_optional_inputs() -> None:
    def function(
        a: list[str],
        b: list[int] | None = None,
        *,
        c: list[float] | None,
        d: list[int] = [],  # noqa: B006 - as users write it
    ) -> list[str]: ...

    signature = read(function)
    assert [(i.name, i.optional) for i in signature.inputs] == [
        ("a", False),
        ("b", True),
        ("c", False),
        ("d", True),
    ]
    assert signature.input("b") is signature.inputs[1]
    assert signature.input("z") is None


@pytest.mark.parametrize(
    ("hint", "names", "returns"),
    [
        (Named, ["label", "score"], "named"),
        (Tupled, ["label", "score"], "named"),
        (Classed, ["label", "score"], "named"),
        (tuple[list[str], list[int]], ["output0", "output1"], "tuple"),
        (list[str], ["output"], "single"),
    ],
    ids=str,
)
def test_several_outputs_have_their_names(hint: Any, names: list[str], returns: str) -> None:
    signature = read(annotated(list[str], hint))
    assert [spec.name for spec in signature.outputs] == names
    assert signature.returns == returns
    assert signature.output(names[-1]) is signature.outputs[-1]
    assert signature.output("none") is None


def test_what_yields_streams_and_what_awaits_is_async() -> None:
    def plain(x: list[str]) -> Iterator[list[str]]:
        yield x

    def generator(x: list[str]) -> Generator[list[str], None, None]:
        yield x

    async def coroutine(x: list[str]) -> list[str]:
        return x

    async def both(x: list[str]) -> AsyncIterator[list[str]]:
        yield x

    def returns_an_iterator(x: list[str]) -> Iterator[list[str]]:
        return iter([x])

    def returns_an_async_iterator(x: list[str]) -> AsyncIterator[list[str]]:
        return both(x)

    flags = {
        f.__name__: (read(f).streams, read(f).is_async)
        for f in (plain, generator, coroutine, both, returns_an_iterator, returns_an_async_iterator)
    }
    assert flags == {
        "plain": (True, False),
        "generator": (True, False),
        "coroutine": (False, True),
        "both": (True, True),
        "returns_an_iterator": (True, False),
        "returns_an_async_iterator": (True, True),
    }


def test_a_method_of_an_object_is_read_and_one_of_a_class_is_refused() -> None:
    class Echo(wherry.Model):
        def execute(self, text: list[str]) -> list[str]:
            return text

    assert [spec.name for spec in read(Echo().execute).inputs] == ["text"]
    with pytest.raises(
        wherry.ConfigError, match=r"'self' has no annotation; for a method, subclass"
    ):

        class Shout:
            @wherry.model
            def shout(self, text: list[str]) -> list[str]:
                return text


def _no_annotation(x) -> list[str]:  # type: ignore[no-untyped-def] # the mistake
    ...


def _no_return(x: list[str]):  # type: ignore[no-untyped-def] # the mistake
    ...


def _no_return_of_rows(x: str):  # type: ignore[no-untyped-def] # the mistake
    ...


def _no_return_of_a_stream(x: str):  # type: ignore[no-untyped-def] # the mistake
    yield x


async def _no_return_of_an_async_stream(x: list[str]):  # type: ignore[no-untyped-def] # the mistake
    yield x


def _star(*x: list[str]) -> list[str]: ...


def _stars(**x: list[str]) -> list[str]: ...


def _nothing() -> list[str]: ...


def _mixed(x: list[str], y: str) -> list[str]: ...


def _unknown_name(x: "list[NotThere]") -> list[str]:  # type: ignore[name-defined] # noqa: F821 - the mistake
    ...


def _unknown_datatype(x: "Annotated[np.ndarray, wherry.FP33[2]]") -> list[str]: ...


def _bad_shape(x: "Annotated[np.ndarray, FP32[-2]]") -> list[str]: ...


def _yields_without_saying_so(x: list[str]) -> list[str]:  # type: ignore[misc] # the mistake
    yield x


async def _awaits_an_iterator(x: list[str]) -> AsyncIterator[list[str]]:
    return iter([x])  # type: ignore[return-value] # the mistake


@pytest.mark.parametrize(
    ("function", "what", "remedy"),
    [
        (_no_annotation, "parameter 'x' has no annotation", "write for example list[str]"),
        (_no_return, "no return annotation", "write for example -> list[str]"),
        (_no_return_of_rows, "no return annotation", "-> str"),
        (_no_return_of_a_stream, "no return annotation", "-> Iterator[str]"),
        (_no_return_of_an_async_stream, "no return annotation", "-> AsyncIterator[list[str]]"),
        (_star, "parameter 'x'", "name each input"),
        (_stars, "parameter 'x'", "name each input"),
        (_nothing, "_nothing has no parameters", ""),
        (_mixed, "some parameters are columns", "make all of them columns, or none"),
        (_unknown_name, "NotThere", "import that name at module level"),
        (_unknown_datatype, "FP33", "cannot be read"),
        (_bad_shape, "(-2,)", "sizes >= 0"),
        (_yields_without_saying_so, "yields", "Iterator[list[str]]"),
        (_awaits_an_iterator, "async", "yield"),
        (annotated(np.ndarray), "parameter 'x'", "Annotated[np.ndarray, wherry.FP32[384]]"),
        (annotated(list[np.ndarray]), "parameter 'x'", "wherry.FP32[384]"),
        (annotated(object), "parameter 'x'", "use list[str]"),
        (annotated(list[set[str]]), "parameter 'x'", "Sequence[str] for"),
        (annotated(tuple[str, ...]), "parameter 'x'", "Sequence[str] for"),
        (annotated(OrderedDict), "parameter 'x'", "list[dict]"),
        (annotated(list[Literal["a", "b"]]), "parameter 'x'", "a dataclass"),
        (annotated(datetime.date), "parameter 'x': datetime.date", "a dataclass"),
        (annotated(list[Tupled]), "parameter 'x'", "a dataclass"),
        (annotated(list[str | None]), "parameter 'x'", "list[str] | None = None"),
        (annotated(list[int | str]), "parameter 'x'", "an input has one type"),
        (annotated(np.complex64), "parameter 'x'", "use list[str]"),
        (annotated(pathlib.Path), "parameter 'x'", "wherry.File for a path"),
        (annotated(list[bytearray]), "parameter 'x'", "list[bytes]"),
        (annotated(Foreign), "parameter 'x': torch.Tensor", "Annotated[np.ndarray"),
        (annotated(list[str], list[Foreign]), "return value", "Annotated[np.ndarray, wherry.FP32"),
        (annotated(Annotated[int, msgspec.Meta(gt=0)]), "Meta(gt=0) beside int", "msgspec.Struct"),
        (annotated(list[Annotated[str, msgspec.Meta(max_length=3)]]), "beside str", "pydantic"),
        (annotated(list[str] | list[int]), "parameter 'x'", "an input has one type"),
        (annotated(Annotated[list[int], FP32[3]]), "parameter 'x'", "np.ndarray beside it"),
        (annotated(Annotated[list[str], FP32]), "parameter 'x'", "np.ndarray beside it"),
        (annotated(Annotated[list[int], BYTES]), "parameter 'x'", "BYTES"),
        (annotated(list[str], str), "return value is one value", "return a list with one row"),
        (annotated(list[str], dict), "return value is one value", "NamedTuple or TypedDict"),
        (annotated(list[str], None), "return value", "use list[str]"),
        (annotated(list[str], tuple[list[str], object]), "output 'output1'", "use list[str]"),
        (annotated(list[str], Nothing), "return value has no outputs", ""),
        (annotated(list[str], TypingIterator), "return value", "Iterator[list[str]]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_names_the_model_the_place_and_the_remedy(
    function: Callable[..., Any], what: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read(function)
    message = str(raised.value)
    assert message.startswith("model 'm'")
    assert what in message
    assert remedy in message
