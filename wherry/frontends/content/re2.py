"""How does a pattern in RE2's dialect, in which Triton's users write theirs, read in Python's?

Flags within a pattern hold for the rest of their group, `\\z` is the end, `\\Q..\\E` quotes,
groups may be named `(?<name>..)`, and POSIX classes stand in sets. All else is alike, or an error
of `re`. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_FLAGS: Final = re.compile(r"\(\?([a-zA-Z]*(?:-[a-zA-Z]+)?)([:)])")
_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_HEX: Final = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}")
#: A set, which may begin with a bracket.
_SET: Final = re.compile(r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\]", re.DOTALL)
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_CLASSES: Final = {
    "alnum": r"0-9A-Za-z", "alpha": r"A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f", "digit": r"0-9", "graph": r"!-~", "lower": r"a-z", "print": r" -~",
    "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ", "upper": r"A-Z", "word": r"0-9A-Za-z_",
    "xdigit": r"0-9A-Fa-f",
}  # fmt: skip


@dataclass(slots=True)
class _Translated:
    """A pattern that is being translated: what was written of it, and for each group that is open
    the flags that hold until its end."""

    written: list[str] = field(default_factory=list)
    open: list[list[str]] = field(default_factory=lambda: [[]])


def python_pattern(pattern: str) -> str:
    """Return the same pattern for `re`. ValueError for what that cannot do."""
    reading, place = _Translated(), 0
    while place < len(pattern):
        place += _read(reading, pattern, place)
    for flags in reversed(reading.open):
        reading.written.append(")" * len(flags))
    return "".join(reading.written)


def _read(reading: _Translated, pattern: str, place: int) -> int:
    """Translate what stands at `place`, and return how many characters that were."""
    write, groups, rest = reading.written.append, reading.open, pattern[place:]
    if found := _QUOTED.match(rest):
        write(re.escape(found[1]))
    elif found := _HEX.match(rest):
        write(re.escape(chr(int(found[1], 16))))
    elif found := _SET.match(rest):
        write(_set(found[0]))
    elif rest.startswith("\\"):
        return _escape(reading, rest[:2])
    elif found := _FLAGS.match(rest):
        if "U" in found[1]:
            raise ValueError("the flag U, which makes repetitions short, is not taken")
        within = f"(?{found[1]}:" if found[1] else "(?:"
        write(within)
        if found[2] == ":":
            groups.append([])
        else:
            groups[-1].append(within)
    elif rest.startswith("(?<") and rest[3:4] not in ("=", "!"):
        write("(?P<")
        groups.append([])
        return 3
    else:
        return _one(reading, rest[0])
    return found.end()


def _escape(reading: _Translated, given: str) -> int:
    if given in (r"\p", r"\P", r"\C"):
        raise ValueError(f"{given} is not taken; write the characters as a set")
    reading.written.append(r"\Z" if given == r"\z" else given)
    return 2


def _one(reading: _Translated, given: str) -> int:
    write, groups = reading.written.append, reading.open
    if given == "(":
        groups.append([])
    elif given == "|":  # flags hold for the other alternatives, too
        flags = groups[-1]
        write(")" * len(flags) + "|" + "".join(flags))
        return 1
    elif given == ")" and len(groups) > 1:
        write(")" * len(groups.pop()))
    write(given)
    return 1


def _set(text: str) -> str:
    """A set without POSIX classes, and without what Python takes for one set in another."""

    def known(found: re.Match[str]) -> str:
        if found[1] or found[2] not in _CLASSES:
            raise ValueError(f"the class {found[0]} is not taken")
        return _CLASSES[found[2]]

    inside = re.sub(r"(\\.)|(\[)(?!:)", lambda found: found[1] or r"\[", text[1:-1])
    return f"[{_POSIX.sub(known, inside)}]"
