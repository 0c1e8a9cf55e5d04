"""Which packages does a target need, and are they installed? Nothing of it is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from wherry.core.api import ConfigError
from wherry.llm.api import AUTO, choose, facts_of, here, is_local, with_options
from wherry.server.targets import is_repository, load_target

_RUNS: Final = {
    ".onnx": "onnxruntime", ".pt": "torch", ".pt2": "torch", ".xml": "openvino", ".tl": "treelite",
}  # fmt: skip
_KNOWN: Final = {*sys.stdlib_module_names, "wherry", "triton_python_backend_utils"}


def modules_of(target: str) -> dict[str, str]:
    """The modules that a target imports and that are no part of it, Python or wherry, by where.
    ConfigError if it is not there, or not Python. A `try` around an import makes it a choice: it
    is left out."""
    path = Path(target.partition(":")[0])
    if path.suffix != ".py" and not path.exists():
        path = Path(*path.name.split(".")).with_suffix(".py")
    if is_repository(target):
        found: dict[str, str] = {}
        for file in sorted(path.glob("*/[0-9]*/*")):
            if file.suffix == ".py":
                found = {**_imports(file), **found}
            elif file.suffix in _RUNS:
                found.setdefault(_RUNS[file.suffix], str(file))
        return found
    return _imports(path / "__init__.py" if path.is_dir() else path)


def engine_of(target: str) -> str:
    """The engine that would serve a checkpoint, and why. ConfigError if there is none."""
    load_target(target)  # raises if there is no such checkpoint; it is loaded later
    source, options = with_options(target.partition(":")[2])
    if not is_local(source):
        return "it is known when the checkpoint is downloaded"
    choice = choose(facts_of(source), here(), options.get("engine", AUTO))
    return f"{choice.engine}: {choice.reason}"


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _imports(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    files = [file]
    for one in files:  # grows by those beside it that are imported
        for module, line in _imported(one):
            beside = (file.parent / f"{module}.py", file.parent / module / "__init__.py")
            own = [path for path in beside if path.is_file()]
            files += [path for path in own if path not in files]
            if not own and module not in _KNOWN:
                found.setdefault(module, f"{one}:{line}")
    return found


def _imported(file: Path) -> Iterator[tuple[str, int]]:
    """The modules that a file imports for sure, with the line."""
    try:
        nodes: list[ast.AST] = [ast.parse(file.read_bytes(), str(file))]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        problem = (
            f":{error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        )
        raise ConfigError(f"{file}{problem}") from None
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                yield node.module.partition(".")[0], node.lineno
        elif not isinstance(node, ast.Try) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            nodes += ast.iter_child_nodes(node)
