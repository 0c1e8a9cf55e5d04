"""Do names say what they are for, in the words of the field?"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "wherry"
#: How somebody learnt of a thing does not say what it is.
VAGUE = frozenset(("told", "asked", "wanted", "given", "said", "heard"))
#: Pictures, for which the field has nouns: slot, scaler, admission, timeout, owner, lease.
PICTURES = frozenset(
    (
        "berth",
        "berths",
        "crew",
        "company",
        "door",
        "patience",
        "desk",
        "lender",
        "loan",
        "crowd",
        "roster",
    )
)


def words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def is_vague(name: str) -> bool:
    return not VAGUE.isdisjoint((words(name)[0], words(name)[-1]))


def is_picture(name: str) -> bool:
    return not PICTURES.isdisjoint(words(name))


def names(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def test_names_are_those_of_the_field() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for name in (path.stem, *names(ast.parse(path.read_text())))
        if is_picture(name) or is_vague(name)
    ]
    assert wrong == []


def test_a_vague_name_is_found_wherever_it_is_defined() -> None:
    source = (
        "class AskedCall:\n    told: int\n    def said_by(self, wanted): self._heard = given = 1\n"
    )
    found = [name for name in names(ast.parse(source)) if is_vague(name)]
    assert sorted(found) == ["AskedCall", "_heard", "given", "said_by", "told", "wanted"]
    assert is_picture("InstanceCrew")
    assert not is_vague("forgiven")
