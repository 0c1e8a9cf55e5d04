"""What docs/explanation/architecture.md says of files, rooms and imports is so."""

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "wherry"
TEXT = (ROOT / "docs/explanation/architecture.md").read_text()
#: Heading of a way, and its steps: a file of wherry/, and the one that joins it to those before it.
WAYS = {
    heading: re.findall(
        r"^\d+\. `([\w/]+\.py)`(?:, (through|made by) `([\w/]+\.py)`)?", steps, re.M
    )
    for heading, steps in re.findall(r"^## (The way of a \w+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
}


@cache
def imports(file: str) -> frozenset[str]:
    """The files that a file of wherry/ imports, also in functions and for types only."""
    names = []
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    paths = [name.removeprefix("wherry.").replace(".", "/") for name in names if "wherry." in name]
    return frozenset(f"{path}.py" for path in paths if (PACKAGE / f"{path}.py").is_file())


def uses(user: str, used: str) -> bool:
    """Does one import the other, or a file that does?"""
    return used in imports(user) or any(used in imports(between) for between in imports(user))


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", TEXT))
    assert len(named) > 30
    assert [name for name in named if not [*PACKAGE.rglob(name)]] == []
    assert [s[0] for way in WAYS.values() for s in way if not (PACKAGE / s[0]).is_file()] == []


def test_every_room_is_on_the_page_and_imports_rooms_of_its_row_or_below() -> None:
    rows = [re.findall(r"`(\w+)/`", row) for row in re.findall(r"^\| (`\w+/`.*?) \|", TEXT, re.M)]
    place = {room: row for row, rooms in enumerate(rows) for room in rooms}
    assert set(place) == {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    upward = [
        (str(path.relative_to(PACKAGE)), file)
        for room in place
        for path in (PACKAGE / room).rglob("*.py")
        for file in imports(str(path.relative_to(PACKAGE)))
        if "/" in file and place[file.partition("/")[0]] < place[room]
    ]
    assert upward == []


def test_there_are_ways_for_a_request_a_stream_a_load_and_a_stop() -> None:
    assert [heading.rpartition(" ")[2] for heading in WAYS] == ["request", "stream", "load", "stop"]
    assert min(map(len, WAYS.values())) >= 5


@pytest.mark.parametrize("way", WAYS)
def test_no_file_of_a_way_imports_one_before_it(way: str) -> None:
    files = [file for file, _, _ in WAYS[way]]
    back = [(file, at) for n, file in enumerate(files) for at in files[:n] if at in imports(file)]
    assert back == []


@pytest.mark.parametrize("way", WAYS)
def test_every_file_of_a_way_is_used_by_one_before_it(way: str) -> None:
    files = [file for file, _, _ in WAYS[way]]
    loose = []
    for n, (file, how, joint) in enumerate(WAYS[way][1:], 1):
        before = files[:n]
        if how == "through":
            used = uses(file, joint) and any(uses(one, joint) for one in before)
        elif how == "made by":
            used = file in imports(joint) and any(
                one == joint or uses(joint, one) or uses(one, joint) for one in before
            )
        else:
            used = any(uses(one, file) for one in before)
        if not used:
            loose.append(file)
    assert loose == []


def test_the_steps_of_a_way_are_numbered_without_a_gap() -> None:
    for heading in WAYS:
        steps = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
        assert steps is not None
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", steps[1], re.M)]
        assert len(numbers) == len(WAYS[heading])
        assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
