"""How is a config.pbtxt read, with the line of each mistake?

Protobuf's text format, as far as a configuration can hold it. A mistake does not end the reading:
what can be understood after it is read, so that one run reports all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from wherry.triton.repository.schema import (
    BadConfig,
    ConfigField,
    Path,
    Problem,
    TritonMessage,
    fields_of,
    one_of_twice,
    shown,
    unfilled,
    unknown,
)
from wherry.triton.repository.triton_config import TritonConfig
from wherry.triton.repository.validate import problems_of

M = TypeVar("M", bound=TritonMessage)

#: Deepest nesting of messages that is read; a valid configuration nests nine.
MAX_DEPTH = 64

#: (?>...) and ++ make numbers and strings atomic: otherwise a bad end would have them tried again
#: from each character before it.
_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\f\v]+ | \#[^\n]* )
  | (?P<line> \n )
  | (?P<number> (?> 0[xX][0-9a-fA-F]+
              | (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]? )(?![\w.]) )
  | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<string> "(?:[^"\\\n]++|\\.)*+" | '(?:[^'\\\n]++|\\.)*+' )
  | (?P<mark> [{}<>\[\]:;,\-] )
  | (?P<blank> \$\{ [^{}\n]* \} )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    rb"|(?:u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8}))|(?P<char>.))",
    re.DOTALL,
)
_CHARS = {
    b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip
_CLOSING = {"{": "}", "<": ">"}

#: Other names that people use for a datatype.
_MEANT = {
    "TYPE_BYTES": "TYPE_STRING", "TYPE_STR": "TYPE_STRING", "TYPE_TEXT": "TYPE_STRING",
    "TYPE_FLOAT": "TYPE_FP32", "TYPE_FLOAT32": "TYPE_FP32", "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT64": "TYPE_FP64", "TYPE_DOUBLE": "TYPE_FP64", "TYPE_HALF": "TYPE_FP16",
    "TYPE_INT": "TYPE_INT32", "TYPE_LONG": "TYPE_INT64", "TYPE_BOOLEAN": "TYPE_BOOL",
    "TYPE_BFLOAT16": "TYPE_BF16",
}  # fmt: skip

#: Stands for a value that could not be read; its problem is noted.
_WRONG = object()


def parse(text: str, file: str = "config.pbtxt", *, grammar_only: bool = False) -> TritonConfig:
    """Read a configuration. BadConfig has a line `file:line: key: problem` for each mistake.

    Unless `grammar_only`, its values must make sense, too. What a model's own file completes later
    (missing inputs, a missing backend) is not a mistake here.
    """
    config, problems = read(text, file, grammar_only=grammar_only)
    if problems:
        raise BadConfig(problems)
    return config


def read(
    text: str, file: str = "config.pbtxt", *, grammar_only: bool = False
) -> tuple[TritonConfig, list[str]]:
    """As `parse`, without an exception: the configuration as far as it can be read, and the
    problems."""
    reader = _TextReader(text)
    config, whole = reader.read()
    problems = [*reader.problems]
    if whole and not grammar_only:
        spoilt = {path[:-1] for _, path, _ in problems} | {path for _, path, _ in problems}
        unread = not config.max_batch_size and ("max_batch_size",) in spoilt
        problems += [
            (reader.line_of(problem.path), problem.path, problem.text)
            for problem in problems_of(config)
            if not _may_be_of(problem, spoilt) and not (unread and "max_batch_size" in problem.text)
        ]
    problems.sort(key=lambda problem: problem[0])
    return config, [
        f"{file}:{line}: {shown(path)}: {text}" if path else f"{file}:{line}: {text}"
        for line, path, text in problems
    ]


def _may_be_of(problem: Problem, spoilt: Set[Path]) -> bool:
    """Whether a problem may only be due to one that is noted already: a message that could not be
    read in full lacks fields that the file may well have."""
    path = problem.path
    return path in spoilt or (path[:-1] in spoilt and isinstance(path[-1], str))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int

    def __str__(self) -> str:
        return "the end of the file" if self.kind == "end" else repr(self.text)


class _Broken(Exception):
    """Raised where the text cannot be read any further, after its problem was noted."""


class _TextReader:
    def __init__(self, text: str) -> None:
        self.problems: list[tuple[int, Path, str]] = []
        self._lines: dict[Path, int] = {(): 1}
        self._tokens = self._tokens_of(text)
        self._token = _Token("mark", "", 1)

    def read(self) -> tuple[TritonConfig, bool]:
        """The configuration, and whether it could be read to its end; if not, it has the fields
        before the mistake."""
        found: dict[str, Any] = {}
        try:
            self._next()
            self._fill(TritonConfig, found, "", (), 0)
        except _Broken:
            return _message_of(TritonConfig, found), False
        return _message_of(TritonConfig, found), True

    def line_of(self, path: Path) -> int:
        """The line where this value, or the nearest message around it, begins."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    # Messages and fields

    def _message(self, cls: type[M], closing: str, path: Path, depth: int) -> M:
        found: dict[str, Any] = {}
        self._fill(cls, found, closing, path, depth)
        return _message_of(cls, found)

    def _fill(
        self,
        cls: type[TritonMessage],
        found: dict[str, Any],
        closing: str,
        path: Path,
        depth: int,
    ) -> None:
        """Read fields up to the closing bracket, or the end of the file for ""."""
        if depth > MAX_DEPTH:
            self._stop(path, f"more than {MAX_DEPTH} messages within each other")
        fields = fields_of(cls)
        for token, field in self._fields(fields, closing, lambda: path):
            self._field(field, found, token, path, depth)
        line = self.line_of(path)
        twice = one_of_twice(cls, found)
        if twice:
            self._note(line, path, twice)

    def _fields(
        self, fields: Mapping[str, ConfigField], closing: str, path: Callable[[], Path]
    ) -> Iterator[tuple[_Token, ConfigField]]:
        """Read the names of fields up to the closing bracket; the values are read by the caller.
        Fields that are not in `fields` are noted and skipped."""
        while not self._at_end_of(closing, path()):
            token = self._take()
            if token.kind != "name":
                self._stop(path(), f"expected the name of a field, not {token}", token)
            field = fields.get(token.text)
            if field is None:
                self._note(token.line, (*path(), token.text), unknown(token.text, fields))
                self._skip_value()
            else:
                yield token, field
            if self._token.text in (",", ";"):
                self._next()

    def _colon(self, field: ConfigField, token: _Token, path: Path) -> None:
        if self._token.text == ":":
            self._next()
        elif not field.is_message and field.key is None:
            self._stop(path, f"expected ':' after {token.text!r}, not {self._token}")

    def _field(
        self, field: ConfigField, found: dict[str, Any], token: _Token, path: Path, depth: int
    ) -> None:
        path = (*path, field.name)
        if field.name in found and not field.many:
            self._note(token.line, path, "it is set twice")
        self._lines.setdefault(path, token.line)
        if field.many:
            values = found.setdefault(field.name, {} if field.key else [])
        self._colon(field, token, path)
        if field.many and self._token.text == "[":
            self._list(field, values, path, depth)
        elif field.many:
            self._element(field, values, path, depth)
        else:
            value = self._value(field, path, depth)
            if value is not _WRONG:
                found[field.name] = value

    def _list(self, field: ConfigField, values: Any, path: Path, depth: int) -> None:
        self._next()
        while self._token.text != "]":
            self._element(field, values, path, depth)
            if self._token.text == ",":
                self._next()
                if self._token.text == "]":
                    self._stop(path, "expected a value after ','")
            elif self._token.text != "]":
                self._stop(path, f"expected ',' or ']', not {self._token}")
        self._next()

    def _element(self, field: ConfigField, values: Any, path: Path, depth: int) -> None:
        if field.key is not None:
            self._entry(field, values, path, depth)
            return
        index = (*path, len(values))
        self._lines[index] = self._token.line
        values.append(self._value(field, index, depth))

    def _entry(self, field: ConfigField, values: dict[Any, Any], path: Path, depth: int) -> None:
        line = self._token.line
        closing = self._open(path)
        assert field.key is not None
        parts = {"key": field.key, "value": replace(field, name="value", many=False, key=None)}
        found: dict[str, Any] = {}

        def within() -> Path:
            key = found.get("key", _WRONG)
            return path if key is _WRONG else (*path, key)

        for token, part in self._fields(parts, closing, within):
            where = within()
            if part.name in found:
                self._note(token.line, where, f"its {part.name} is set twice")
            self._colon(part, token, where)
            if part.name == "value":
                self._lines.setdefault(where, token.line)
            found[part.name] = self._value(part, where, depth)
        key = found.get("key", field.key.kind())
        value = found.get("value", _WRONG)
        if value is _WRONG and "value" not in found:
            value = field.kind() if isinstance(field.kind, type) else field.kind[0]
        if key is not _WRONG and value is not _WRONG:
            if key in values:
                self._note(line, (*path, key), "this key is there already")
            values[key] = value
            self._lines[(*path, key)] = line

    def _value(self, field: ConfigField, path: Path, depth: int) -> Any:
        """Read one value of the field's type; _WRONG after noting what it is instead."""
        opening = self._token.kind == "mark" and self._token.text in ("{", "<", "[")
        if field.is_message and opening and self._token.text != "[":
            return self._message(field.kind, self._open(path), path, depth + 1)
        if field.is_message or opening:
            what = {"[": "a list", "{": "a message"}.get(self._token.text, str(self._token))
            self._note(self._token.line, path, f"expected {_expected(field)}, not {what}")
            self._skip_value()
            return _WRONG
        if self._token.kind == "string":
            return self._string(field, path)
        line = self._token.line
        if self._token.kind == "blank":
            self._note(line, path, unfilled(self._take().text, _expected(field)))
            return _WRONG
        negative = self._token.text == "-"
        if negative:
            self._next()
        token = self._take()
        if token.kind not in ("name", "number"):
            self._stop(path, f"expected {_expected(field)}, not {token}", token)
        value = _scalar(field, token, negative)
        if value is _WRONG:
            sign = "-" if negative else ""
            text = f"expected {_expected(field)}, not {sign}{token.text}"
            if field.is_enum and token.kind == "name" and not negative:
                meant = _MEANT.get(token.text, "")
                hint = f"unknown value {token.text!r}; did you mean {meant!r}?"
                text = hint if meant in field.kind else unknown(token.text, field.kind, "value")
            elif field.kind is str and token.kind == "name":
                text = f'expected a string: write "{token.text}"'
            self._note(line, path, text)
        elif field.kind is int and (problem := field.out_of_range(value)):
            self._note(line, path, problem)
            return _WRONG
        return value

    def _string(self, field: ConfigField, path: Path) -> Any:
        """Read a string; several in a row are one."""
        line, parts = self._token.line, []
        while self._token.kind == "string":
            parts.append(self._unescaped(self._take(), path))
        if field.kind is not str:
            self._note(line, path, f"expected {_expected(field)}, not a string")
            return _WRONG
        try:
            return b"".join(parts).decode()
        except UnicodeDecodeError:
            self._note(line, path, "the string is not UTF-8 text")
            return _WRONG

    def _unescaped(self, token: _Token, path: Path) -> bytes:
        def of(match: re.Match[bytes]) -> bytes:
            if match["octal"]:
                return bytes([int(match["octal"], 8) & 255])
            if match["hex"]:
                return bytes([int(match["hex"], 16)])
            if point := match["u"] or match["U"]:
                try:
                    return chr(int(point, 16)).encode()
                except (ValueError, OverflowError):  # no character, or half of one
                    pass
            elif match["char"] in _CHARS:
                return _CHARS[match["char"]]
            known = match[0].decode(errors="replace")
            self._note(token.line, path, f"unknown escape {known} in a string; write \\\\ for \\")
            return b""

        return _ESCAPE.sub(of, token.text[1:-1].encode(errors="replace"))

    # Tokens

    def _tokens_of(self, text: str) -> Iterator[_Token]:
        line, position = 1, 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                yield _Token("bad", _until_space(text, position), line)
                return
            position = match.end()
            if match.lastgroup == "line":
                line += 1
            elif match.lastgroup != "space":
                yield _Token(str(match.lastgroup), match[0], line)
        while True:
            yield _Token("end", "", line)

    def _next(self) -> None:
        self._token = next(self._tokens)
        if self._token.kind == "bad":
            what = "a string without its end" if self._token.text[0] in "\"'" else "unreadable"
            self._stop((), f"{what}: {self._token.text}")

    def _take(self) -> _Token:
        token = self._token
        self._next()
        return token

    def _open(self, path: Path) -> str:
        token = self._token
        if token.text not in _CLOSING or token.kind != "mark":
            self._stop(path, f"expected '{{', not {token}")
        self._next()
        return _CLOSING[token.text]

    def _at_end_of(self, closing: str, path: Path) -> bool:
        if self._token.kind == "end":
            if closing:
                opened = self.line_of(path)
                self._stop(path, f"expected {closing!r} for the bracket of line {opened}")
            return True
        if self._token.kind == "mark" and self._token.text == closing:
            self._next()
            return True
        return False

    def _skip_value(self) -> None:
        if self._token.text == ":" and self._token.kind == "mark":
            self._next()
        if self._token.text == "-":
            self._next()
        if self._token.kind == "mark" and self._token.text in ("{", "<", "["):
            open_brackets = 0
            while True:
                token = self._take()
                if token.kind == "end":
                    self._stop((), "a bracket is not closed", token)
                if token.kind == "mark":
                    open_brackets += (token.text in "{<[") - (token.text in "}>]")
                    if not open_brackets:
                        return
        elif self._token.kind == "string":
            while self._token.kind == "string":
                self._next()
        elif self._token.kind in ("name", "number", "blank"):
            self._next()

    def _note(self, line: int, path: Path, text: str) -> None:
        self.problems.append((line, path, text))

    def _stop(self, path: Path, text: str, token: _Token | None = None) -> NoReturn:
        self._note((token or self._token).line, path, text)
        raise _Broken


def _message_of(cls: type[M], found: Mapping[str, Any]) -> M:
    fields = fields_of(cls)
    return cls(**{fields[name].attribute: _read(value) for name, value in found.items()})


def _read(value: Any) -> Any:
    """The value, or the list without elements that could not be read."""
    return [one for one in value if one is not _WRONG] if isinstance(value, list) else value


def _scalar(field: ConfigField, token: _Token, negative: bool) -> Any:
    """The number, boolean or enum value that a token stands for; else _WRONG."""
    kind, text = field.kind, token.text
    if field.is_enum:
        if token.kind == "name":
            return text if text in kind and not negative else _WRONG
        number = _whole(text)
        return kind[number] if number is not None and number < len(kind) else _WRONG
    if kind is bool:
        known = {"true": True, "t": True, "True": True, "1": True}
        known |= {"false": False, "f": False, "False": False, "0": False}
        return known.get(text, _WRONG) if not negative else _WRONG
    if kind is int:
        number = _whole(text) if token.kind == "number" else None
        return _WRONG if number is None else -number if negative else number
    if kind is float:
        real = _real(text)
        return _WRONG if real is None else -real if negative else real
    return _WRONG


def _whole(text: str) -> int | None:
    if len(text) > 32:  # more than any field takes
        return None
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    return int(text) if re.fullmatch(r"0|[1-9][0-9]*", text) else None


def _real(text: str) -> float | None:
    if text.lower() in ("inf", "infinity", "nan"):
        return float(text)
    whole = _whole(text)
    if whole is not None:
        return float(whole)
    try:
        return float(text.rstrip("fF"))
    except ValueError:
        return None


def _expected(field: ConfigField) -> str:
    if field.is_message:
        return "a message in { }"
    if field.is_enum:
        few = ", ".join(field.kind[:4])
        return f"one of {few}" + (", ..." if len(field.kind) > 4 else "")
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return expected[field.kind]


def _until_space(text: str, position: int) -> str:
    return text[position : position + 40].split("\n")[0] or repr(text[position])
