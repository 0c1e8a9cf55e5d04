"""What does a terminal show after it has read these characters?

As much of one as wherry's commands use: colours, lines that are written again, a cursor that goes
up. Anything else is an error: the picture would not be what a person sees.
"""

from __future__ import annotations

import re
from typing import Final

#: A character and its style, as the numbers of SGR.
Cell = tuple[str, tuple[str, ...]]
Row = tuple[Cell, ...]

_CONTROL: Final = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_BLANK: Final[Cell] = (" ", ())


class Terminal:
    """A screen of `rows` lines, of which those above are gone."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._lines: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style: tuple[str, ...] = ()
        self._unread = ""

    def write(self, text: str) -> None:
        """Read characters; half of a control sequence waits for its other half."""
        text = self._unread + text
        self._unread, at = "", 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
            elif found := _CONTROL.match(text, at):
                self._control(found[1], found[2])
                at = found.end()
            elif len(text) - at < 16:
                self._unread = text[at:]
                return
            else:
                raise ValueError(f"no control sequence that is known: {text[at : at + 16]!r}")

    def screen(self) -> tuple[Row, ...]:
        """The lines that are seen, without blanks at their ends."""
        return tuple(_stripped(line) for line in self._lines[-self._rows :])

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        elif character >= " ":
            if self._column == self._columns:
                self._down()
                self._column = 0
            line = self._lines[self._row]
            line += [_BLANK] * (self._column + 1 - len(line))
            line[self._column] = character, self._style
            self._column += 1
        else:
            raise ValueError(f"no control character that is known: {character!r}")

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _control(self, numbers: str, letter: str) -> None:
        if letter == "m":
            self._style = _styled(self._style, numbers.split(";"))
        elif letter == "K":
            line = self._lines[self._row]
            self._lines[self._row] = [] if numbers == "2" else line[: self._column]
        elif letter == "J":
            del self._lines[self._row + 1 :]
            self._lines[self._row] = self._lines[self._row][: self._column]
        elif letter == "A":
            self._row = max(0, self._row - int(numbers or 1))
        elif not numbers.startswith("?"):  # what is not seen: the cursor, keys, pastes
            raise ValueError(f"no control sequence that is known: {numbers}{letter}")


def _styled(style: tuple[str, ...], numbers: list[str]) -> tuple[str, ...]:
    for number in numbers:
        style = () if number in ("", "0") else (*style, number)
    return style


def _stripped(line: list[Cell]) -> Row:
    length = len(line)
    while length and line[length - 1][0] == " ":
        length -= 1
    return tuple(line[:length])
