"""Which lines of a script take the strings of a tensor for an array of numpy's string types?

`np.char` works on arrays of dtype S and U. The strings of a tensor are an array of objects, in
tritonclient's `as_numpy()` and in that of a model.py: there it raises "string operation on
non-string array". Scripts for servers of 2021 may do so.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Set
from typing import Final

#: Of a script that is read, and of those in one folder.
MAX_BYTES: Final = 1 << 20
MAX_FILES: Final = 200

HINT: Final = (
    "takes strings of as_numpy(), which are an array of objects, for an array of bytes: write"
    " .astype(bytes) behind as_numpy()"
)
#: Methods of an array that leave its dtype as it is.
_KEEP_DTYPE: Final = {"copy", "flatten", "ravel", "reshape", "squeeze", "transpose"}


def hints(folder: str) -> Iterator[str]:
    """`file:line: np.char.decode() takes ...` for the Python files below a folder."""
    for path in _python_files(folder):
        yield from hints_of(path, os.path.relpath(path, folder))


def hints_of(path: str, shown: str) -> Iterator[str]:
    """The hints for one file, which they call `shown`."""
    try:
        with open(path, "rb") as file:
            source = file.read(MAX_BYTES + 1)
    except OSError:
        return
    if len(source) <= MAX_BYTES and b".char." in source:
        for line, function in calls_in(source):
            yield f"{shown}:{line}: {function}() {HINT}"


def calls_in(source: str | bytes) -> list[tuple[int, str]]:
    """Line and name of each such call; none in what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    nodes = list(ast.walk(tree))
    names = _tensors(nodes)
    return sorted(
        (node.lineno, f"np.char.{node.func.attr}")
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "char"
        and node.args
        and _is_tensor(node.args[0], names)
    )


def _tensors(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are assigned what `as_numpy()` returns, anywhere in the file."""
    return {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_tensor(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_tensor(node: ast.expr, names: Set[str]) -> bool:
    """Whether an expression is the array of `as_numpy()`, or a view of it."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "as_numpy":
                return True
            if node.func.attr not in _KEEP_DTYPE:
                return False
            node = node.func.value
        else:
            return isinstance(node, ast.Name) and node.id in names


def _python_files(folder: str) -> Iterator[str]:
    left = MAX_FILES
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.join(parent, name)
                left -= 1
                if not left:
                    return
