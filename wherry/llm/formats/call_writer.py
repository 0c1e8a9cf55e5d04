"""Which grammar do calls have in a family's own notation, and where does it begin in a text?

In llguidance's dialect of Lark. The text before, between and after calls is free. The readers
of these notations read all that such a grammar accepts, and it follows the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.llm.formats.json_calls import BETWEEN
from wherry.llm.formats.tag_calls import type_names, types_of

#: The arguments' schemas by the names of the functions; None: any arguments.
Strict = Mapping[str, Mapping[str, Any] | None]
#: JSON with the blanks of `constraint.SPACES`.
_JSON: Final = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n]?"}
#: What a template has besides literal text: a function's name, its arguments in JSON, an argument's
#: name, a number, a call's id, and whether a value is a text.
_FIELDS: Final = re.compile(r"\{(name|arguments|key|n|id|string)\}")
_KNOWN: Final = {"n": "DIGITS", "id": "/[A-Za-z0-9_-]{1,64}/"}
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
    """Writes the rules for calls of some functions. `marks` are the tokens that are not text, and
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
        return "|".join(map(re.escape, self.functions))

    def rule(self, name: str, *alternatives: str) -> str:
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

    def json(self, name: str, schema: Mapping[str, Any]) -> str:
        return self.rule(name, f"%json {json.dumps({**schema, 'x-guidance': _JSON})}")

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
    """Whether a text has this mark only as a mark: it is neither words nor Markdown."""
    return any(sign in mark for sign in "<[")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _slashed(pattern: str) -> str:
    return pattern.replace("/", r"\/")


def of_objects(
    marks: Marks,
    bare: Sequence[str] = (),
    *,
    inline: bool = False,
    named: Sequence[str] = (),
) -> GrammarOf:
    """Calls as `json_calls.of_objects` reads them; `named`: also calls by these templates."""

    def write(writer: CallWriter) -> list[Opening]:
        calls, several = _objects(writer, marks, named)
        object_ = rf'\{{\s*"(?:tool_)?name"\s*:\s*"(?:{writer.names})"\s*,'
        listed = rf"\[\s*{object_}"
        openings = between(writer, marks, calls, f"{object_}|{listed}")
        if inline or "{" in bare:
            openings.append(Opening(object_, several, first=not inline))
        if "[" in bare:
            openings.append(Opening(listed, calls, first=True))
        return openings

    return write


def _objects(writer: CallWriter, marks: Marks, named: Sequence[str]) -> tuple[str, str]:
    """One object, a list, or several one after another, between them perhaps a mark again; and
    these without the list."""
    number = r'/"(id|type|index|tool_call_id)": ?("[^"\\\x00-\x1f]{0,64}"|0|[1-9][0-9]{0,5})/'
    writer.rule("number", f'{number} SPACE? "," SPACE?')
    objects, calls = list[str](), list[str]()
    for at, (name, schema) in enumerate(writer.functions.items()):
        arguments = writer.json(f"arguments_{at}", schema or {"type": "object"})
        called = writer.text(json.dumps(name, ensure_ascii=False))
        head = f'number{{0,3}} NAME SPACE? {called} SPACE? "," SPACE? number{{0,3}} ARGUMENTS'
        tail = f'(SPACE? "," SPACE? {number}){{0,2}}'
        objects.append(f'"{{" SPACE? {head} SPACE? {arguments} {tail} SPACE? "}}"')
        fields = {"name": writer.text(name), "arguments": arguments}
        calls += [writer.filled(template, fields) for template in named]
    writer.rule("NAME", r'/"(tool_)?name": ?/')
    writer.rule("ARGUMENTS", r'/"(arguments|parameters|args)": ?/')
    writer.rule("object", *objects)
    again = [f"SPACE? {writer.text(m)} SPACE?" for m, _ in marks if BETWEEN.fullmatch(m)]
    writer.rule("separator", "(SPACE? /[,;]/)? SPACE?", *again)
    writer.rule("list", '"[" SPACE? object (SPACE? "," SPACE? object)* SPACE? "]"')
    several = writer.rule("several", "object (separator object)*")
    names = [f"call (({' | '.join(again)})? call)*"] if named else []
    if named:
        writer.rule("call", *calls)
    return writer.rule("objects", "list", several, *names), several


def of_names(templates: Sequence[str], marks: Marks = (), begins: str = "") -> GrammarOf:
    """Calls as `json_calls.after_names` reads them, written by one of these templates. `begins`:
    a pattern of what one begins with where there are no marks."""

    def write(writer: CallWriter) -> list[Opening]:
        made = []
        for at, (name, schema) in enumerate(writer.functions.items()):
            arguments = writer.json(f"arguments_{at}", schema or {"type": "object"})
            fields = {"name": writer.text(name), "arguments": arguments}
            made += [writer.filled(template, fields) for template in templates]
        call = writer.rule("call", *made)
        calls = writer.rule("calls", "call (SPACE? call)*")
        return [*between(writer, marks, calls, ""), *([Opening(begins, call)] if begins else [])]

    return write


def of_harmony(writer: CallWriter) -> list[Opening]:
    """Calls as messages to a function, whose name may stand before the channel or behind it."""
    channel = f"{writer.text('<|channel|>')} /commentary|analysis/"
    content = f'(" "? {writer.text("<|constrain|>")} "json" | " json")?'
    message = f"({channel})? {content} {writer.text('<|message|>')}"
    made = [
        f"{writer.text(name)} {message} "
        + writer.json(f"arguments_{at}", schema or {"type": "object"})
        for at, (name, schema) in enumerate(writer.functions.items())
    ]
    call = writer.rule("call", *made)
    call = f'"to=functions." {call} {writer.text("<|call|>")}?'
    begins = {
        r"<\|start\|>assistant": writer.text("<|start|>assistant"),
        r"<\|channel\|>(?:commentary|analysis)": channel,
    }
    to = r"to=functions\."
    openings = [Opening(f"{begin} {to}", f'{rule} " " {call}') for begin, rule in begins.items()]
    return [*openings, Opening(to, call, first=True)]


@dataclass(frozen=True, slots=True)
class TagTemplates:
    """How a call in tags is written: what begins it and an argument, and their ends."""

    call: str
    argument: str
    argument_end: str
    call_end: str


def of_tags(tags: TagTemplates, marks: Marks = (), begins: str = "") -> GrammarOf:
    """Calls as `tag_calls.Tags` reads them. Texts are unconstrained, except for an `enum`."""

    def write(writer: CallWriter) -> list[Opening]:
        made = []
        for at, name in enumerate(writer.functions):
            begun = writer.filled(tags.call, {"name": writer.text(name)})
            end = f"SPACE? {writer.text(tags.call_end)}" if tags.call_end else ""
            arguments = _tagged(writer, tags, at, name)
            made.append(writer.rule(f"call_{at}", f"{begun} {arguments} {end}"))
        call = writer.rule("call", *made)
        calls = "call (SPACE? call)*" if tags.call_end else "call"
        calls = writer.rule("calls", calls)
        return [*between(writer, marks, calls, ""), *([Opening(begins, call)] if begins else [])]

    return write


def _tagged(writer: CallWriter, tags: TagTemplates, number: int, name: str) -> str:
    schema = writer.functions[name]
    if schema is None:
        writer.rule("KEY", r'/[^<>"\s]{1,128}/')
        begun = writer.filled(tags.argument, {"key": "KEY", "string": "/(true|false)/"})
        return f"(SPACE? {begun} {writer.until('any', tags.argument_end)})*"
    types, required = _properties(name, schema), schema.get("required") or ()
    keys = "|".join(map(re.escape, types))
    other = tags.argument.partition("{key}")
    unlike = f"{re.escape(other[0])}({keys})" if keys and other[0] else ""
    parts: list[str] = []
    for at, (key, one) in enumerate(types.items()):
        rule = f"value_{number}_{at}"
        is_text, value = _value(writer, rule, one, schema)
        string = "true" if is_text else "false"
        begun = writer.filled(tags.argument, {"key": writer.text(key), "string": f'"{string}"'})
        if value:
            end = f"{value} SPACE? {writer.text(tags.argument_end)}"
        else:
            end = writer.until(f"text_{number}", tags.argument_end, unlike)
        parts.append(f"(SPACE? {begun} {end}){'' if key in required else '?'}")
    return " ".join(parts)


def _value(
    writer: CallWriter, name: str, schema: Any, whole: Mapping[str, Any]
) -> tuple[bool, str]:
    """Whether a value in tags is a text, and its rule; "": any text."""
    types = type_names(schema)
    known = schema if isinstance(schema, Mapping) else {}
    values = [known["const"]] if "const" in known else known.get("enum")
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        texts = [writer.text(one) or '""' for one in values]
        return True, writer.rule(name, *(t for one in texts for t in (one, rf'"\n" {one} "\n"')))
    if "string" in types or not (types or values):
        return True, ""
    return False, f"SPACE? {writer.json(name, {**known, **_definitions(whole)})}"


def _properties(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of a function's arguments, which a notation writes one by one. ValueError if
    they are not named."""
    if not isinstance(schema.get("properties"), Mapping):
        raise ValueError(f"{name}: strict parameters must be an object with properties")
    return types_of(schema)


def _definitions(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What parts of a schema refer to."""
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}
