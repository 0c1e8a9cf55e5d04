"""What do the shared memory routes answer?

The regions are `server/v2/shared_memory.py`'s. Of CUDA memory there are none here: its status is
empty, to forget what is not there is no error, and to register some is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from wherry.core.api import InvalidRequest, RegionNotFound, Tag, Unsupported
from wherry.server.http.answers import respond, respond_json
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.v2.http.entry import HttpEntry
from wherry.server.v2.json_elements import parse_object


class SharedMemoryRoutes:
    """/v2/systemsharedmemory and /v2/cudasharedmemory, with their regions."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._regions = entry.common.shared_memory
        self._actions: dict[str, dict[str, tuple[str, Callable[[Any, Exchange], None]]]] = {
            "systemsharedmemory": {
                "status": ("GET", self._status),
                "register": ("POST", self._register),
                "unregister": ("POST", self._unregister),
            },
            "cudasharedmemory": {
                "status": ("GET", self._cuda_status),
                "register": ("POST", self._register_cuda),
                "unregister": ("POST", self._forget),
            },
        }

    def routes(self) -> dict[str, Route]:
        """Return the paths that name no region."""
        return {
            f"/v2/{kind}/{action}": self._route(kind, action, None)
            for kind in self._actions
            for action in self._actions[kind]
        }

    def route(self, path: str) -> Route | None:
        """Return the route of a path that names a region; None if there is none."""
        match path.split("/"):
            case ["", "v2", kind, "region", name, action] if name:
                if action in self._actions.get(kind, ()):
                    return self._route(kind, action, name)
        return None

    def _route(self, kind: str, action: str, name: str | None) -> Route:
        method, handler = self._actions[kind][action]
        return Route({method: partial(handler, name)}, "shared-memory")

    def _status(self, name: str | None, exchange: Exchange) -> None:
        respond_json(exchange, [asdict(region) for region in self._regions.status(name)])

    def _register(self, name: str | None, exchange: Exchange) -> None:
        if name is None:
            raise _without_name("system")
        given = parse_object(self._entry.command(exchange))
        key = _member(name, given, "key", str)
        byte_size = _member(name, given, "byte_size", int)
        offset = _member(name, {"offset": 0, **given}, "offset", int)
        self._regions.register(name, key, byte_size, offset)
        respond(exchange, b"")

    def _unregister(self, name: str | None, exchange: Exchange) -> None:
        self._regions.unregister(name)
        respond(exchange, b"")

    def _cuda_status(self, name: str | None, exchange: Exchange) -> None:
        if name is not None:
            raise RegionNotFound(f"Unable to find cuda shared memory region: '{name}'")
        respond_json(exchange, [])

    def _register_cuda(self, name: str | None, exchange: Exchange) -> None:
        if name is None:
            raise _without_name("cuda")
        given = parse_object(self._entry.command(exchange))
        handle = _member(name, given, "raw_handle", dict)
        _member(name, handle, "b64", str)
        _member(name, given, "byte_size", int)
        raise Unsupported(
            f"cuda shared memory region '{name}': this server takes no CUDA shared memory; use"
            " system shared memory, or send the data"
        )

    def _forget(self, name: str | None, exchange: Exchange) -> None:
        respond(exchange, b"")


def _without_name(kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"'region name' is necessary to register {kind} shared memory region",
        more=f"; POST to /v2/{kind}sharedmemory/region/NAME/register",
    )


def _member(region: str, given: dict[str, Any], name: str, kind: type) -> Any:
    value = given.get(name)
    if type(value) is not kind:
        problem, tag = "is missing", None
        if name in given:
            problem, tag = f"must be {_KINDS[kind]}", Tag.JSON
        raise InvalidRequest(f"shared memory region '{region}': '{name}' {problem}", tag=tag)
    return value


_KINDS: Final = {str: "a string", int: "a whole number", dict: "an object"}
