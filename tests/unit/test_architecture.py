"""What docs/explanation/architecture.md says of files, rooms and imports is so."""

import ast
import importlib
import re
from collections.abc import Mapping
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
def offers(api: str) -> Mapping[str, str]:
    """The file behind each name of a part's api."""
    return {
        alias.name: home
        for node in ast.walk(ast.parse((PACKAGE / api).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        for home in (f"{node.module}.{alias.name}", node.module)
        if (PACKAGE.parent / f"{home.replace('.', '/')}.py").is_file()
    }


@cache
def imports(file: str) -> frozenset[str]:
    """The files that a file of wherry/ imports, also in functions, for types only and through the
    api of a part."""
    names = []
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.endswith(".api"):
                behind = offers(f"{node.module.removeprefix('wherry.').replace('.', '/')}.py")
                names += [behind[alias.name] for alias in node.names if alias.name in behind]
                continue
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


def test_every_part_is_on_the_page_and_imports_parts_of_its_row_or_below() -> None:
    rows = [re.findall(r"`(\w+)/`", row) for row in re.findall(r"^\| (`\w+/`.*?) \|", TEXT, re.M)]
    place = {room: row for row, rooms in enumerate(rows) for room in rooms}
    assert set(place) == {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    upward = [
        (str(path.relative_to(PACKAGE)), file)
        for part in place
        for path in (PACKAGE / part).rglob("*.py")
        for file in imports(str(path.relative_to(PACKAGE)))
        if "/" in file and place[file.partition("/")[0]] < place[part]
    ]
    # The server offers the protocols and engines of llm, and needs none of them.
    upward = [(user, used) for user, used in upward if (user[:6], used[:3]) != ("server", "llm")]
    assert upward == []


@pytest.mark.parametrize("part", ["core", "server", "triton", "llm"])
def test_an_api_offers_what_type_checkers_read_of_it(part: str) -> None:
    api = importlib.import_module(f"wherry.{part}.api")
    tree = ast.parse((PACKAGE / part / "api.py").read_text())
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"wherry.{part}.")
        for alias in node.names
    }
    for name, home in typed.items():
        assert getattr(api, name) is getattr(importlib.import_module(home or ""), name), name
    homes = [ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    assert sorted(" ".join(homes[0].values()).split()) == sorted(typed)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        api.other  # noqa: B018


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
