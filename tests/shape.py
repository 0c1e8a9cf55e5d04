"""Are the classes, functions and imports of wherry within their bounds?

    python -m tests.shape

prints what exceeds a bound, and exits with 1. `tests/shape.txt` lists what may exceed one, and why.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

#: Name of each measure, the most that needs no line in shape.txt, and how to get there.
BOUNDS = {
    "part-lines": (1000, "take something out, or say in shape.txt what users get for it"),
    "part-names": (30, "give the others one name for what they do with several"),
    "class-lines": (400, "give a part of its state a class of its own"),
    "class-fields": (20, "give a part of its state a class of its own"),  # records aside
    "class-name": (1, "rename all but one"),
    "long-functions": (0, "shorten one"),  # if more than one in a hundred is long
    "many-parameters": (5, "make one record of those that go together"),  # functions with many
    "private-names": (0, "make a public method of it, or ask its owner"),  # not in NOT_CORE
    "circle": (1, "move what both need below them"),  # imports for types and in functions count
    "top-level": (12, "put it into a part"),
}
LONG_FUNCTION = 40
MANY_PARAMETERS = 8
#: Rooms outside the core.
NOT_CORE = ("bench.", "core.client.", "server.cli.", "testing.")

_PRIVATE = re.compile(r"_[a-z]")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Excess:
    """A count above its bound. `name` is the class, the module, or `all`."""

    measure: str
    name: str
    count: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A line of shape.txt: `measure name count reason`."""

    measure: str
    name: str
    count: int
    reason: str

    def covers(self, excess: Excess) -> bool:
        """Whether this line is about `excess`: same measure, and its name or the end of it."""
        return self.measure == excess.measure and ("." + excess.name).endswith("." + self.name)


@dataclass(slots=True)
class _Class:
    name: str
    lines: int
    fields: int
    record: bool


@dataclass(slots=True)
class _Module:
    name: str
    lines: int
    top_classes: list[str] = field(default_factory=list)
    classes: list[_Class] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)  # name, lines, parameters
    private: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    #: (module, name) that it imports from the `api` of a part; of an `api`, what is behind a name.
    asked: set[tuple[str, str]] = field(default_factory=set)
    offers: dict[str, str] = field(default_factory=dict)


def excesses(package: Path) -> list[Excess]:
    """Every count of `package` that is above its bound."""
    files = {_module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    modules = [_read(name, path, package.name, files.keys()) for name, path in files.items()]
    found = [*_of_parts(modules)]
    _through_apis(modules)
    found += [*_of_classes(modules), *_of_functions(modules), *_of_imports(modules)]
    entries = [entry.name for entry in package.iterdir() if entry.name != "__pycache__"]
    found.append(Excess("top-level", "all", len(entries)))
    return [excess for excess in found if excess.count > BOUNDS[excess.measure][0]]


def complaints(found: Iterable[Excess], allowed: Iterable[Allowed]) -> list[str]:
    """What must be changed so that nothing exceeds its bound but what is allowed to."""
    found, allowed = list(found), list(allowed)
    out = []
    for excess in found:
        most = max((line.count for line in allowed if line.covers(excess)), default=0)
        bound, remedy = BOUNDS[excess.measure]
        what = f"{excess.measure} {excess.name} is {excess.count}{excess.detail}"
        if not most:
            out.append(
                f"{what}, at most {bound}: {remedy},"
                " or add a line to tests/shape.txt that says why not"
            )
        elif excess.count > most:
            out.append(f"{what}, tests/shape.txt allows {most}, so it has grown: {remedy}")
    out += [
        f"{line.measure} {line.name} is within its bound now, or gone:"
        " remove its line from tests/shape.txt"
        for line in allowed
        if not any(line.covers(excess) for excess in found)
    ]
    return out


def read_allowed(text: str) -> list[Allowed]:
    """The lines of shape.txt. Raises ValueError for a line without a number or a reason."""
    out = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=3)
        if len(words) < 4 or words[0] not in BOUNDS or not words[2].isdecimal():
            raise ValueError(f"not `measure name count reason`: {line!r}")
        out.append(Allowed(words[0], words[1], int(words[2]), words[3]))
    return out


def _of_parts(modules: list[_Module]) -> Iterator[Excess]:
    """How large a part is, and how many names it offers to the others."""
    lines: dict[str, int] = defaultdict(int)
    for module in modules:
        part, _, below = module.name.partition(".")
        lines[part] += module.lines
        if below == "api":
            yield Excess("part-names", part, len(module.offers) - ("lazy_exports" in module.offers))
    for part, count in lines.items():
        yield Excess("part-lines", part, count)


def _of_classes(modules: list[_Module]) -> Iterator[Excess]:
    homes = defaultdict(list)
    for module in modules:
        for name in module.top_classes:
            homes[name].append(module.name)
        for made in module.classes:
            name = f"{module.name}.{made.name}"
            yield Excess("class-lines", name, made.lines)
            if not made.record:
                yield Excess("class-fields", name, made.fields)
    for name, where in homes.items():
        yield Excess("class-name", name, len(where), f" ({', '.join(where)})")


def _of_functions(modules: list[_Module]) -> Iterator[Excess]:
    every = [(f"{module.name}.{name}", lines, parameters)
             for module in modules for name, lines, parameters in module.functions]  # fmt: skip
    long = [f"{name} {lines}" for name, lines, _ in every if lines > LONG_FUNCTION]
    if len(long) > len(every) // 100:
        yield Excess("long-functions", "all", len(long), f" ({', '.join(long)})")
    wide = [f"{name} {count}" for name, _, count in every if count > MANY_PARAMETERS]
    yield Excess("many-parameters", "all", len(wide), f" ({', '.join(wide)})")


def _of_imports(modules: list[_Module]) -> Iterator[Excess]:
    for module in modules:
        if not f"{module.name}.".startswith(NOT_CORE) and module.private:
            names = ", ".join(sorted(module.private))
            yield Excess("private-names", module.name, len(module.private), f" ({names})")
    graph = {module.name: module.imports for module in modules}
    reached = {name: _reached(name, graph) for name in graph}
    told: set[str] = set()
    for name in graph:
        circle = sorted(other for other in reached[name] if name in reached[other])
        if circle and name not in told:
            told.update(circle)
            yield Excess("circle", name, len(circle), f" ({', '.join(circle)})")


def _through_apis(modules: Iterable[_Module]) -> None:
    """Count an import from the `api` of a part as one of the module that has the name."""
    offers = {module.name: module.offers for module in modules if module.name.endswith(".api")}
    for module in modules:
        if module.name in offers:
            module.imports = set()
            continue
        behind = {offers[api][name] for api, name in module.asked if api in offers}
        module.imports = (module.imports - offers.keys()) | behind - {module.name}


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


def _module_name(path: Path, package: Path) -> str:
    """Dotted name below the package; that of the package's own file is `__init__`."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _read(name: str, path: Path, package: str, known: Set[str]) -> _Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    module = _Module(name, text.count("\n"))
    module.top_classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    _read_definitions(tree, "", module)
    room = name if path.name == "__init__.py" else name.rpartition(".")[0]
    foreign: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            foreign.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _source(node, package, room)
            if source is None:
                foreign.update(alias.asname or alias.name for alias in node.names)
                continue
            for alias in node.names:
                below = f"{source}.{alias.name}".lstrip(".")
                home = below if below in known else source
                module.imports.add(home)
                module.asked.add((source, alias.name))
                module.offers[alias.asname or alias.name] = home
                if _PRIVATE.match(alias.name):
                    module.private.add(below)
    # The package's own file is a table of contents: it names everything, for types only.
    module.imports = set() if name == "__init__" else module.imports & known - {name}
    own = _own_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Attribute) and _PRIVATE.match(node.attr) and node.attr not in own:
            owner = ast.unparse(node.value)
            if owner not in {"self", "cls"} and owner.partition(".")[0] not in foreign:
                module.private.add(f"{owner}.{node.attr}")
    return module


def _source(node: ast.ImportFrom, package: str, room: str) -> str | None:
    """The module below the package that `node` imports from; None for another package's."""
    module = node.module or ""
    if node.level:
        parts = room.split(".")
        return ".".join([*parts[: len(parts) - node.level + 1], module]).strip(".")
    first, _, rest = module.partition(".")
    return rest if first == package else None


def _own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that this file defines, among them the fields and methods of its classes."""
    own: set[str] = set()
    for node in nodes:
        if isinstance(node, (*_FUNCTION, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"self", "cls"}:
            own.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # __slots__
    return own


def _read_definitions(parent: ast.AST, owner: str, module: _Module) -> None:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, _FUNCTION):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
            bound = bool(owner) and bool(every) and every[0].arg in {"self", "cls"}
            name = f"{owner}.{node.name}" if owner else node.name
            module.functions.append((name, _lines(node), len(every) - bound))
            _read_definitions(node, "", module)
        elif isinstance(node, ast.ClassDef):
            module.classes.append(_read_class(node))
            _read_definitions(node, node.name, module)
        else:
            _read_definitions(node, owner, module)


def _read_class(node: ast.ClassDef) -> _Class:
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    # A record of options or of wire fields: it says them, and nothing of it changes them.
    record = bool(declared) and not assigned
    return _Class(node.name, _lines(node), len(declared | assigned), record)


def _lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main() -> int:
    root = Path(__file__).parents[1]
    table = root / "tests" / "shape.txt"
    said = complaints(excesses(root / "wherry"), read_allowed(table.read_text(encoding="utf-8")))
    print(*said, sep="\n", end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
