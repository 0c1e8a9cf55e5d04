"""Which fields does a message of a configuration have, and what may stand in each?

The classes in triton_config.py are read once: the two notations, text and JSON, follow this table.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import types
import typing
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec

from wherry.values.errors import ConfigError

#: Where a value stands: names of fields, indices of lists, keys of maps.
Path = tuple[str | int, ...]

#: Numbers that may be negative; all others count something.
SIGNED = frozenset({"dims", "shape", "dim", "model_version", "level", "int32_false_true"})
#: The largest number that protobuf has room for: 63 bits, or 64 for what is not negative.
LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    name: str
    #: Its name in Python, if the other one is a keyword there.
    attribute: str
    #: int, float, bool, str; a subclass of msgspec.Struct; or the names of an enum.
    kind: Any
    #: A list of them, or a map from keys of the type `key` to them.
    many: bool
    key: type | None
    default: Any

    @property
    def is_message(self) -> bool:
        return isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct)

    @property
    def is_enum(self) -> bool:
        return isinstance(self.kind, tuple)

    def is_silent(self, value: Any) -> bool:
        """May `value` go unsaid? It is the default, and that is protobuf's own zero."""
        zero = self.kind[0] if self.is_enum and not self.many else None
        return bool(value == self.default and (not self.default or self.default == zero))


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and with which value."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.text}" if self.path else self.text


#: Problems that are reported, and characters of each: a file may hold a million mistakes.
MOST_PROBLEMS = 100
LONGEST_PROBLEM = 500


class BadConfig(ConfigError):
    """A configuration with all that is wrong in it, a line for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        told = [_shortened(problem) for problem in itertools.islice(problems, MOST_PROBLEMS + 1)]
        if len(told) > MOST_PROBLEMS:
            told[MOST_PROBLEMS] = f"more than {MOST_PROBLEMS} problems; the others are not listed"
        self.problems = tuple(told)
        super().__init__("\n".join(self.problems))


def _shortened(problem: str) -> str:
    return problem if len(problem) <= LONGEST_PROBLEM else problem[:LONGEST_PROBLEM] + " ..."


@functools.cache
def fields_of(message: type[msgspec.Struct]) -> dict[str, Field]:
    hints = typing.get_type_hints(message)
    return {
        field.encode_name: _field(field.encode_name, field.name, hints[field.name], _default(field))
        for field in msgspec.structs.fields(message)
    }


#: Fields of one message of which at most one may be said.
ONE_OF = {
    "TritonConfig": ("dynamic_batching", "sequence_batching", "ensemble_scheduling"),
    "VersionPolicy": ("latest", "all", "specific"),
    "SequenceBatching": ("direct", "oldest"),
    "InitialState": ("zero_data", "data_file"),
    "WarmupInput": ("zero_data", "random_data", "input_data_file"),
}


def one_of_twice(message: type[msgspec.Struct], said: Iterable[str]) -> str | None:
    """What is wrong if two of these fields exclude each other."""
    said = set(said)
    both = [name for name in ONE_OF.get(message.__name__, ()) if name in said]
    return f"only one of {' and '.join(both)} may be set" if len(both) > 1 else None


def unknown(name: str, known: Iterable[str], what: str = "field") -> str:
    """`name` is not known; what is near to it, or may be said."""
    names = list(known)
    close = nearest(name, names, cutoff=0.75)
    hint = f"did you mean {close!r}?" if close else f"known are: {', '.join(names)}"
    return f"unknown {what} {name!r}; {hint}"


def nearest(name: str, known: Collection[str], *, cutoff: float) -> str | None:
    """The known name that is most like `name`, if one is. Long ones, and many, are not compared."""
    if len(name) > 64 or len(known) > 64:
        return None
    names = [one for one in known if len(one) <= 64]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


def shown(path: Path) -> str:
    """input[0].dims"""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def out_of_range(field: Field, number: int) -> str | None:
    if number < 0 and field.name not in SIGNED:
        return f"{number} must not be negative"
    return f"{number} is out of range" if not -LARGEST <= number <= LARGEST else None


def _field(name: str, attribute: str, hint: Any, default: Any) -> Field:
    arguments = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) is types.UnionType:  # X | None
        hint, arguments = arguments[0], list(get_args(arguments[0]))
    if get_origin(hint) is list:
        return Field(name, attribute, _kind(arguments[0]), True, None, default)
    if get_origin(hint) is dict:
        return Field(name, attribute, _kind(arguments[1]), True, arguments[0], default)
    return Field(name, attribute, _kind(hint), False, None, default)


def _kind(hint: Any) -> Any:
    return get_args(hint) if get_origin(hint) is Literal else hint


def _default(field: Any) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
