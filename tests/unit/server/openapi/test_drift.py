"""server/openapi/: what is there is described, and what is described is there."""

import re

import wherry
from tests.http_exchange import served
from wherry.server.v2.shared_memory import SharedMemory

#: Paths that say only what is missing in them, or "not here", as Triton does; and OPTIONS.
NOT_DESCRIBED = {
    "*",
    *(
        f"/v2/cudasharedmemory/{where}{word}"
        for where in ("", "region/{region}/")
        for word in ("register", "status", "unregister")
    ),
    "/v2/systemsharedmemory/register",
    "/v2/repository/{repository}/index",
    "/v2/repository/{repository}/models/{model}/load",
    "/v2/repository/{repository}/models/{model}/unload",
    "/v1/{rest}",
    "/v1/messages/{rest}",
}


@wherry.model
def quiet(text: str) -> str:
    return text


def test_every_route_says_what_each_of_its_methods_takes_and_gives() -> None:
    with served(quiet, shared_memory=SharedMemory(allowed=True)) as client:
        routes = client.app.described()
    assert len(routes) > 60
    missing = {p for p, route in routes.items() if route.operations.keys() != route.handlers.keys()}
    assert missing | {"*"} == NOT_DESCRIBED


def test_the_application_finds_each_described_path() -> None:
    with served(quiet) as client:
        for path, described in client.app.described().items():
            sample = re.sub(r"{\w+}", "a", path.replace("{version}", "1"))
            found = client.app._known.get(path) or client.app._protocols.route(sample)
            route = found or client.app._find(sample)
            assert route is not None, path
            assert route.operations is described.operations, path
