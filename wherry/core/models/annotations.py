"""Which type does an annotation mean, once aliases are resolved, and what is to be written instead
of one that cannot be served?

An alias is Python 3.12's `type Vector = ...`, or TypeAliasType of typing_extensions before it.
So is a NewType.
numpy's `NDArray` is one with numpy 2.5 (Python 3.12 and later), else a plain generic.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any, Final, Union, get_args, get_origin

import msgspec


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


_KINDS: Final = (
    "use list[str], list[bytes], list[int], list[float], list[bool], list[dict], each also without"
    " list[] for one row a call; a dataclass, also with dates, enums and literals; Sequence[str]"
    " for a list in one row; wherry.File for a path; Annotated[np.ndarray, wherry.FP32[...]] for"
    " arrays; Iterator[list[str]] for a stream"
)


def shown(hint: Any) -> str:
    return inspect.formatannotation(hint)


def remedy(element: Any, in_list: bool) -> str:
    """What to write for `element`, or for a list of it."""
    if get_origin(element) not in (Union, types.UnionType):
        return _KINDS
    if type(None) not in get_args(element):
        return "an input has one type; write dict, or str, and check it in the code"
    inner = shown(next(one for one in get_args(element) if one is not type(None)))
    optional = f"list[{inner}]" if in_list else inner
    return f"a row is always there; an input that may be left out is {optional} | None = None"


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
