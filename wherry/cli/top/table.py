"""How do texts of strangers become lines of a terminal, no wider than it is?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.text import Text

from wherry.cli.show import printable

GAP: Final = 2
#: Characters of a text that are looked at: what is longer is never shown whole.
MOST: Final = 1000


class Column(NamedTuple):
    """A column of a table: numbers end at its right side, words begin at its left."""

    head: str
    cells: Sequence[str]
    is_words: bool = False
    #: The style of each cell, or of all.
    styles: Sequence[str] = ()


def clean(text: str) -> str:
    """A text of strangers, in one line and without what a terminal obeys."""
    return printable(text if len(text) <= MOST else text[:MOST] + "...")


def line(text: str, width: int, style: str = "") -> Text:
    """One line, cut off at the width."""
    made = Text(clean(text), style=style, no_wrap=True, end="")
    made.truncate(max(1, width), overflow="ellipsis")
    return made


def folded(text: str, width: int, style: str) -> list[Text]:
    """A text in at most three lines of full width."""
    pieces = chop_cells(clean(text), max(2, width))[:3]
    return [line(piece, width, style) for piece in pieces]


def flowing(parts: Iterable[tuple[str, str]], width: int) -> list[Text]:
    """Short texts with their styles behind each other, in as many lines as they need."""
    lines: list[Text] = []
    for text, style in parts:
        part = line(text, width, style)
        if lines and lines[-1].cell_len + GAP + part.cell_len <= width:
            lines[-1].append(" " * GAP)
            lines[-1].append_text(part)
        else:
            lines.append(Text(no_wrap=True, end="").append_text(part))
    return lines


def table(columns: Sequence[Column], first_to_go: Sequence[str], width: int) -> list[Text]:
    """Heads and rows. Columns go, those of least interest first, until the rest fits; the first
    column is cut off if it must be."""
    shown = {
        column.head: column._replace(cells=[clean(cell) for cell in column.cells])
        for column in columns
    }
    first, *_ = shown
    widths = {head: max(map(cell_len, [head, *one.cells])) for head, one in shown.items()}
    least = min(widths[first], max(8, width // 3))

    def rest() -> int:
        """What the others need."""
        return sum(widths[head] + GAP for head in shown if head != first)

    for head in first_to_go:
        if least + rest() <= width:
            break
        shown.pop(head, None)
    widths[first] = max(1, min(widths[first], width - rest()))
    rows = len(shown[first].cells)
    return [_row(shown.values(), widths, width, row) for row in range(-1, rows)]


def _row(columns: Iterable[Column], widths: dict[str, int], width: int, row: int) -> Text:
    """The heads, if `row` is -1."""
    made = Text(no_wrap=True, end="")
    for place, column in enumerate(columns):
        style = "dim" if row < 0 else column.styles[row] if column.styles else ""
        cell = Text(column.head if row < 0 else column.cells[row], style=style)
        room = widths[column.head]
        cell.truncate(room, overflow="ellipsis")
        spare = " " * (room - cell.cell_len)
        made.append(" " * GAP if place else "")
        made.append_text(cell if column.is_words else Text(spare))
        made.append_text(Text(spare) if column.is_words else cell)
    made.rstrip()
    made.truncate(max(1, width), overflow="ellipsis")
    return made
