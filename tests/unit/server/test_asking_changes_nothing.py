"""Does a question to a server change anything in it?

All that is reachable from an application and its runtime is looked at before and after, so that no
counter, cache or listener is forgotten. What a question makes on first use (a route's handler, the
OpenAPI document) is there before the second round of questions.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

import wherry
from tests import grpc_calls, http_exchange
from tests.fakes import TIMEOUT

PLAIN = (int, float, str, bytes, enum.Enum, type(None))
#: What the machine does, threads that end when they are idle, the dashboard's own curves, and what
#: is recorded while somebody looks at it.
MOVES_ANYWAY = {
    *("Machine", "ThreadGroup", "ThreadPool", "LoopPort", "ServerNumbers", "Viewers"),
    "RecentRequests",
}
#: gRPC methods that do more than tell.
COMMANDS = re.compile(r"Infer$|Load$|Unload$|Register$|Unregister$")


@wherry.model(name="m", max_batch_size=4, route="/shout", response_cache=True)
def shout(text: list[str]) -> list[str]:
    return [one.upper() for one in text]


@dataclass
class State:
    """The values in all objects that were found, which it keeps: their ids stay theirs."""

    values: dict[int, tuple[str, dict[str, object]]] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)

    def differences(self, other: State) -> list[object]:
        both = self.values | other.values
        return [
            (self.values.get(id), other.values.get(id))
            for id in both
            if self.values.get(id) != other.values.get(id)
        ]


def state_of(*roots: object) -> State:
    state, left = State(), list(roots)
    while left:
        one = left.pop()
        parts = None if id(one) in state.values else parts_of(one)
        if parts is None:
            continue
        state.kept.append(one)
        shown: dict[str, object] = {
            name: part if isinstance(part, PLAIN) else id(part) for name, part in parts.items()
        }
        state.values[id(one)] = type(one).__name__, shown
        left += [part for part in parts.values() if not isinstance(part, PLAIN)]
    return state


def parts_of(one: Any) -> dict[str, object] | None:
    """What there is in a container, or an object of wherry's; None: it is neither."""
    kind = type(one)
    if isinstance(one, Mapping):
        return {str(key): value for key, value in one.items()}
    if isinstance(one, list | tuple | deque | set | frozenset):
        return {str(place): value for place, value in enumerate(one)}
    if isinstance(one, MethodType):
        return {"self": one.__self__}
    if isinstance(one, partial):
        return {"function": one.func, "arguments": one.args}
    if not kind.__module__.startswith("wherry.") or kind.__name__ in MOVES_ANYWAY:
        return None
    names = {*getattr(one, "__dict__", ()), *getattr(one, "__struct_fields__", ())}
    names.update(name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ()))
    return {name: getattr(one, name) for name in names if hasattr(one, name)}


def assert_changes_nothing(
    client: http_exchange.LoopClient[Any], ask: Callable[[], object], *roots: object
) -> None:
    registry = client.runtime.registry
    before = registry.generation, registry.listeners
    ask()
    assert (registry.generation, registry.listeners) == before
    warm = state_of(client.app, client.runtime)
    assert len(warm.values) > 200
    ask()
    assert warm.differences(state_of(client.app, client.runtime)) == []


def paths(client: http_exchange.Client) -> Iterator[str]:
    """All that have GET."""
    for path, route in client.app.described().items():
        if "GET" in route.handlers:
            for name in ("m", "other", "1"):
                yield re.sub(r"{\w+}", name, path.replace("{version}", "1"))
    yield from ("/shout", "/v1/models/m", "/nowhere")


def test_no_get_changes_anything() -> None:
    with http_exchange.served(shout) as client:
        every = sorted(set(paths(client)))
        assert len(every) > 40

        def ask() -> None:
            for path in every:
                for method in ("GET", "HEAD", "OPTIONS"):
                    exchange = client.begin(method, path)
                    if path == "/dashboard/events":
                        client.call(exchange.leave)
                    else:
                        exchange.answered.result(TIMEOUT)
            assert client.post("/v2/repository/index").status == 200

        assert_changes_nothing(client, ask)
        warm = state_of(client.app, client.runtime)
        assert client.post("/v2/models/m/generate", {"text": "a"}).status == 200
        assert warm.differences(state_of(client.app, client.runtime))


def test_no_question_over_grpc_changes_anything() -> None:
    with grpc_calls.served(shout) as client:
        methods = {p: m for p, m in client.app.methods.items() if not COMMANDS.search(p)}
        assert len(methods) > 12

        def ask() -> None:
            for path, method in methods.items():
                service, name = path[1:].split("/")
                known = {one.name for one in method.request.fields}
                for model in ("", "m", "other"):
                    words = dict.fromkeys(known & {"name", "model_name", "service"}, model)
                    rpc = client.begin(name, words, service=service)
                    if method.gives_stream:
                        client.call(rpc.leave)
                    else:
                        rpc.wait()

        assert_changes_nothing(client, ask)
