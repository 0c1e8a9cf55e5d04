"""How are bars and tables drawn, as text and as HTML?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import NamedTuple

#: Characters of a line, and of the longest bar.
COLUMNS, WIDTH = 80, 26
#: Characters of the labels of bars.
LEAST_LABEL, MOST_LABEL = 10, 32
#: Characters of a remark that a page shows beside its bar, and not only when one points to it.
SHORT = 20
#: Pixels: of a bar's row, of a label's character, of the longest bar, and for what is behind it.
ROW, LETTER, BARS, BEHIND = 20, 7, 360, 220

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 720px; margin: 2em auto; padding: 0 1em;
       color: CanvasText; background: Canvas; color-scheme: light dark; }
h2 { font-size: 1em; margin: 2em 0 .5em; }
svg text { font-size: 12px; fill: currentColor; }
svg rect { fill: #3b7dd8; }
svg path { stroke: currentColor; stroke-width: 1.5; }
table { border-spacing: 1em .2em; margin-left: -1em; }
th, td { text-align: right; font-weight: normal; white-space: nowrap; }
th { opacity: .6; }
th:last-child, td:last-child { text-align: left; }
"""


class Bar(NamedTuple):
    """A line of a chart."""

    label: str
    value: float
    remark: str = ""
    #: A standard error of the value.
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a heading."""

    heading: str
    bars: list[Bar]
    unit: str = ""
    remark: str = ""

    def lines(self) -> Iterator[str]:
        """As text. A remark that finds no room behind its bar is below it."""
        yield self.heading
        width, most = self._label_width(), self._most()
        indent = " " * (3 + width)
        for bar in self.bars:
            drawn = "█" * max(1, round(WIDTH * bar.value / most)) if bar.value else ""
            line = f"  {bar.label[:width]:>{width}} {bar.value:>9.4g} {self.unit:<2} {drawn}"
            remark = ", ".join(filter(None, (self._error(bar), bar.remark)))
            if len(line) + 2 + len(remark) <= COLUMNS:
                yield f"{line}  {remark}".rstrip()
            else:
                yield line.rstrip()
                yield from wrapped(indent + remark, indent)
        yield from wrapped(self.remark)

    def html(self) -> str:
        """As SVG."""
        letters = self._label_width()
        scale, left = BARS / self._most(), 20 + LETTER * letters
        drawn = []
        for place, bar in enumerate(self.bars):
            y, width = place * ROW, scale * bar.value
            end = left + width + scale * bar.error
            shown = f"{bar.value:.4g} {self._error(bar) or self.unit}".strip()
            if bar.remark and len(bar.remark) <= SHORT:
                shown += f", {bar.remark}"
            drawn.append(
                f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">'
                f"{escape(bar.label[:letters])}</text>"
                f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>'
                f'<text x="{end + 6:.1f}" y="{y + 14}">{escape(shown)}'
                f"<title>{escape(bar.remark)}</title></text>"
            )
            if bar.error:
                start = left + max(0.0, width - scale * bar.error)
                drawn.append(f'<path d="M{start:.1f} {y + ROW // 2}H{end:.1f}"/>')
        heading, height = escape(self.heading), ROW * len(self.bars)
        remark = f"\n<p>{escape(self.remark)}</p>" if self.remark else ""
        return (
            f'<h2>{heading}</h2>\n<svg width="{left + BARS + BEHIND}" height="{height}" role="img"'
            f' aria-label="{heading}">{"".join(drawn)}</svg>{remark}'
        )

    def _most(self) -> float:
        """The value of the longest bar with its error."""
        return max([bar.value + bar.error for bar in self.bars], default=0.0) or 1.0

    def _label_width(self) -> int:
        """In characters; of longer labels the end is not shown."""
        return min(MOST_LABEL, max([LEAST_LABEL, *(len(bar.label) for bar in self.bars)]))

    def _error(self, bar: Bar) -> str:
        return f"±{bar.error:.2g} {self.unit}" if bar.error else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of cells under a heading; the first row has the columns' heads."""

    heading: str
    rows: list[list[str]]

    def lines(self) -> Iterator[str]:
        """As text: the last column is wrapped, the others are as wide as they must be."""
        yield self.heading
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)][:-1]
        for *cells, last in self.rows:
            line = " ".join([f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)])
            yield from wrapped(f"{line}  {last}", " " * (2 + len(line)))

    def html(self) -> str:
        rows = [
            "".join([f"<{kind}>{escape(cell)}</{kind}>" for cell in row])
            for row, kind in zip(self.rows, ["th"] + ["td"] * (len(self.rows) - 1), strict=True)
        ]
        table = "\n".join([f"<tr>{row}</tr>" for row in rows])
        return f"<h2>{escape(self.heading)}</h2>\n<table>\n{table}\n</table>"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most `COLUMNS`, all but the first with this indent; none for no text."""
    return wrap(text, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)
