"""How are the mistakes of a configuration reported, with what may have been meant?"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from wherry.core.api import ConfigError

#: Where a value stands: names of fields, indices of lists, keys of maps.
Path = tuple[str | int, ...]

#: Problems that are reported, and characters of each: a file may hold a million mistakes.
MOST_PROBLEMS: Final = 100
LONGEST_PROBLEM: Final = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake, and the path of the value that has it."""

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
    """The path as text: input[0].dims."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shortened(problem: str) -> str:
    return problem if len(problem) <= LONGEST_PROBLEM else problem[:LONGEST_PROBLEM] + " ..."
