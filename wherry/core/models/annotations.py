"""Which type does an annotation mean, once aliases are resolved, and what is to be written instead
of one that cannot be served?

An alias is Python 3.12's `type Vector = ...`, or TypeAliasType of typing_extensions before it.
So is a NewType.
numpy's `NDArray` is one with numpy 2.5 (Python 3.12 and later), else a plain generic.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import pathlib
import types
import typing
import uuid
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
import numpy as np


def hints_of(annotated: Any) -> dict[str, Any]:
    """The annotations of a function or class by name, with all aliases resolved.

    Raises what typing.get_type_hints() raises.
    """
    hints = typing.get_type_hints(annotated, include_extras=True)
    return {name: without_aliases(hint) for name, hint in hints.items()}


def without_aliases(hint: Any, _within: tuple[Any, ...] = ()) -> Any:
    """`hint` with all aliases in it resolved.

    An alias within its own definition stays: recursive types such as JSON values use that.
    """
    if isinstance(hint, typing.NewType):
        return without_aliases(hint.__supertype__, _within)
    origin, arguments = get_origin(hint), get_args(hint)
    alias = hint if origin is None else origin
    if hasattr(alias, "__value__") and hasattr(alias, "__type_params__"):
        if alias in _within:
            return hint
        stands_for = _with_arguments(alias, arguments) if arguments else alias.__value__
        return without_aliases(stands_for, (*_within, alias))
    replaced = tuple(without_aliases(argument, _within) for argument in arguments)
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    if origin is typing.Annotated:
        # get_args() has the metadata after the type; nested Annotated become flat.
        return typing.Annotated[replaced[0], *arguments[1:]]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[replaced]  # noqa: UP007 - a union of any number
    if isinstance(hint, types.GenericAlias):
        return types.GenericAlias(origin, replaced)
    return hint.copy_with(replaced)


def _with_arguments(alias: Any, arguments: tuple[Any, ...]) -> Any:
    value = alias.__value__
    type_arguments = dict(zip(alias.__type_params__, arguments, strict=False))
    if value in type_arguments:  # `type Itself[T] = T`
        return type_arguments[value]
    parameters = getattr(value, "__parameters__", ())
    if isinstance(value, type) or not parameters:  # a class is not an alias
        return value
    return value[tuple(type_arguments.get(parameter, parameter) for parameter in parameters)]


#: Packages with arrays of their own, by what leads from numpy and back.
_FROM_NUMPY: Final = {
    "torch": "torch.from_numpy(x), y.numpy()",
    "tensorflow": "tf.constant(x), y.numpy()",
    "jax": "jnp.asarray(x), np.asarray(y)",
    "jaxlib": "jnp.asarray(x), np.asarray(y)",
    "cupy": "cupy.asarray(x), y.get()",
    "paddle": "paddle.to_tensor(x), y.numpy()",
}
_KINDS: Final = (
    "use list[str], list[bytes], list[int], list[float], list[bool], list[dict], each also without"
    " list[] for one row a call, a dataclass, or Annotated[np.ndarray, wherry.FP32[...]]"
)
_TABLES: Final = ("pandas", "polars", "pyarrow")
_OF_A_FIELD: Final = (
    enum.Enum, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal
)  # fmt: skip
#: Numbers of numpy by the Python type that a single one of them is annotated with.
_NUMBERS: Final = {"i": "int", "u": "int", "f": "float", "b": "bool"}


def shown(hint: Any) -> str:
    return inspect.formatannotation(hint)


def remedy(element: Any, in_list: bool) -> str:
    """What to write for `element`, or for a list of it, or why there is no such thing."""

    def column(of: str) -> str:
        return f"list[{of}]" if in_list else of

    origin = get_origin(element) or element
    kind = origin if isinstance(origin, type) else object
    package = kind.__module__.partition(".")[0]
    if package in _FROM_NUMPY:
        ways = _FROM_NUMPY[package]
        return f"write Annotated[np.ndarray, wherry.FP32[384]], and in the code {ways}"
    if package in _TABLES:
        return f"write a parameter for each column of the table, or {column('dict')}"
    if issubclass(kind, np.generic):
        number = _NUMBERS.get(np.dtype(kind).kind) if kind in np.sctypeDict.values() else None
        name = np.dtype(kind).name.upper().replace("FLOAT", "FP") if number else ""
        return f"write Annotated[{column(number)}, wherry.{name}]" if number else _KINDS
    if origin in (Union, types.UnionType):
        if type(None) not in get_args(element):
            return f"an input has one type; write {column('dict')}, or {column('str')}"
        inner = next(one for one in get_args(element) if one is not type(None))
        optional = f"{column(shown(inner))} | None = None"
        return f"a row is always there; an input that may be left out is {optional}"
    if origin is Literal or issubclass(kind, _OF_A_FIELD) or hasattr(kind, "_fields"):
        return f"write {column('str')}, or a dataclass with such a field, which is checked"
    if issubclass(kind, pathlib.PurePath):
        return f"write {column('wherry.File')}: a client's files are not here"
    if issubclass(kind, bytearray | memoryview):
        return f"write {column('bytes')}"
    if issubclass(kind, Iterator | AsyncIterable):
        return f"say what it yields: {kind.__name__}[list[str]]"
    if issubclass(kind, Mapping):
        return f"write {column('dict')}"
    if issubclass(kind, Iterable) and kind is not str:
        inside = shown(get_args(element)[0]) if get_args(element) else "int"
        return f"write {column(f'Sequence[{inside}]')}"
    return _KINDS


def is_constraint(extra: Any) -> bool:
    """Whether what stands beside a type in Annotated limits its values: pydantic's Field(gt=0),
    annotated_types.Gt(0), msgspec.Meta(gt=0). Descriptions do not."""
    kind = type(extra)
    package = kind.__module__.partition(".")[0]
    if isinstance(extra, msgspec.Meta):
        documented = ("title", "description", "examples", "extra_json_schema", "extra")
        return any(
            value is not None for name, value, *_ in extra.__rich_repr__() if name not in documented
        )
    if any(base.__name__ == "FieldInfo" for base in kind.__mro__):  # pydantic's, and FastAPI's
        return bool(extra.metadata)
    return package in ("annotated_types", "pydantic")
