"""What has a program changed in a model, or in its class, since it was made?

A second instance makes the model as the program did: by import, and by its constructor. What the
program sets after that (`model.k = 100`, `model.words.append("a")`, `Scorer.k = 5`) is passed on
beside.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType, SimpleNamespace
from typing import Any

#: Of an attribute that is larger, only what is within this is looked at.
_LARGEST_BYTES = 1 << 20
_MOST_OBJECTS = 100_000

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, defaultdict, OrderedDict, Counter)
_BY_VALUE = frozenset(
    [NoneType, bool, int, float, complex, str, bytes, bytearray, SimpleNamespace, *_CONTAINERS]
)
_NOT_OF_PROGRAMS = sys.stdlib_module_names | {"wherry"}

#: An attribute's identity, and a hash of what is in it.
State = tuple[int, int]


@dataclass(slots=True)
class AttributeChanges:
    """What differs from a model that was made anew."""

    attributes: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    #: Of its classes, by their place in its `__mro__`.
    of_classes: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Attributes that are the objects of the constructor, with something else in them.
    within: set[str] = field(default_factory=set)
    #: The same of its classes.
    within_classes: set[str] = field(default_factory=set)

    def apply(self, model: Any) -> None:
        vars(model).update(self.attributes)
        for name in self.removed:
            vars(model).pop(name, None)


def states(attributes: Mapping[str, Any]) -> dict[str, State]:
    return {name: _state(value) for name, value in attributes.items()}


def class_attributes(cls: type) -> dict[str, Any]:
    """But for those that Python sets, and this package."""
    return {
        name: value
        for name, value in vars(cls).items()
        if not name.startswith(("__", "_abc_", "_wherry_"))
    }


def changes(model: Any, made: Mapping[str, State], ours: frozenset[str]) -> AttributeChanges:
    """What has changed in `model` since its attributes had the states `made`. Those named `ours`
    are the package's, which do not count."""
    own = {name: value for name, value in vars(model).items() if name not in ours}
    changed = AttributeChanges(
        removed=[name for name in made if name not in own and name not in ours]
    )
    for name, value in _changed(own, made):
        if not isinstance(getattr(type(model), name, None), cached_property):
            changed.attributes[name] = value
            if name in made and made[name][0] == id(value):
                changed.within.add(name)
    for place, cls in enumerate(type(model).__mro__):
        if (made_class := vars(cls).get("_wherry_class")) is not None:
            values = dict(_changed(class_attributes(cls), made_class))
            if values:
                changed.of_classes[place] = values
                changed.within_classes |= {
                    name for name in values if made_class.get(name, (0, 0))[0] == id(values[name])
                }
    return changed


def _changed(now: Mapping[str, Any], made: Mapping[str, State]) -> Iterator[tuple[str, Any]]:
    for name, value in now.items():
        if name not in made or made[name][1] != _state(value)[1]:
            yield name, value


def _state(value: Any) -> State:
    written = _Written()
    try:
        _ByValue(written).dump(value)
    except Exception:  # noqa: BLE001 - too large, too deep, or what the object's own code raises
        return id(value), id(value)
    return id(value), hash(written.getvalue())


class _Written(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _LARGEST_BYTES:
            raise ValueError("too large")
        return super().write(data)


class _ByValue(pickle.Pickler):
    """Writes plain values, containers and a program's own plain objects by what is in them, and
    all others (locks, threads, networks) by their identity."""

    _objects = 0

    def persistent_id(self, value: Any) -> str | None:
        self._objects += 1
        if self._objects > _MOST_OBJECTS:
            raise ValueError("too many objects")
        kind = type(value)
        if kind in _BY_VALUE or _is_small_array(value, kind) or _is_plain_object(kind):
            return None
        return str(id(value))


def _is_small_array(value: Any, kind: type) -> bool:
    return (
        kind.__module__ == "numpy"
        and hasattr(value, "nbytes")
        and value.nbytes <= _LARGEST_BYTES
        and not value.dtype.hasobject
    )


def _is_plain_object(kind: Any) -> bool:
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__
        and not issubclass(kind, type)
        and bool(kind.__flags__ & 1 << 9)  # a class statement has made it, not C
        and kind.__module__.partition(".")[0] not in _NOT_OF_PROGRAMS
    )
