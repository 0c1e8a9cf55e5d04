"""What does an annotation say, once the names that stand for others are replaced?

A name may be one of Python 3.12's `type Vector = ...`, or typing_extensions' TypeAliasType before
it. numpy's own `NDArray` is one where numpy 2.5 runs (Python 3.12 and later); before, it is a plain
generic.
"""

import types
import typing
from typing import Any, get_args, get_origin


def hints_of(annotated: Any) -> dict[str, Any]:
    """The annotations of a function or class by name, all their aliases replaced.

    Errors are those of typing.get_type_hints().
    """
    hints = typing.get_type_hints(annotated, include_extras=True)
    return {name: without_aliases(hint) for name, hint in hints.items()}


def without_aliases(hint: Any, _within: tuple[Any, ...] = ()) -> Any:
    """The annotation that `hint` stands for, down to its last argument.

    An alias inside of its own definition stays: JSON's values are described like that.
    """
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
        # get_args() has the metadata behind the type; a nested Annotated becomes flat here.
        return typing.Annotated[replaced[0], *arguments[1:]]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[replaced]  # noqa: UP007 - a union of any number
    if isinstance(hint, types.GenericAlias):
        return types.GenericAlias(origin, replaced)
    return hint.copy_with(replaced)


def _with_arguments(alias: Any, arguments: tuple[Any, ...]) -> Any:
    """What `alias[arguments]` stands for."""
    value = alias.__value__
    given = dict(zip(alias.__type_params__, arguments, strict=False))
    if value in given:  # `type Itself[T] = T`
        return given[value]
    parameters = getattr(value, "__parameters__", ())
    if isinstance(value, type) or not parameters:  # a class stands for itself
        return value
    return value[tuple(given.get(parameter, parameter) for parameter in parameters)]
