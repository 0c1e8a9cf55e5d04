"""What is to be written instead of an annotation that cannot be served?"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import pathlib
import types
import uuid
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

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
    """An annotation as it is written in code."""
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
