"""How is a configuration written as JSON, and what can the JSON of a load request contain?

As in protobuf's own JSON, numbers may be strings, enums names or numbers, and `maxBatchSize` is
`max_batch_size`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from wherry.triton.repository.normalise import normalised
from wherry.triton.repository.schema import (
    BadConfig,
    ConfigField,
    Path,
    Problem,
    TritonMessage,
    fields_of,
    one_of_twice,
    unknown,
)
from wherry.triton.repository.triton_config import TritonConfig

M = TypeVar("M", bound=TritonMessage)

_WRONG = object()


def from_json(source: bytes | str | Mapping[str, Any], *, what: str = "config") -> TritonConfig:
    """Read a configuration from JSON, as text or decoded. BadConfig names every mistake."""
    reader = _Reader()
    config = reader.message(TritonConfig, _object(source, what), ())
    if reader.problems:
        raise BadConfig(f"{what}: {problem}" for problem in reader.problems)
    return config


def patched(config: TritonConfig, patch: bytes | str | Mapping[str, Any]) -> TritonConfig:
    """Apply a JSON merge patch (RFC 7396): messages and maps are merged, lists are replaced, null
    removes a member."""
    changes = _in_our_names(TritonConfig, _object(patch, "patch"))
    return from_json(_merged(set_fields(config), changes), what="patch")


def to_json(config: TritonConfig, *, gpus: Sequence[int] = ()) -> dict[str, Any]:
    """Write a configuration as Triton shows it: normalised, and with the default of every scalar,
    list and map. `gpus`: the indices of the machine's GPUs."""
    return filled(normalised(config, gpus))


def filled(message: TritonMessage) -> dict[str, Any]:
    """Write every scalar, list and map, with its default, and the messages that are set."""
    return {
        name: _json_of(value, filled)
        for name, field in fields_of(type(message)).items()
        if (value := getattr(message, field.attribute)) is not None
    }


def set_fields(message: TritonMessage) -> dict[str, Any]:
    return {
        name: _json_of(value, set_fields)
        for name, field in fields_of(type(message)).items()
        if not field.is_silent(value := getattr(message, field.attribute))
    }


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def message(self, cls: type[M], value: Any, path: Path) -> M:
        if not isinstance(value, Mapping):
            self._wrong(path, f"expected an object, not {_kind_of(value)}")
            return cls()
        fields = fields_of(cls)
        found: dict[str, Any] = {}
        for name, member in value.items():
            field = fields.get(name) or fields.get(_snake_case(name))
            if field is None:
                self._wrong((*path, name), unknown(name, fields))
            elif member is not None:  # null: the field is not set
                found[field.name] = self._field(field, member, (*path, field.name))
        twice = one_of_twice(cls, found)
        if twice:
            self._wrong(path, twice)
        attributes = {fields[name].attribute: value for name, value in found.items()}
        return cls(**{name: v for name, v in attributes.items() if v is not _WRONG})

    def _field(self, field: ConfigField, value: Any, path: Path) -> Any:
        if field.key is not None:
            if not isinstance(value, Mapping):
                return self._wrong(path, f"expected an object, not {_kind_of(value)}")
            return {
                self._one(field.key, key, (*path, key)): self._one(field, one, (*path, key))
                for key, one in value.items()
            }
        if field.many:
            if not isinstance(value, list | tuple):
                return self._wrong(path, f"expected a list, not {_kind_of(value)}")
            return [self._one(field, one, (*path, i)) for i, one in enumerate(value)]
        return self._one(field, value, path)

    def _one(self, field: ConfigField, value: Any, path: Path) -> Any:
        if field.is_message:
            return self.message(field.kind, value, path)
        if field.is_enum:
            return self._enum(field.kind, value, path)
        if field.kind is bool or field.kind is str:
            if type(value) is not field.kind:
                expected = "true or false" if field.kind is bool else "a string"
                return self._wrong(path, f"expected {expected}, not {_kind_of(value)}")
            return value
        try:
            number = _number(field.kind, value)
        except (ValueError, OverflowError):
            expected = "a whole number" if field.kind is int else "a number"
            return self._wrong(path, f"expected {expected}, not {_kind_of(value)}")
        problem = field.out_of_range(number) if field.kind is int else None
        return self._wrong(path, problem) if problem else number

    def _enum(self, names: tuple[str, ...], value: Any, path: Path) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            return names[value]
        if isinstance(value, str) and value in names:
            return value
        return self._wrong(path, unknown(str(value), names, "value"))

    def _wrong(self, path: Path, text: str) -> Any:
        self.problems.append(Problem(path, text))
        return _WRONG


def _number(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    number = kind(value)
    if kind is int and not isinstance(value, str) and number != value:
        raise ValueError
    return number


def _object(source: bytes | str | Mapping[str, Any], what: str) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    try:
        value = msgspec.json.decode(source)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadConfig([f"{what}: it is not JSON: {error}"]) from None
    if not isinstance(value, dict):
        raise BadConfig([f"{what}: expected an object, not {_kind_of(value)}"])
    return value


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return new
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _in_our_names(cls: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    fields = fields_of(cls)
    named: dict[str, Any] = {}
    for name, member in value.items():
        field = fields.get(name) or fields.get(_snake_case(name))
        if field is None:
            named[name] = member
        elif field.is_message and not field.many:
            named[field.name] = _in_our_names(field.kind, member)
        else:
            named[field.name] = member
    return named


def _json_of(value: Any, of_message: Any) -> Any:
    if isinstance(value, TritonMessage):
        return of_message(value)
    if isinstance(value, list):
        return [_json_of(one, of_message) for one in value]
    if isinstance(value, dict):
        return {str(key): _json_of(one, of_message) for key, one in value.items()}
    return value


def _snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", str: "a string", dict: "an object", list: "a list"}
    text = kinds.get(type(value), "a number" if isinstance(value, int | float) else "null")
    return f"{value!r}" if isinstance(value, str | int | float) and len(str(value)) < 40 else text
