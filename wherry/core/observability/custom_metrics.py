"""Which metrics does a model define itself?

One store for all instances of a model: they report additions, settings and observations, so that a
counter survives a worker that dies.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

Labels = tuple[tuple[str, str], ...]


class Kind(IntEnum):
    """The kinds of metrics, with Triton's numbers."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


@dataclass(slots=True)
class Line:
    """One metric of a family, identified by its labels."""

    value: float = 0.0
    #: Of a histogram: the number of values up to each bound, and above the last.
    counts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CustomFamily:
    name: str
    description: str
    kind: Kind
    bounds: tuple[float, ...] = ()
    lines: dict[Labels, Line] = field(default_factory=dict)


class CustomMetrics:
    """The metrics of one model. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, CustomFamily] = {}

    def measure(
        self,
        name: str,
        description: str,
        kind: Kind,
        labels: Labels,
        bounds: Sequence[float] | None,
        action: str,
        value: float,
    ) -> None:
        """Apply `action`: "add", "set" or "observe". The first call for a name defines the
        family."""
        with self._lock:
            family = self._families.get(name)
            if family is None:
                family = CustomFamily(name, description, kind, tuple(bounds or ()))
                self._families[name] = family
            line = family.lines.get(labels)
            if line is None:
                line = Line(counts=[0] * (len(family.bounds) + 1))
                family.lines[labels] = line
            if action == "set":
                line.value = value
                return
            line.value += value
            if action == "observe":
                line.counts[bisect_left(family.bounds, value)] += 1

    def value(self, name: str, labels: Labels) -> float:
        with self._lock:
            family = self._families.get(name)
            line = None if family is None else family.lines.get(labels)
            return 0.0 if line is None else line.value

    def families(self) -> list[CustomFamily]:
        """Copies of all families."""
        with self._lock:
            return [replace(one, lines=_copied(one.lines)) for one in self._families.values()]


def _copied(lines: Mapping[Labels, Line]) -> dict[Labels, Line]:
    return {labels: Line(line.value, list(line.counts)) for labels, line in lines.items()}


def merged(stores: Iterable[CustomMetrics]) -> list[CustomFamily]:
    """The families of several models. Families of one name are merged, with sums for equal labels.
    Left out: a family whose kind or bounds differ from the first of its name, and names of the
    server's own metrics."""
    families: dict[str, CustomFamily] = {}
    for store in stores:
        for family in store.families():
            if family.name.startswith(("wherry_", "nv_")):
                continue
            known = families.setdefault(family.name, family)
            if known is family or (known.kind, known.bounds) != (family.kind, family.bounds):
                continue
            for labels, line in family.lines.items():
                sum_ = known.lines.get(labels)
                if sum_ is None:
                    known.lines[labels] = line
                else:
                    sum_.value += line.value
                    sum_.counts = [a + b for a, b in zip(sum_.counts, line.counts, strict=True)]
    return list(families.values())


__all__ = ["CustomFamily", "CustomMetrics", "Kind", "Labels", "merged"]
