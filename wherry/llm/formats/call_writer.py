"""Which grammar do calls have in a family's own notation, and where does it begin in a text?

In llguidance's dialect of Lark. What is before a call, between calls and behind them is free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: The arguments' schemas by the names of the functions; None: any arguments.
Strict = Mapping[str, Mapping[str, Any] | None]
#: JSON with the blanks of `constraint.SPACES`; and without escapes that Python reads otherwise.
_JSON: Final = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n]?"}
PYTHON_JSON: Final = {**_JSON, "json_allowed_escapes": '"\\bfnrt'}
#: What a template has besides literal text: a function's name, its arguments in JSON, an argument's
#: name, a number, a call's id, whether a value is a text, and a type's name.
_FIELDS: Final = re.compile(r"\{(name|arguments|key|n|id|string|type)\}")
_KNOWN: Final = {"n": "DIGITS", "id": "/[A-Za-z0-9_-]{1,64}/", "type": "/[a-z]{1,16}/"}
_OPTIONAL: Final = {"[[": "(", "]]": ")?"}


@dataclass(frozen=True, slots=True)
class Opening:
    """One way in which calls begin: a pattern of the text from which they follow the `rule`."""

    begin: str
    rule: str
    #: Only where an answer begins.
    first: bool = False


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """A grammar of calls, and the patterns of what it begins with: anywhere, or where an answer
    begins."""

    lark: str
    anywhere: re.Pattern[str]
    first: re.Pattern[str]


class CallWriter:
    """Writes the rules for calls of some functions. `marks` are the tokens that are no text, and
    their ids."""

    def __init__(self, functions: Strict, marks: Mapping[str, int]) -> None:
        self.functions = functions
        self._tokens = marks
        longest = sorted(marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        #: By their names.
        self.rules: dict[str, str] = {"SPACE": r"/[ \n\t]{1,4}/", "DIGITS": "/[0-9]{1,4}/"}

    @property
    def names(self) -> str:
        """A pattern of the functions' names."""
        return "|".join(map(re.escape, self.functions))

    def rule(self, name: str, *alternatives: str) -> str:
        """Add a rule; return its name."""
        self.rules[name] = " | ".join(alternatives)
        return name

    def text(self, literal: str) -> str:
        """A text that is written as it stands, with such tokens in it."""
        parts: list[str] = []
        at = 0
        for found in self._marks.finditer(literal):
            parts += [_quoted(literal[at : found.start()]), f"<[{self._tokens[found[0]]}]>"]
            at = found.end()
        return " ".join(part for part in [*parts, _quoted(literal[at:])] if part)

    def until(self, name: str, end: str, unlike: str = "") -> str:
        """Any text up to an end; `unlike`: a pattern that is not in it."""
        mark = self._marks.search(end)
        ends = end if mark is None else end[: mark.start()]
        any_ = r"/(?s:.*)/" + (rf" & ~/(?s:.*){_slashed(unlike)}(?s:.*)/" if unlike else "")
        self.rules[name.upper()] = f"({any_}) {_quoted(ends)}"
        self.rules[f"{name}[lazy]" if ends else name] = name.upper()
        return f"{name} {self.text(end[len(ends) :])}"

    def json(self, name: str, schema: Mapping[str, Any], options: Mapping[str, Any] = _JSON) -> str:
        """A JSON value."""
        return self.rule(name, f"%json {json.dumps({**schema, 'x-guidance': options})}")

    def filled(self, template: str, fields: Mapping[str, str]) -> str:
        """A template with its fields, which are Lark. What is in double brackets may be missing."""
        known = {**_KNOWN, **fields}
        made: list[str] = []
        for at, part in enumerate(_FIELDS.split(template)):
            made.append(known[part] if at % 2 else "")
            kept = () if at % 2 else re.split(r"(\[\[|\]\])", part)
            made += [_OPTIONAL.get(one) or self.text(one) for one in kept]
        return " ".join(part for part in made if part)

    def written(self, openings: Iterable[Opening]) -> CallGrammar:
        """The grammar that begins with one of these."""
        made = list(openings)
        self.rule("start", *(one.rule for one in made))
        lines = [f"{name}: {body}" for name, body in self.rules.items()]
        anywhere, first = (
            re.compile("|".join(o.begin for o in made if o.first == at_first) or r"(?!)")
            for at_first in (False, True)
        )
        return CallGrammar("\n".join(["%llguidance {}", *lines]), anywhere, first)


#: Writes a family's rules.
GrammarOf = Callable[[CallWriter], Iterable[Opening]]
Marks = Sequence[tuple[str, str]]


def between(writer: CallWriter, marks: Marks, calls: str, begins: str) -> list[Opening]:
    """Calls between marks. A mark that is words or Markdown is one only before what `begins`
    them, a pattern."""
    openings: list[Opening] = []
    for begin, end in marks:
        rule = f"{writer.text(begin)} SPACE? {calls}"
        before = re.escape(begin) if is_sign(begin) else rf"{re.escape(begin)}\s*(?:{begins})"
        openings.append(Opening(before, f"{rule} SPACE? {writer.text(end)}" if end else rule))
    return openings


def is_sign(mark: str) -> bool:
    """Whether a text has this mark for its own sake only: not words, nor Markdown."""
    return any(sign in mark for sign in "<[")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _slashed(pattern: str) -> str:
    return pattern.replace("/", r"\/")
