"""How does a row of JSON become a value of the type that a model's code declares, and plain again?

msgspec reads dataclasses, TypedDicts, NamedTuples and its own Structs. Where pydantic's models are
declared, pydantic reads the row: it is imported by the code that declares them.

What a model has returned was valid when it was made: its fields are put into an object of its class
again, without its validators and `__post_init__`, which might change it a second time.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
import numpy as np

from wherry.core.models.annotations import hints_of, without_aliases

#: The most problems of a row, and characters of each, that an error names.
_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 300


#: Types whose values need no restoring.
_AS_THEY_ARE: Final = frozenset((str, int, float, bool, dict, list, object))


class WrongRow(ValueError):
    """A row is not of its type. The text: where in the row, the expected type, and what came."""


def is_pydantic(kind: Any) -> bool:
    """Whether this is a model of pydantic's (version 2)."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def has_pydantic(kind: Any) -> bool:
    """Whether a type is, or is made of, such models: list[Person], Person | None."""
    return is_pydantic(kind) or any(map(has_pydantic, get_args(kind)))


def converter(kind: Any) -> Callable[[Any], Any]:
    """A function that converts a row to this type. It raises WrongRow."""
    if has_pydantic(kind):
        return _by_pydantic(kind)

    def convert(row: Any) -> Any:
        try:
            return msgspec.convert(row, kind, str_keys=True)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).replace("`", "").partition(" - at $")
            problem = problem[:1].lower() + problem[1:]
            place = place.removeprefix(".")
            raise WrongRow(f"{place}: {problem}" if place else problem) from None

    return convert


def plain(value: Any) -> Any:
    """A pydantic model's fields as JSON has them. TypeError for all other values."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    remedy = "; write .tolist() of it" if hasattr(value, "tolist") else ""
    raise TypeError(f"{type(value).__name__} is not JSON{remedy}")


def restorer(kind: Any) -> Callable[[Any], Any] | None:
    """A function that restores a value of this type from its plain form. What does not fit the
    type, or is of it already, stays as it is; None: for this type everything stays."""
    kind = without_aliases(kind)
    if _is_plain(kind):
        return None

    def restored(value: Any) -> Any:
        try:
            return _restored(kind, value)
        except Exception:  # noqa: BLE001 - foreign classes refuse fields by any error
            return value

    return restored


def _is_plain(kind: Any) -> bool:
    """Are values of this type what JSON has?"""
    if get_origin(kind) in (dict, list, Union, types.UnionType):
        return all(map(_is_plain, get_args(kind)))
    if get_origin(kind) is Annotated:
        return _is_plain(get_args(kind)[0])
    return kind is Any or kind is type(None) or kind in _AS_THEY_ARE


def from_fields(kind: Any, fields: Mapping[str, Any]) -> Any:
    """A dataclass, NamedTuple or model of pydantic's with these fields, which its own code has
    checked before."""
    if hasattr(kind, "_fields"):  # a NamedTuple
        return tuple.__new__(kind, [fields[name] for name in kind._fields])
    made = object.__new__(kind)
    if not is_pydantic(kind):
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made
    own, extra = dict(fields), {}
    for name in set(own) - set(kind.model_fields):
        value = own.pop(name)
        if name not in kind.model_computed_fields:
            extra[name] = value
    in_dump = set(own)
    for name, field in kind.model_fields.items():
        if name not in own:
            own[name] = field.get_default(call_default_factory=True)
    made.__setstate__(
        {
            "__dict__": own,
            "__pydantic_fields_set__": in_dump,
            "__pydantic_extra__": extra if kind.model_config.get("extra") == "allow" else None,
            "__pydantic_private__": None,
        }
    )
    if kind.__private_attributes__:
        made.model_post_init(None)
    return made


def _restored(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if value is None or kind is Any or kind in _AS_THEY_ARE:
        return value
    if origin is Annotated:
        return _restored(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _restored(_member(arguments, value), value)
    if isinstance(origin, type) and arguments:
        return _restored_within(origin, arguments, value)
    if typing.is_typeddict(kind):
        return _restored_fields(kind, value)
    if not isinstance(kind, type) or isinstance(value, kind):
        return value
    if kind is bytes:
        return value.encode()  # pydantic dumps them as text
    if hasattr(kind, "_fields"):
        value = dict(zip(kind._fields, value, strict=True))
    elif is_pydantic(kind):
        model: Any = kind
        names = {field.serialization_alias: name for name, field in model.model_fields.items()}
        value = {names.get(name, name): one for name, one in value.items()}
    if _has_fields(kind):
        return from_fields(kind, _restored_fields(kind, value))
    try:
        return converter(kind)(value)  # a Struct, an enum, a date
    except (TypeError, WrongRow):
        return _by_pydantic(kind)(value) if "pydantic" in sys.modules else value


def _restored_fields(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    return {name: _restored(hints.get(name, Any), one) for name, one in value.items()}


def _restored_within(origin: type, arguments: tuple[Any, ...], value: Any) -> Any:
    if issubclass(origin, Mapping):
        return {key: _restored(arguments[1], one) for key, one in value.items()}
    if origin is tuple:
        if Ellipsis in arguments:
            arguments = arguments[:1] * len(value)
        return tuple(map(_restored, arguments, value))
    if isinstance(value, np.ndarray):  # NDArray[...]
        return value
    items = [_restored(arguments[0], one) for one in value]
    return origin(items) if origin in (set, frozenset) else items


def _member(choices: Sequence[Any], value: Any) -> Any:
    """Which type of a union a value is of; Any if that is not clear."""
    kinds = [kind for kind in choices if kind is not type(None)]
    if isinstance(value, Mapping) and len(kinds) > 1:
        names = set(value)
        kinds = [kind for kind in kinds if _has_fields(kind) and names <= set(_hints(kind))]
        kinds = [kind for kind in kinds if names == set(_hints(kind))] or kinds
    return kinds[0] if len(kinds) == 1 else Any


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (
        is_dataclass(kind) or is_pydantic(kind) or hasattr(kind, "_fields")
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return hints_of(kind)


def _by_pydantic(kind: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def convert(row: Any) -> Any:
        try:
            try:
                # As JSON: a strict model takes a date as text from there.
                text = msgspec.json.encode(row)
            except (TypeError, ValueError):
                return adapter.validate_python(row)  # of a caller in this process
            return adapter.validate_json(text)
        except ValidationError as error:
            raise WrongRow(
                _described(error.errors(include_url=False, include_context=False))
            ) from None

    return convert


def _described(problems: list[Any]) -> str:
    texts = []
    for problem in problems[:_MOST_PROBLEMS]:
        place = ".".join(map(str, problem["loc"]))
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        if problem["type"] != "missing":
            message += f", got {type(problem['input']).__name__}"
        texts.append(f"{place}: {message}" if place else message)
    if len(problems) > _MOST_PROBLEMS:
        texts.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(one[:_MOST_CHARACTERS] for one in texts)
