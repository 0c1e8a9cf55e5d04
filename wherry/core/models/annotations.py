"""Which type does an annotation mean, once aliases are resolved?

An alias is Python 3.12's `type Vector = ...`, or TypeAliasType of typing_extensions before it.
So is a NewType.
numpy's `NDArray` is one with numpy 2.5 (Python 3.12 and later), else a plain generic.
"""

import types
import typing
from typing import Any, get_args, get_origin


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
    """The value of `alias[arguments]`."""
    value = alias.__value__
    type_arguments = dict(zip(alias.__type_params__, arguments, strict=False))
    if value in type_arguments:  # `type Itself[T] = T`
        return type_arguments[value]
    parameters = getattr(value, "__parameters__", ())
    if isinstance(value, type) or not parameters:  # a class is no alias
        return value
    return value[tuple(type_arguments.get(parameter, parameter) for parameter in parameters)]
