"""Which fields does a message of a configuration have, which values can each have, and how are
mistakes reported, with a guess of what was meant?

The two notations, text and JSON, are read and written by the table that `fields_of` makes of the
classes in triton_config.py.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import types
import typing
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

import msgspec

from wherry.core.api import ConfigError

#: Where a value stands: names of fields, indices of lists, keys of maps.
Path = tuple[str | int, ...]

#: Problems that are reported, and characters of each: a file may hold a million mistakes.
MOST_PROBLEMS: Final = 100
LONGEST_PROBLEM: Final = 500


@dataclass(frozen=True, slots=True)
class Problem:
    path: Path
    text: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.text}" if self.path else self.text


class BadConfig(ConfigError):
    """Raised for a configuration with all of its problems, a line for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        lines = [_shortened(problem) for problem in itertools.islice(problems, MOST_PROBLEMS + 1)]
        if len(lines) > MOST_PROBLEMS:
            lines[MOST_PROBLEMS] = f"more than {MOST_PROBLEMS} problems; the others are not listed"
        self.problems = tuple(lines)
        super().__init__("\n".join(self.problems))


def unknown(name: str, known: Iterable[str], what: str = "field") -> str:
    """The problem that `name` is not known, with the names that may have been meant."""
    names = list(known)
    close = nearest(name, names, cutoff=0.75)
    hint = f"did you mean {close!r}?" if close else f"known are: {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def is_blank(text: str) -> bool:
    """Whether this is `${name}`, as in the templates that tensorrtllm_backend and others bring."""
    return text.startswith("${") and text.endswith("}")


def unfilled(blank: str, expected: str) -> str:
    """The problem that a template's `${name}` is still there."""
    return (
        f"{blank} is not filled in: write {expected} in its place, by hand or with the template's"
        " script (fill_template.py)"
    )


def nearest(name: str, known: Collection[str], *, cutoff: float) -> str | None:
    """The known name that is most like `name`, if one is. Long ones, and many, are not compared:
    that takes time that grows with the square of their length."""
    if len(name) > 64 or len(known) > 64:
        return None
    names = [one for one in known if len(one) <= 64]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


def shown(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shortened(problem: str) -> str:
    return problem if len(problem) <= LONGEST_PROBLEM else problem[:LONGEST_PROBLEM] + " ..."


class TritonMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A protobuf message: every field has a default."""

    #: Fields of which at most one may be set.
    one_of: ClassVar[tuple[str, ...]] = ()


#: protobuf's whole numbers, with the least and the largest that each has room for.
Int32 = Annotated[int, (-(2**31), 2**31 - 1)]
Int64 = Annotated[int, (-(2**63), 2**63 - 1)]
UInt32 = Annotated[int, (0, 2**32 - 1)]
UInt64 = Annotated[int, (0, 2**64 - 1)]


@dataclass(frozen=True, slots=True)
class ConfigField:
    """A field of a message, or the keys or values of a map."""

    name: str
    #: Its name in Python, if the other one is a keyword there.
    attribute: str
    #: int, float, bool, str; a subclass of TritonMessage; or the names of an enum.
    kind: Any
    #: The least and the largest whole number.
    limits: tuple[int, int] = (0, 0)
    #: A list of them, or a map from `key` to them.
    many: bool = False
    key: ConfigField | None = None
    default: Any = None

    @property
    def is_message(self) -> bool:
        return isinstance(self.kind, type) and issubclass(self.kind, TritonMessage)

    @property
    def is_enum(self) -> bool:
        return isinstance(self.kind, tuple)

    def is_silent(self, value: Any) -> bool:
        """Whether `value` may be left out: it is the default, and that is protobuf's own zero."""
        zero = self.kind[0] if self.is_enum and not self.many else None
        return bool(value == self.default and (not self.default or self.default == zero))

    def out_of_range(self, number: int) -> str | None:
        """The problem of a whole number outside of the limits; None within them."""
        least, largest = self.limits
        if number < 0 and least == 0:
            return f"{number} must not be negative"
        return None if least <= number <= largest else f"{number} is out of range"


@functools.cache
def fields_of(message: type[TritonMessage]) -> dict[str, ConfigField]:
    hints = typing.get_type_hints(message, include_extras=True)
    return {
        field.encode_name: _field(field.encode_name, field.name, hints[field.name], _default(field))
        for field in msgspec.structs.fields(message)
    }


def one_of_twice(message: type[TritonMessage], set_fields: Iterable[str]) -> str | None:
    set_fields = set(set_fields)
    both = [name for name in message.one_of if name in set_fields]
    return f"only one of {' and '.join(both)} may be set" if len(both) > 1 else None


def _field(name: str, attribute: str, hint: Any, default: Any) -> ConfigField:
    if get_origin(hint) is types.UnionType:  # X | None
        hint = get_args(hint)[0]
    many, key = get_origin(hint) in (list, dict), None
    if get_origin(hint) is dict:
        word, hint = get_args(hint)
        key = _field("key", "key", word, None)
    elif many:
        (hint,) = get_args(hint)
    limits = (0, 0)
    if get_origin(hint) is Annotated:
        hint, limits = get_args(hint)
    kind = get_args(hint) if get_origin(hint) is Literal else hint
    return ConfigField(name, attribute, kind, limits, many, key, default)


def _default(field: Any) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
