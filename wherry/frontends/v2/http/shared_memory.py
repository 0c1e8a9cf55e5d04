"""What do the shared memory routes answer?

The regions are `frontends/v2/shared_memory.py`'s. Of CUDA memory there are none here: its status is
empty, to forget what is not there is no error, and to register some is refused.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

from wherry.frontends.http.answers import respond, respond_json
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.v2.http.infer_codec import parse_object
from wherry.frontends.v2.http.model_path import Entry, Handlers
from wherry.values.errors import InvalidRequest, RegionNotFound, Unsupported

SYSTEM: Final = "systemsharedmemory"
CUDA: Final = "cudasharedmemory"


class SharedMemoryRoutes:
    """/v2/systemsharedmemory and /v2/cudasharedmemory, with their regions."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._regions = entry.common.shared_memory

    def routes(self) -> dict[str, Handlers]:
        """The paths that name no region."""
        return {
            f"/v2/{kind}/{action}": self._handlers(kind, action, None)
            for kind in (SYSTEM, CUDA)
            for action in ("status", "unregister")
        }

    def handlers(self, path: str) -> Handlers | None:
        """What the path of a region does; None if that is nothing."""
        match path.split("/"):
            case ["", "v2", kind, "region", name, action] if name and kind in (SYSTEM, CUDA):
                return self._handlers(kind, action, name) or None
        return None

    def _handlers(self, kind: str, action: str, name: str | None) -> Handlers:
        system = kind == SYSTEM
        match action:
            case "status":
                return {"GET": partial(self._status if system else self._cuda_status, name)}
            case "unregister":
                return {"POST": partial(self._unregister if system else self._forget, name)}
            case "register" if name is not None:
                return {"POST": partial(self._register if system else self._register_cuda, name)}
        return {}

    def _status(self, name: str | None, exchange: Exchange) -> None:
        respond_json(exchange, [asdict(region) for region in self._regions.status(name)])

    def _register(self, name: str, exchange: Exchange) -> None:
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

    def _register_cuda(self, name: str, exchange: Exchange) -> None:
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


def _member(region: str, given: dict[str, Any], name: str, kind: type) -> Any:
    value = given.get(name)
    if type(value) is not kind:
        problem = "is missing" if name not in given else f"must be {_KINDS[kind]}"
        raise InvalidRequest(f"shared memory region '{region}': '{name}' {problem}")
    return value


_KINDS: Final = {str: "a string", int: "a whole number", dict: "an object"}
