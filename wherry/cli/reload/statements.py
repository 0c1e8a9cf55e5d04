"""What does each statement of a module bind, and what does it need?

Nothing is run: the module's text is parsed.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

#: Decorators that register nothing: what they are put on matters to those who name it only.
_PLAIN_DECORATORS: Final = frozenset(
    {"model", "pipeline", "dataclass", "cache", "lru_cache", "no_grad", "contextmanager", "final"}
)


@dataclass(frozen=True, slots=True)
class Import:
    """`import module`, or `from module import name`; `level` counts the dots."""

    module: str
    name: str = ""
    level: int = 0


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top level of a module."""

    #: The names it binds; None: whatever it does, it may do to every name.
    binds: frozenset[str] | None
    #: The module's names that it uses.
    uses: frozenset[str]
    imports: tuple[Import, ...]
    #: The same for the same code, whatever its comments and its place.
    code: str


def statements(text: str) -> list[Statement]:
    """The statements of a module. SyntaxError if it is none."""
    return [made for node in ast.parse(text).body for made in _statements(node)]


def _statements(node: ast.stmt) -> Iterator[Statement]:
    if _says_nothing(node):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:  # one each, so that a model depends on what it names only
            one = (
                ast.Import([alias])
                if isinstance(node, ast.Import)
                else ast.ImportFrom(node.module, [alias], node.level)
            )
            bound = alias.asname or alias.name.partition(".")[0]
            binds = None if alias.name == "*" else frozenset({bound})
            yield Statement(binds, frozenset(), tuple(_imports([one])), ast.dump(one))
        return
    nodes = list(ast.walk(node))
    named = {one.id for one in nodes if isinstance(one, ast.Name)}
    uses = frozenset(named - _local_names(node))
    yield Statement(_bound(node), uses, tuple(_imports(nodes)), ast.dump(node))


def _local_names(node: ast.stmt) -> set[str]:
    """Names that are local to functions and classes, wherever the statement has them."""
    of_module: set[str] = set()
    local: set[str] = set()
    tables = [symtable.symtable(ast.unparse(node), "", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_local = table.get_type() != "module" and not symbol.is_global()
            (local if is_local else of_module).add(symbol.get_name())
    return local - of_module


def _says_nothing(node: ast.stmt) -> bool:
    """A docstring, `pass`, or what runs as a script only."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and isinstance(test := node.test, ast.Compare):
        return isinstance(test.left, ast.Name) and test.left.id == "__name__"
    return isinstance(node, ast.Pass)


def _bound(node: ast.stmt) -> frozenset[str] | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        plain = all(_last_name(one) in _PLAIN_DECORATORS for one in node.decorator_list)
        return frozenset({node.name}) if plain else None
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return None
    names: set[str] = set()
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if not isinstance(one, ast.Name):
                return None
            names.add(one.id)
    return frozenset(names)


def _last_name(decorator: ast.expr) -> str:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.module or "", alias.name, node.level)
