"""What has a change taken away from those who use wherry?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe

from tools.public_api.annotations import narrowed


def breaks(before: str, now: str) -> Iterator[str]:
    """What code that ran with the stubs `before` may miss in those of `now`, in griffe's words."""
    old, new = _read(before), _read(now)
    for found in griffe.find_breaking_changes(old, new):
        change = found.as_dict()
        details = [
            f"{key.removesuffix('_value')} {value}"
            for key in ("old_value", "new_value")
            if isinstance(value := change.get(key), griffe.Parameter)
        ]
        yield f"{change['object_path']}: {found.kind.value}" + (
            f" ({', '.join(details)})" if details else ""
        )
    yield from narrowed(before, now)
    values = dict(_constants(new))
    for path, value in _constants(old):
        if value != values.get(path, value):
            yield f"{path}: Value was changed (old {value}, new {values[path]})"


def _constants(module: griffe.Module) -> Iterator[tuple[str, str]]:
    """The values of attributes of classes, by path, where there are some: griffe compares none."""
    for owner in module.classes.values():
        for attribute in owner.attributes.values():
            if attribute.value is not None:
                yield attribute.path, str(attribute.value)


def lost(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """The names that there were and are no more."""
    return sorted({*before} - {*now})


def is_allowed(released: str, now: str) -> bool:
    """Whether what is public may change between these versions: with each 0.N, then with each N."""
    old, new = ([int(part) for part in version.split(".")[:2]] for version in (released, now))
    return new[: 2 if new[0] == 0 else 1] > old[: 2 if new[0] == 0 else 1]


def _read(stubs: str) -> griffe.Module:
    return griffe.visit("wherry", filepath=Path("wherry.pyi"), code=stubs)
