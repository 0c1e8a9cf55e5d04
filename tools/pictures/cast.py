"""How does a recording of a terminal become one SVG that plays by itself?

Each line of the screen is drawn once for the time in which it stands there, and CSS shows it then:
no script, no font and nothing else from the network, in light and in dark. Who wants no motion sees
the last screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

from tools.pictures.record import Written
from tools.pictures.terminal import Row, Terminal

#: Seconds that a screen stands at least, and the last one before all begins again.
SHORTEST: Final = 0.15
LAST_SECONDS: Final = 4.0
#: Of a character, in units of the picture; a margin; where a line's letters stand.
WIDTH, HEIGHT, MARGIN, BASE = 8.0, 18.0, 16.0, 13.0

#: Colours by SGR: in light, and in dark.
COLOURS: Final = {
    "31": ("#b02a1f", "#f49387"),
    "32": ("#17703f", "#5fce94"),
    "33": ("#8a5300", "#e5b05c"),
    "34": ("#1d5fa8", "#7ab7ff"),
    "35": ("#6741a8", "#b79bf0"),
    "36": ("#0b5f6c", "#63c7d4"),
}
FRAME: Final = (
    ("back", "#f6f8fa", "#12181f"),
    ("line", "#d5dbe1", "#2c3742"),
    ("text", "#17202a", "#e6ebf0"),
    ("soft", "#51606f", "#a0aebc"),
)


@dataclass(frozen=True, slots=True)
class Stay:
    """A line that stands in one place of the screen from one moment to another."""

    place: int
    row: Row
    begin: float
    end: float


def cast_svg(written: Sequence[Written], columns: int, rows: int, title: str) -> str:
    """The recording as a picture."""
    screens = list(screens_of(written, columns, rows))
    seconds = screens[-1][0] + LAST_SECONDS
    stays = list(stays_of(screens, seconds))
    times = {(stay.begin, stay.end): "" for stay in stays}
    for number, span in enumerate(times):
        times[span] = f"k{number}"
    width, height = columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN
    lines = [_line(stay, times[stay.begin, stay.end], seconds) for stay in stays]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
            f' role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style(seconds, times)}</style>",
            f'<rect class="back" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}"'
            ' rx="8"/>',
            *lines,
            "</svg>\n",
        )
    )


def screens_of(
    written: Iterable[Written], columns: int, rows: int
) -> Iterator[tuple[float, tuple[Row, ...]]]:
    """What the terminal shows from each moment on."""
    terminal = Terminal(columns, rows)
    shown_at, screen = 0.0, terminal.screen()
    for at, text in written:
        if at - shown_at >= SHORTEST and screen != terminal.screen():
            screen = terminal.screen()
            yield shown_at, screen
            shown_at = at
        terminal.write(text)
        if screen == terminal.screen():
            shown_at = at
    yield shown_at, terminal.screen()


def stays_of(screens: Sequence[tuple[float, tuple[Row, ...]]], seconds: float) -> Iterator[Stay]:
    """The lines of all screens, each once for as long as it stands."""
    begins = [at for at, _ in screens]
    ends = [*begins[1:], seconds]
    for place in range(max(len(screen) for _, screen in screens)):
        rows = [screen[place] if place < len(screen) else () for _, screen in screens]
        for row, group in groupby(range(len(rows)), key=lambda at: rows[at]):
            numbers = list(group)
            if row:
                yield Stay(place, row, begins[numbers[0]], ends[numbers[-1]])


def _line(stay: Stay, name: str, seconds: float) -> str:
    kind = "l e" if stay.end == seconds else "l"
    y = MARGIN + BASE + stay.place * HEIGHT
    pieces = "".join(_piece(column, text, style) for column, text, style in _pieces(stay.row))
    return f'<text class="{kind} {name}" y="{y:g}">{pieces}</text>'


def _pieces(row: Row) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Texts of one style each, cut where blanks are: columns stand below each other whatever the
    width of a letter is."""
    column = 0
    while column < len(row):
        character, style = row[column]
        if character == " ":
            column += 1
            continue
        end = column
        while (
            end < len(row)
            and row[end][1] == style
            and not all(one[0] == " " for one in row[end : end + 2])
        ):
            end += 1
        text = "".join(one for one, _ in row[column:end])
        yield column, text.rstrip(), style
        column = end


def _piece(column: int, text: str, style: tuple[str, ...]) -> str:
    x = f"{MARGIN + column * WIDTH:g}"
    names = " ".join(f"s{number}" for number in style if number in ("1", "2", *COLOURS))
    kind = f' class="{names}"' if names else ""
    length = f' textLength="{len(text) * WIDTH:g}"'
    return f'<tspan x="{x}"{length}{kind}>{escape(text, quote=False)}</tspan>'


def _style(seconds: float, times: dict[tuple[float, float], str]) -> str:
    light = _colours(0)
    rules = [
        f"text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--text)}}"
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{_colours(1)}}}}}"
        ".back{fill:var(--back);stroke:var(--line)}.s1{font-weight:600}.s2{fill:var(--soft)}",
        *(f".s{number}{{fill:var(--c{number})}}" for number in COLOURS),
        f".l{{visibility:hidden;animation:{seconds:.2f}s step-end infinite}}"
        ".e{visibility:visible}",
        *(
            f"@keyframes {name}{{{_moments(begin, end, seconds)}}}.{name}{{animation-name:{name}}}"
            for (begin, end), name in times.items()
        ),
        "@media(prefers-reduced-motion:reduce){.l{animation:none}}",
    ]
    return "".join(rules)


def _moments(begin: float, end: float, seconds: float) -> str:
    first, last = f"{100 * begin / seconds:.2f}%", f"{100 * end / seconds:.2f}%"
    hidden = "" if begin == 0 else "0%{visibility:hidden}"
    after = "" if end == seconds else f"{last}{{visibility:hidden}}"
    final = "to{visibility:visible}" if end == seconds else "to{visibility:hidden}"
    return f"{hidden}{first}{{visibility:visible}}{after}{final}"


def _colours(theme: int) -> str:
    names = [f"--{name}:{both[theme]};" for name, *both in FRAME]
    return "".join((*names, *(f"--c{number}:{both[theme]};" for number, both in COLOURS.items())))
