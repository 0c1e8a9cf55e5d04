"""Is a model's annotation read alike however it is written, on every Python and numpy?"""

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

from wherry.core.models.annotations import without_aliases
from wherry.core.models.signature import read_signature
from wherry.core.values.datatypes import BYTES, FP32, INT64, Datatype, Form

NAMES = """
import dataclasses
import typing
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Dict, List, NamedTuple, Optional, TypedDict, Union

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

import wherry
from wherry import FP32, INT64

Plain = Annotated[np.ndarray, wherry.FP32[2]]
Texts = list[str]
"""

ARRAY = (FP32, (2,), Form.ARRAY)
ARRAYS = (FP32, (2,), Form.ARRAYS)
TEXT = (BYTES, (), Form.TEXT)

#: What a user writes, and what it says.
FORMS = {
    "list[str]": TEXT,
    "List[str]": TEXT,
    "Texts": TEXT,
    "Optional[list[str]]": TEXT,
    "list[str] | None": TEXT,
    "Union[None, List[str]]": TEXT,
    "list[bytes]": (BYTES, (), Form.BYTES),
    "list[int]": (INT64, (), Form.SCALARS),
    "Annotated[list[int], INT64]": (INT64, (), Form.SCALARS),
    "Annotated[list[float], 'a note', FP32]": (FP32, (), Form.SCALARS),
    "list[dict]": (BYTES, (), Form.JSON),
    "List[Dict[str, Any]]": (BYTES, (), Form.JSON),
    "list[Mapping[str, int]]": (BYTES, (), Form.JSON),
    "Plain": ARRAY,
    "Plain | None": ARRAY,
    "Annotated[np.ndarray, wherry.FP32[2]]": ARRAY,
    "Annotated[np.ndarray[Any, Any], FP32[2]]": ARRAY,
    "Annotated[np.ndarray[Any, np.dtype[np.float32]], FP32[2]]": ARRAY,
    "Annotated[NDArray[np.float32], FP32[2]]": ARRAY,
    "Annotated[npt.NDArray[np.floating[Any]], FP32[2]]": ARRAY,
    "Annotated[NDArray[Any], FP32[2]]": ARRAY,
    "Annotated[NDArray, FP32[2]]": ARRAY,
    "Optional[Annotated[NDArray[np.float32], FP32[2]]]": ARRAY,
    "Annotated[Optional[NDArray[np.float32]], FP32[2]] | None": ARRAY,
    "Annotated[list[np.ndarray], FP32[2]]": ARRAYS,
    "Annotated[list[NDArray[np.float32]], FP32[2]]": ARRAYS,
    "Annotated[List[NDArray], FP32[2]]": ARRAYS,
}

#: Aliases before the model; Python 3.12's statement, and what is there before it.
ALIASES = """
type Column = list[str]
type Vector = Annotated[np.ndarray, FP32[2]]
type Floats = NDArray[np.float32]
type Many[T] = list[T]
type Swapped[A, B] = dict[B, A]
type Maybe[T] = T | None
type Itself[T] = T
type Same = Column
"""
EARLIER = """
from typing import TypeVar
from typing_extensions import TypeAliasType
T, A, B = TypeVar("T"), TypeVar("A"), TypeVar("B")
Column = TypeAliasType("Column", list[str])
Vector = TypeAliasType("Vector", Annotated[np.ndarray, FP32[2]])
Floats = TypeAliasType("Floats", NDArray[np.float32])
Many = TypeAliasType("Many", list[T], type_params=(T,))
Swapped = TypeAliasType("Swapped", dict[B, A], type_params=(A, B))
Maybe = TypeAliasType("Maybe", Optional[T], type_params=(T,))
Itself = TypeAliasType("Itself", T, type_params=(T,))
Same = TypeAliasType("Same", Column)
"""
ALIASED = {
    "Column": TEXT,
    "Same": TEXT,
    "Many[str]": TEXT,
    "Maybe[Many[str]]": TEXT,
    "Column | None": TEXT,
    "Itself[Column]": TEXT,
    "Vector": ARRAY,
    "Maybe[Vector]": ARRAY,
    "Annotated[Floats, FP32[2]]": ARRAY,
    "Annotated[Many[Floats], FP32[2]]": ARRAYS,
    "list[Swapped[int, str]]": (BYTES, (), Form.JSON),
}

#: How annotations are kept: evaluated, or as text.
KEPT = {
    "evaluated": (NAMES, "{}"),
    "from __future__": ("from __future__ import annotations\n" + NAMES, "{}"),
    "as strings": (NAMES, '"{}"'),
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Makes a module of this text, as an import would."""

    def make(text: str) -> ModuleType:
        made = ModuleType("a_users_module")
        monkeypatch.setitem(sys.modules, made.__name__, made)  # dataclasses look there
        exec(compile(text, "a_users_module.py", "exec", dont_inherit=True), made.__dict__)
        return made

    return make


def spec_of(function: Callable[..., Any], what: str = "input") -> tuple[Datatype, Any, Form]:
    signature = read_signature(function, "m")
    spec = signature.inputs[0] if what == "input" else signature.outputs[0]
    return spec.datatype, spec.shape, spec.form


def read_forms(
    module: Callable[[str], ModuleType], kept: str, forms: Iterable[str], before: str = ""
) -> dict[str, object]:
    """What each form says as the type of an input."""
    names, quoted = KEPT[kept]
    functions = "".join(
        f"def function_{number}(x: {quoted.format(form)}) -> list[str]: ...\n"
        for number, form in enumerate(forms)
    )
    made = module(f"{names}{before}\n{functions}")
    return {form: spec_of(getattr(made, f"function_{number}")) for number, form in enumerate(forms)}


@pytest.mark.parametrize("kept", KEPT)
def test_every_form_of_an_annotation_is_read(
    kept: str, module: Callable[[str], ModuleType]
) -> None:
    assert read_forms(module, kept, FORMS) == FORMS


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("statement", [True, False], ids=["type statement", "TypeAliasType"])
def test_an_alias_is_what_it_stands_for(
    kept: str, statement: bool, module: Callable[[str], ModuleType]
) -> None:
    if statement and sys.version_info < (3, 12):
        pytest.skip("the type statement came with Python 3.12")
    if not statement:
        pytest.importorskip("typing_extensions")
    before = ALIASES if statement else EARLIER
    assert read_forms(module, kept, ALIASED, before) == ALIASED


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(
    "form",
    [
        "Annotated[NDArray[np.float32], FP32[2]]",
        "Iterator[Annotated[NDArray[np.float32], FP32[2]]]",
        "AsyncIterator[Plain]",
        "tuple[Annotated[NDArray[np.float32], FP32[2]], list[str]]",
        "Named",
        "Tupled",
        "Classed",
    ],
)
def test_an_output_is_read_as_an_input_is(
    form: str, kept: str, module: Callable[[str], ModuleType]
) -> None:
    names, quoted = KEPT[kept]
    field = "vector: Annotated[NDArray[np.float32], FP32[2]]"
    made = module(
        f"{names}\n"
        f"class Named(TypedDict):\n    {field}\n"
        f"class Tupled(NamedTuple):\n    {field}\n"
        f"@dataclasses.dataclass\nclass Classed:\n    {field}\n"
        f"def function(x: list[str]) -> {quoted.format(form)}: ..."
    )
    assert spec_of(made.function, "output") == ARRAY


def test_an_alias_within_its_own_definition_ends(module: Callable[[str], ModuleType]) -> None:
    typing_extensions = pytest.importorskip("typing_extensions")
    json = typing_extensions.TypeAliasType("json", "list[json] | str")
    assert without_aliases(json) == "list[json] | str"  # text that nothing has evaluated
    if sys.version_info >= (3, 12):
        made = module("type Json = dict[str, Json] | list[Json] | str")
        assert (
            without_aliases(list[made.Json]) == list[dict[str, made.Json] | list[made.Json] | str]
        )


def test_what_holds_no_alias_stays_the_same_object() -> None:
    hint = dict[str, list[int]] | None
    assert without_aliases(hint) is hint
