"""Where is a public name defined, and what do its sources say of it?

The sources are read and not run: no optional package is needed for the pages.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.public_api.promise import BETWEEN_PARTS

ROOT = Path(__file__).parents[2]
Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SHOWN = ("__call__",)
#: Their fields are those of ModelConfig, where they are explained.
_SETTINGS = ("ModelSettings", "SettingAttributes")
_LONG = 88


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a class: how it is written, and the comment above it."""

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Method:
    """A method or property of a class, or a function."""

    name: str
    #: Without the types of its arguments.
    short: str
    doc: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function as its module has it."""

    module: str
    node: Defined

    @property
    def doc(self) -> str:
        return _doc(self.node)

    @property
    def bases(self) -> list[Definition]:
        """The base classes that wherry defines itself."""
        if not isinstance(self.node, ast.ClassDef):
            return []
        names = [ast.unparse(base).partition("[")[0] for base in self.node.bases]
        found = [define(self.module, name) for name in names if name.isidentifier()]
        return [one for one in found if one is not None]

    @property
    def link(self) -> str:
        """The way from docs/reference to its file."""
        return f"../../{_file(self.module).relative_to(ROOT).as_posix()}"

    @property
    def is_record(self) -> bool:
        """Whether it is made of its fields, so that they are its signature."""
        made = (
            owner.member(name) for owner in self.ancestors() for name in ("__init__", "__new__")
        )
        return not any(made)

    def ancestors(self) -> list[Definition]:
        """The class, its bases, their bases."""
        return [self, *(up for base in self.bases for up in base.ancestors())]

    def signature(self, name: str) -> str:
        """How it is called."""
        if not isinstance(self.node, ast.ClassDef):
            return _signature(self.node, name, method=False)
        for owner in self.ancestors():
            for made in ("__init__", "__new__"):
                if isinstance(found := owner.member(made), ast.FunctionDef):
                    return _signature(found, name, method=True, returns=False)
        if self.node.name in _SETTINGS:
            return f"{name}(**settings)"
        given = [
            f"{one.name}: {one.type}" + (f" = {one.default}" if one.default else "")
            for one in self.fields()
        ]
        return _called(name, ["*", *given] if given and self._by_keyword else given)

    def member(self, name: str) -> ast.stmt | None:
        return next((one for one in self._body() if getattr(one, "name", None) == name), None)

    def _body(self) -> Iterator[ast.stmt]:
        """What is in a class; of `if TYPE_CHECKING` what runs."""
        for one in self.node.body if isinstance(self.node, ast.ClassDef) else ():
            if isinstance(one, ast.If):
                yield from one.orelse
            else:
                yield one

    @property
    def _by_keyword(self) -> bool:
        assert isinstance(self.node, ast.ClassDef)
        said = [*self.node.decorator_list, *(word.value for word in self.node.keywords)]
        keywords = [word.arg for word in self.node.keywords]
        return any("kw_only=True" in ast.unparse(one) for one in said) or "kw_only" in keywords

    def _is_hidden(self, name: str) -> bool:
        if name.startswith("_"):
            return name not in _SHOWN
        owners = (owner.node.name for owner in self.ancestors())
        return any(f"{owner}.{name}" in BETWEEN_PARTS for owner in owners)

    def fields(self) -> Iterator[Field]:
        """Public fields of a record, in their order."""
        lines = _source(self.module)[0].splitlines()
        for one in () if self.node.name in _SETTINGS else self._body():
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            kind = ast.unparse(one.annotation)
            if self._is_hidden(one.target.id) or kind.startswith("ClassVar"):
                continue
            default = ast.unparse(one.value) if one.value is not None else ""
            comment = " ".join(reversed([*_comment(lines[: one.lineno - 1])]))
            yield Field(one.target.id, kind, default, comment)

    def methods(self) -> Iterator[Method]:
        """Public methods and properties, in their order."""
        for one in self._body():
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if self._is_hidden(one.name):
                continue
            marks = {ast.unparse(mark) for mark in one.decorator_list}
            if any(mark.endswith((".setter", "overload")) for mark in marks):
                continue
            if marks & {"property", "cached_property", "functools.cached_property"}:
                returns = ast.unparse(one.returns) if one.returns else "object"
                yield Method(one.name, f"{one.name}: {returns}", _doc(one))
            else:
                static = "staticmethod" in marks
                yield Method(one.name, _short(one, method=not static), _doc(one))


def defined(module: str, name: str) -> Definition:
    """The class or function `name` of a module."""
    found = define(module, name)
    assert found is not None, f"{module}.{name} is defined nowhere"
    return found


def define(module: str, name: str) -> Definition | None:
    """The class or function `name` of a module, also where it comes from another one of wherry."""
    for one in _statements(_source(module)[1].body):
        if isinstance(one, Defined) and one.name == name and not _is_overload(one):
            return Definition(module, one)
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("wherry"):
            for alias in one.names:
                if (alias.asname or alias.name) == name:
                    return define(str(one.module), alias.name)
    return None


def _is_overload(node: Defined) -> bool:
    return any(ast.unparse(mark).endswith("overload") for mark in node.decorator_list)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, and those below `if TYPE_CHECKING:`."""
    for one in body:
        yield from _statements(one.body) if isinstance(one, ast.If) else [one]


@cache
def _source(module: str) -> tuple[str, ast.Module]:
    text = _file(module).read_text(encoding="utf-8")
    return text, ast.parse(text)


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _comment(above: Sequence[str]) -> Iterator[str]:
    for line in reversed(above):
        if not (found := re.match(r"\s*#: ?(.*)", line)):
            return
        yield found[1]


def _doc(node: Defined) -> str:
    # inspect.cleandoc would take the indentation of an example for that of the text.
    text = ast.get_docstring(node, clean=False) or ""
    margin = " " * (node.col_offset + 4)
    return "\n".join(line.removeprefix(margin) for line in text.splitlines()).strip()


def _signature(
    node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, method: bool, returns: bool = True
) -> str:
    given, arguments = node.args, []
    places = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(places) - len(given.defaults)) + [*given.defaults]
    for number, (one, default) in enumerate(zip(places, defaults, strict=True)):
        arguments.append(_argument(one, default))
        if number + 1 == len(given.posonlyargs):
            arguments.append("/")
    if method:
        arguments = arguments[1:]
    if given.vararg:
        arguments.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        arguments.append("*")
    arguments += map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        arguments.append(f"**{_argument(given.kwarg, None)}")
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    suffix = f" -> {ast.unparse(node.returns)}" if returns and node.returns else ""
    return _called(f"{prefix}{name}", arguments, suffix)


def _short(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> str:
    bare = copy.deepcopy(node)
    for one in ast.walk(bare.args):
        if isinstance(one, ast.arg):
            one.annotation = None
    if method:
        bare.args.args = bare.args.args[1:] if not bare.args.posonlyargs else bare.args.args
        bare.args.posonlyargs = bare.args.posonlyargs[1:]
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    suffix = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{prefix}{node.name}({ast.unparse(bare.args)}){suffix}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    said = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    return said if default is None else f"{said} = {ast.unparse(default)}"


def _called(name: str, arguments: Sequence[str], suffix: str = "") -> str:
    line = f"{name}({', '.join(arguments)}){suffix}"
    if len(line) <= _LONG:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in arguments) + f"){suffix}"
