"""How does a pattern in RE2's dialect, in which Triton's users write theirs, read in Python's?

Flags within a pattern hold for the rest of their group, `\\z` is the end, `\\Q..\\E` quotes,
groups may be named `(?<name>..)`, and POSIX classes stand in sets. All else is alike, or an error
of `re`. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

#: What stands at a place of a pattern, each under its own name. Sets may begin with a bracket.
_TOKEN: Final = re.compile(
    r"""\\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\x\{(?P<hex>[0-9a-fA-F]{1,6})\}
    | (?P<escape>\\.)
    | (?P<set>\[\^?+\]?+(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*+(?P<closed>\])?)
    | \(\?(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<ends>[:)])
    | (?P<named>\(\?<(?![=!]))
    | (?P<one>.)""",
    re.DOTALL | re.VERBOSE,
)
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_CLASSES: Final = {
    "alnum": r"0-9A-Za-z", "alpha": r"A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f", "digit": r"0-9", "graph": r"!-~", "lower": r"a-z", "print": r" -~",
    "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ", "upper": r"A-Z", "word": r"0-9A-Za-z_",
    "xdigit": r"0-9A-Fa-f",
}  # fmt: skip


@dataclass(slots=True)
class _Group:
    """A group that is open: the flags that were set in it, and within how many groups of Python's
    they hold."""

    flags: dict[str, bool] = field(default_factory=dict)
    within: int = 0

    def set(self, flags: str) -> str:
        on, _, off = flags.partition("-")
        self.flags |= dict.fromkeys(on, True) | dict.fromkeys(off, False)
        self.within += 1
        return f"(?{flags}:"

    def again(self) -> str:
        """What sets the flags for another alternative."""
        if not self.within:
            return ""
        self.within = 1
        on, off = (
            "".join(flag for flag, is_on in self.flags.items() if is_on is wanted)
            for wanted in (True, False)
        )
        return f"(?{on}-{off}:" if off else f"(?{on}:"

    def end(self) -> str:
        return ")" * self.within


def python_pattern(pattern: str) -> str:
    """Return the same pattern for `re`. ValueError for what that cannot do, re.error for a set
    without an end. Linear."""
    groups = [_Group()]
    written = [_translated(found, groups) for found in _TOKEN.finditer(pattern)]
    return "".join(written) + "".join(group.end() for group in groups)


def _translated(found: re.Match[str], groups: list[_Group]) -> str:
    """What one token becomes; it may open a group or end it."""
    if found["quoted"] is not None:
        return re.escape(found["quoted"])
    if found["hex"]:
        return re.escape(chr(int(found["hex"], 16)))
    if found["escape"]:
        return _escape(found["escape"])
    if found["set"]:
        if not found["closed"]:
            raise re.error("a set has no end", found.string, found.start())
        return _set(found["set"])
    if found["ends"]:
        return _flagged(found["flags"], found["ends"], groups)
    if found["named"]:
        groups.append(_Group())
        return "(?P<"
    return _one(found["one"], groups)


def _escape(given: str) -> str:
    if given in (r"\p", r"\P", r"\C"):
        raise ValueError(f"{given} is not taken; write the characters as a set")
    return r"\Z" if given == r"\z" else given


def _flagged(flags: str, ends: str, groups: list[_Group]) -> str:
    if "U" in flags:
        raise ValueError("the flag U, which makes repetitions short, is not taken")
    if ends == ")":
        return groups[-1].set(flags)
    groups.append(_Group())
    return f"(?{flags}:"


def _one(given: str, groups: list[_Group]) -> str:
    if given == "(":
        groups.append(_Group())
    elif given == "|":  # flags hold for the other alternatives, too
        return groups[-1].end() + "|" + groups[-1].again()
    elif given == ")" and len(groups) > 1:
        return groups.pop().end() + ")"
    return given


def _set(text: str) -> str:
    """A set without POSIX classes, and without what Python takes for one set in another."""

    def known(found: re.Match[str]) -> str:
        if found[1] or found[2] not in _CLASSES:
            raise ValueError(f"the class {found[0]} is not taken")
        return _CLASSES[found[2]]

    inside = re.sub(r"(\\.)|(\[)(?!:)", lambda found: found[1] or r"\[", text[1:-1])
    return f"[{_POSIX.sub(known, inside)}]"
