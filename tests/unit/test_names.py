"""Do names say what they are for, in the words of the field?"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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
#: Local variables with a vague name. It may only fall.
MOST_LOCAL = 50


def words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def is_vague(name: str) -> bool:
    return not VAGUE.isdisjoint((words(name)[0], words(name)[-1]))


def is_picture(name: str) -> bool:
    return not PICTURES.isdisjoint(words(name))


def names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module defines: (`local` or `definition`, name)."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield "definition", name
                for member in node.body:
                    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                        yield "definition", member.target.id
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield "definition", name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield "definition", name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield "local", name


@cache
def all_names() -> list[tuple[str, str, str]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        found.append((where, "definition", path.stem))
        found += [(where, *one) for one in names(ast.parse(path.read_text()))]
    return found


def test_definitions_have_the_fields_names() -> None:
    wrong = [
        f"{where}: {name}"
        for where, kind, name in all_names()
        if is_picture(name) or (kind == "definition" and is_vague(name))
    ]
    assert wrong == []


def test_fewer_and_fewer_local_names_are_vague() -> None:
    found = Counter(
        where for where, kind, name in all_names() if kind == "local" and is_vague(name)
    )
    assert found.total() <= MOST_LOCAL, found.most_common(10)


def test_a_vague_name_is_found_wherever_it_is_defined() -> None:
    source = (
        "class AskedCall:\n    told: int\n    def said_by(self, wanted): self._heard = given = 1\n"
    )
    found = [(kind, name) for kind, name in names(ast.parse(source)) if is_vague(name)]
    assert Counter(kind for kind, _ in found) == {"definition": 4, "local": 3}  # a field is both
    assert is_picture("InstanceCrew")
    assert not is_vague("forgiven")
