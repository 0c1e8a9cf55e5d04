"""Does a changed annotation take something from those who call, or from those who read?

A parameter may take more than before, what is returned may be less. Compared are the words of the
annotations, without running anything: what an alias stands for is not looked up.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: What each of these generics also is, with the same arguments.
_ALSO = {
    "list": ("Sequence", "Collection", "Iterable", "MutableSequence"),
    "Sequence": ("Collection", "Iterable"),
    "set": ("Set", "MutableSet", "Collection", "Iterable"),
    "frozenset": ("Set", "Collection", "Iterable"),
    "Collection": ("Iterable",),
    "Iterator": ("Iterable",),
    "AsyncIterator": ("AsyncIterable",),
    "dict": ("Mapping", "MutableMapping"),
    "MutableMapping": ("Mapping",),
    "bool": ("int", "float"),
    "int": ("float",),
}
_ANYTHING = ("object", "Any")


def narrowed(before: str, now: str) -> Iterator[str]:
    """The parameters of the stubs `before` that take less now, and results that may be more.

    What is gone is said elsewhere; what had no annotation, or one of a private name, has promised
    none. A field counts as a result: it is read far more often than it is set.
    """
    new = dict(_annotated(ast.parse(now).body, "wherry"))
    for path, old in _annotated(ast.parse(before).body, "wherry"):
        if old is None or re.search(r"\b_\w", old) or path not in new:
            continue
        takes, after = not path.endswith("()") and "(" in path, new[path]
        if not (takes if after is None else covers(*((after, old) if takes else (old, after)))):
            yield f"{path}: Annotation was changed (old {old}, new {after})"


def _annotated(body: list[ast.stmt], path: str) -> Iterator[tuple[str, str | None]]:
    """`owner.function(parameter)`, `owner.function()` for its result, `owner.field`; each with
    what it is said to be."""
    for found in body:
        match found:
            case ast.ClassDef():
                yield from _annotated(found.body, f"{path}.{found.name}")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                of = found.args
                for one in (*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg):
                    if one is not None:
                        yield f"{path}.{found.name}({one.arg})", _text(one.annotation)
                yield f"{path}.{found.name}()", _text(found.returns)
            case ast.AnnAssign(target=ast.Name(name)):
                yield f"{path}.{name}", _text(found.annotation)


def _text(annotation: ast.expr | None) -> str | None:
    return None if annotation is None else ast.unparse(annotation)


def covers(wide: str, narrow: str) -> bool:
    """Whether whatever `narrow` says is allowed by `wide`, too."""
    allowed = set(_members(_tree(wide)))
    return all(any(_is_a(member, other) for other in allowed) for member in _members(_tree(narrow)))


def _is_a(one: str, other: str) -> bool:
    if one == other or other in _ANYTHING:
        return True
    head, bracket, arguments = one.partition("[")
    if head == "Literal":
        value = _tree(arguments.removesuffix("]"))
        return isinstance(value, ast.Constant) and _is_a(type(value.value).__name__, other)
    return any(f"{more}{bracket}{arguments}" == other for more in _ALSO.get(head, ()))


def _members(node: ast.expr) -> Iterator[str]:
    """The members of a union, however it is written; each value of a Literal is one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members(node.left)
        yield from _members(node.right)
    elif isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        match _last(node.value):
            case "Union":
                yield from (member for part in parts for member in _members(part))
            case "Optional":
                yield from _members(node.slice)
                yield "None"
            case "Literal":
                yield from (f"Literal[{ast.unparse(part)}]" for part in parts)
            case head:
                inside = ", ".join(" | ".join(sorted(_members(part))) for part in parts)
                yield f"{head}[{inside}]"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _members(_tree(node.value))  # quoted, for a name that comes later
    elif isinstance(node, ast.List):  # the parameters of a Callable
        yield f"[{', '.join(' | '.join(sorted(_members(one))) for one in node.elts)}]"
    else:
        yield _last(node)


def _last(node: ast.expr) -> str:
    """A name without the module that it was taken from: `np.ndarray` and `ndarray` are one."""
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def _tree(annotation: str) -> ast.expr:
    return ast.parse(annotation, mode="eval").body
