"""tools/pictures: a terminal as commands need it, a recording that plays, true badges."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools.pictures.__main__ import readme_app
from tools.pictures.badges import badges_svg
from tools.pictures.cast import LAST_SECONDS, cast_svg, screens_of, stays_of
from tools.pictures.record import Recording, Written
from tools.pictures.terminal import Row, Terminal

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def text_of(row: Row) -> str:
    return "".join(character for character, _ in row)


def shown(*texts: str, columns: int = 20, rows: int = 4) -> list[str]:
    terminal = Terminal(columns, rows)
    for text in texts:
        terminal.write(text)
    return [text_of(row) for row in terminal.screen()]


def test_a_line_is_written_again_and_cleared() -> None:
    assert shown("loading 1\rloading 2") == ["loading 2"]
    assert shown("loading\r\x1b[Kdone\r\n") == ["done", ""]


def test_a_table_that_grows_is_drawn_over_itself() -> None:
    assert shown("a\r\nb\r\n\x1b[1A\x1b[2K\x1b[1A\x1b[2Kc\r\nd") == ["c", "d", ""]


def test_long_lines_go_on_below_and_the_first_ones_leave() -> None:
    assert shown("abcdefg", columns=3) == ["abc", "def", "g"]
    assert shown("1\r\n2\r\n3", rows=2) == ["2", "3"]


def test_a_sequence_that_comes_in_halves_is_read_whole() -> None:
    terminal = Terminal(20, 4)
    for text in ("\x1b[", "32", "mgreen\x1b[0m plain"):
        terminal.write(text)
    (row,) = terminal.screen()
    assert [style for _, style in row] == [("32",)] * 5 + [()] * 6


@pytest.mark.parametrize("text", ["\x07", "\x1b[5;5H", "\x1b]0;a title that is long\x07"])
def test_what_is_not_known_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="that is known"):
        shown(text)


def test_each_line_stands_from_its_first_screen_to_its_last() -> None:
    written = [Written(0, "a"), Written(1, "\r\nb"), Written(2, "\rc"), Written(3, "\r\nd")]
    stays = list(stays_of(list(screens_of(written, 20, 4)), 3 + LAST_SECONDS))
    assert [(text_of(one.row), one.place, one.begin, one.end) for one in stays] == [
        ("a", 0, 0, 7),
        ("b", 1, 1, 2),
        ("c", 1, 2, 7),
        ("d", 2, 3, 7),
    ]


def test_the_picture_has_each_text_in_its_column_and_no_markup_of_it() -> None:
    drawn = cast_svg([Written(0, "a  <b>&\r\n\x1b[1mx")], 20, 4, "A <title>")
    root = ElementTree.fromstring(drawn)
    spans = [(one.text, one.get("x"), one.get("class")) for one in root.iter(f"{SVG}tspan")]
    assert spans == [("a", "16", None), ("<b>&", "40", None), ("x", "16", "s1")]
    assert root.findtext(f"{SVG}title") == "A <title>"


@pytest.mark.slow
def test_commands_are_typed_and_run_on_a_terminal_of_their_own() -> None:
    recording = Recording(40, 10, {}, {"8123": "8000"})
    with recording.background(f"{sys.executable} -c 'print(\"up\"); input()'", "up"):
        recording.run("tput cols; echo at 8123; test -t 1")
    *_, (_, screen) = screens_of(recording.written, 40, 30)
    lines = [text_of(row) for row in screen]
    assert lines[-4:] == ["$ tput cols; echo at 8123; test -t 1", "40", "at 8000", ""]
    with pytest.raises(RuntimeError, match="has failed"):
        recording.run("exit 3")


@pytest.mark.parametrize("name", ["cast.svg", "badges.svg"])
def test_the_pictures_are_small_and_need_nothing_else(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert len(text) <= 150_000
    root = ElementTree.fromstring(text)
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg", "title", "style", "rect", "text", "tspan",
    }  # fmt: skip
    assert "url(" not in text
    assert "href" not in text


def test_the_badges_say_what_the_package_says() -> None:
    badges = (ROOT / "docs" / "badges.svg").read_text()
    assert badges == badges_svg(ROOT / "pyproject.toml"), "run: python -m tools.pictures badges"


def test_the_recorded_program_is_that_of_the_readme() -> None:
    assert readme_app().startswith("# app.py\n")
    assert "def species(" in readme_app()
