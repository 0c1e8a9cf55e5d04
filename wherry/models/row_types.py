"""How does a row of JSON become a value of the type that a model's code declares, and plain again?

msgspec reads dataclasses, TypedDicts, NamedTuples and its own Structs. Where pydantic's models are
declared, pydantic reads the row: it is imported by the code that declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec

#: Of all that is wrong with a row so much is told.
_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 300


class WrongRow(ValueError):
    """A row is not of its type; says where in it, which type was expected, and what came."""


def is_pydantic(kind: Any) -> bool:
    """Whether this is a model of pydantic's (version 2)."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def has_pydantic(kind: Any) -> bool:
    """Whether a type is, or is made of, such models: list[Person], Person | None."""
    return is_pydantic(kind) or any(map(has_pydantic, get_args(kind)))


def converter(kind: Any) -> Callable[[Any], Any]:
    """A function that makes a value of this type of a row. It raises WrongRow."""
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
    raise TypeError(f"{type(value).__name__} is no JSON{remedy}")


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
            raise WrongRow(_told(error.errors(include_url=False, include_context=False))) from None

    return convert


def _told(problems: list[Any]) -> str:
    told = []
    for problem in problems[:_MOST_PROBLEMS]:
        place = ".".join(map(str, problem["loc"]))
        message = problem["msg"][:1].lower() + problem["msg"][1:]
        if problem["type"] != "missing":
            message += f", got {type(problem['input']).__name__}"
        told.append(f"{place}: {message}" if place else message)
    if len(problems) > _MOST_PROBLEMS:
        told.append(f"and {len(problems) - _MOST_PROBLEMS} more")
    return "; ".join(one[:_MOST_CHARACTERS] for one in told)
