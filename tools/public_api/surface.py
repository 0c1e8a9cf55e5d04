"""What does wherry promise to those who use it, as text that can be compared?

Of Python what the `__all__` of its public modules name, with each public member, as stubs that
griffe can read again; of the rest the names: commands and flags, settings, metrics, routes, as the
tables in docs/reference say them, which tests compare with the code.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import griffe

from tools.public_api.promise import BETWEEN_PARTS, MODULES
from wherry.server.cli import parser

ROOT = Path(__file__).parents[2]

_SPECIAL = ("__init__", "__call__", "__enter__", "__exit__", "__iter__", "__aenter__", "__aexit__")

#: A value that is a promise: the code of an error, say.
_CONSTANT = re.compile(r"-?[\d.]+|'[^']*'|None|True|False")


def stubs(root: Path = ROOT) -> str:
    """The public names of the tree at `root`, a class or function each, in order of names."""
    package = griffe.load(
        "wherry", search_paths=[root], try_relative_path=False, allow_inspection=False
    )
    assert isinstance(package, griffe.Module)
    return "\n".join(
        line
        for path in MODULES
        for line in _module(package if path == "wherry" else package[path.partition(".")[2]], path)
    )


def _module(module: griffe.Module, path: str) -> Iterator[str]:
    yield f"# {path}"
    for name in sorted(map(str, module.exports or ())):
        member = module.members[name]
        try:
            target = member.final_target if isinstance(member, griffe.Alias) else member
        except griffe.AliasResolutionError:  # of another package: wherry.Image is Pillow's
            yield f"{name}: object"
            continue
        if isinstance(target, griffe.Class):
            yield from _class(name, target)
        elif isinstance(target, griffe.Function):
            yield f"{_function(target, name)}"
        elif name != "__version__":
            yield f"{name}: object"


def _class(name: str, found: griffe.Class) -> Iterator[str]:
    bases = ", ".join(str(base) for base in found.bases)
    yield f"class {name}({bases}):" if bases else f"class {name}:"
    members = dict(sorted(found.all_members.items()))
    shown = [line for key, member in members.items() for line in _member(found, key, member)]
    yield from (f"    {line}" for line in shown or ["..."])


def _member(of: griffe.Class, name: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    if name.startswith("_") and name not in _SPECIAL:
        return
    classes = [of, *of.mro()]
    if any(f"{owner.name}.{name}" in BETWEEN_PARTS for owner in classes):
        return
    target = member.final_target if isinstance(member, griffe.Alias) else member
    if isinstance(target, griffe.Function):
        yield _function(target, name)
    elif isinstance(target, griffe.Attribute) and _is_declared(target, classes):
        value = f" = {target.value}" if _CONSTANT.fullmatch(str(target.value or "")) else ""
        yield f"{name}: {target.annotation or 'object'}{value}"


def _is_declared(attribute: griffe.Attribute, classes: Sequence[griffe.Class]) -> bool:
    """Whether a class says so in its body, by a property, too. What only a method sets is a part
    that the object holds, and no name for users."""
    if "property" in attribute.labels:
        return True
    bodies = (ast.parse(textwrap.dedent(found.source)).body[0] for found in classes)
    return any(attribute.name in _assigned(body) for body in bodies)


def _assigned(body: ast.stmt) -> set[str]:
    assert isinstance(body, ast.ClassDef)
    targets = [
        target
        for line in body.body
        if isinstance(line, ast.Assign | ast.AnnAssign)
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _function(function: griffe.Function, name: str) -> str:
    text = function.signature(name=name)
    if isinstance(function.parent, griffe.Class) and "staticmethod" not in function.labels:
        first = "cls" if "classmethod" in function.labels else "self"
        rest = text.removeprefix(f"{name}(")
        text = f"{name}({first}{'' if rest.startswith(')') else ', '}{rest}"
    prefix = "async def" if "async" in function.labels else "def"
    return f"{prefix} {text}: ..."


def names(root: Path = ROOT) -> list[str]:
    """The names of commands with their flags, of metrics and of routes, in order."""
    reference = root / "docs" / "reference"
    metrics = re.findall(r"^\| `((?:wherry|nv)_\w+)`", (reference / "metrics.md").read_text(), re.M)
    routes = re.findall(
        r"^\| (GET|POST|DELETE) \| (`.+`) \|", (reference / "http.md").read_text(), re.M
    )
    openai = re.findall(r"^\| ((?:`/[^`]+`,? ?)+) \|", (reference / "openai.md").read_text(), re.M)
    found = {
        *(f"command {line}" for line in _commands(parser(), "wherry")),
        *(f"metric {name}" for name in metrics),
        *(f"route {method} {path}" for method, cell in routes for path in cell[1:-1].split("`, `")),
        *(f"route {path}" for cell in openai for path in re.findall(r"`([^`]+)`", cell)),
    }
    return sorted(found)


def _commands(of: argparse.ArgumentParser, prefix: str) -> Iterator[str]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield f"{prefix} {name}"
                yield from _commands(sub, f"{prefix} {name}")
        else:
            yield from (f"{prefix} {flag}" for flag in _flags(action.option_strings))


def _flags(found: Sequence[str]) -> Iterator[str]:
    yield from (flag for flag in found if flag.startswith("--"))
