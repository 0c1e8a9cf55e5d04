"""server/openapi/: what is described is there, and what is there is described."""

import ast
from collections.abc import Iterator
from pathlib import Path

import wherry
from tests.http_exchange import served
from wherry.server import http_app
from wherry.server.openapi.document import SAMPLES
from wherry.server.openapi.v2_operations import SHARED_MEMORY_OPERATIONS, V2_OPERATIONS
from wherry.server.v2.http import kserve

FRONTENDS = Path(http_app.__file__).parent
DESCRIBED = {
    (method, path.format(**SAMPLES)) for method, path in (*V2_OPERATIONS, *SHARED_MEMORY_OPERATIONS)
}
#: Files whose `route` finds paths that no table has.
ROUTERS = {
    "protocol_routes.py",
    "natural/routes.py",  # of models with a route, whose operations are told with them
    "http/route.py",  # patterns, which say themselves what goes in and comes out
    "v2/http/kserve.py",  # OF_MODEL, and a model's trace settings
    "v2/http/repository.py",  # patterns, as are the next one's
    "v2/http/shared_memory.py",
}
#: Patterns of paths that say "not here", as Triton does.
REFUSED = {"/v2/repository/_/index", "/v2/repository/_/models/_/load"}

#: Fixed paths that only say what is missing in them: the region's name.
NAMELESS = {("POST", f"/v2/{kind}sharedmemory/register") for kind in ("system", "cuda")}


@wherry.model
def quiet(text: str) -> str:
    return text


def test_every_fixed_path_is_described_with_its_methods() -> None:
    with served(quiet) as client:
        routes = client.app._routes
    there = {
        (method, path)
        for path, route in routes.items()
        for method in route.handlers
        if method not in route.operations
    }
    assert there - DESCRIBED == NAMELESS


def test_every_route_of_a_protocol_says_what_goes_in_and_comes_out() -> None:
    with served(quiet) as client:
        described = client.app._protocols.described()
    # {rest}: what is not there.
    routes = {path: route for path, route in described.items() if "{rest}" not in path}
    assert len(routes) > 15
    assert [
        path for path, route in routes.items() if route.operations.keys() != route.handlers.keys()
    ] == []


def test_every_path_below_a_model_is_described() -> None:
    there = {
        (method, f"/v2/models/m{version}{'/' + rest if rest else ''}")
        for rest, (method, _, _) in kserve.OF_MODEL.items()
        for version in ("", "/versions/1")
    }
    assert there - DESCRIBED == set()


def test_what_is_described_is_there() -> None:
    with served(quiet) as client:
        for method, path in sorted(DESCRIBED):
            route = client.app._own_route(path)
            assert route is not None, path
            assert method in route.handlers, path


def test_there_are_no_other_finders_of_paths() -> None:
    found = {
        str(file.relative_to(FRONTENDS))
        for file in FRONTENDS.rglob("*.py")
        if "def route(" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "route"
        if [argument.arg for argument in node.args.args] == ["self", "path"]
    }
    assert found == ROUTERS


def _patterns(file: Path) -> Iterator[str]:
    """The paths that a file's `case ["", "v2", name]` match, with `_` for what may be anything."""
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if "case [" in text else ():
        if not isinstance(node, ast.MatchSequence):
            continue
        words: list[str] = []
        for part in node.patterns:
            first = part.patterns[0] if isinstance(part, ast.MatchOr) else part
            value = first.value if isinstance(first, ast.MatchValue) else None
            words.append(str(value.value) if isinstance(value, ast.Constant) else "_")
        yield "/".join(words)


def test_every_pattern_of_paths_is_described() -> None:
    patterns = {p for file in FRONTENDS.rglob("*.py") for p in _patterns(file)} - REFUSED
    assert len(patterns) > 2
    shapes = [path.split("/") for _, path in DESCRIBED]
    missing = [
        pattern
        for pattern in patterns
        if not any(
            len(shape) == len(pattern.split("/"))
            and all(
                word in ("_", part) for word, part in zip(pattern.split("/"), shape, strict=True)
            )
            for shape in shapes
        )
    ]
    assert missing == []
