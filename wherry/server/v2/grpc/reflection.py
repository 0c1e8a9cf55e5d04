"""What do gRPC's own reflection calls answer: which services are there, and what describes them?

https://github.com/grpc/grpc/blob/master/doc/server-reflection.md, versions v1 and v1alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from wherry.core.api import Buffer
from wherry.server.grpc import proto
from wherry.server.grpc.proto import Method, Schema, file_descriptor, symbols
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Values
from wherry.server.v2.grpc.entry import GrpcEntry

#: google.rpc.Code of what is not there, and of what is not asked.
NOT_FOUND, INVALID = 5, 3


#: The older package of the same messages, which many clients still ask.
ALPHA: Final = "grpc.reflection.v1alpha"


@cache
def schemas() -> Mapping[str, Schema]:
    """What this server describes, by the names of its files."""
    return {
        "v2.proto": proto.load("v2.proto", "model_config.proto"),
        "health.proto": proto.load("health.proto"),
        "reflection.proto": proto.load("reflection.proto"),
        "reflection_v1alpha.proto": proto.load("reflection.proto", package=ALPHA),
    }


class Reflection:
    """A ServerReflectionInfo call: one answer for each question, in their order."""

    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
        self._entry = entry
        self._method = method
        self._rpc = rpc
        rpc.on_message = self._message
        rpc.on_half_close = self.drain
        rpc.on_leave = self._leave
        entry.streams.add(self)

    def drain(self) -> None:
        self._leave()
        self._rpc.finish()

    def _leave(self) -> None:
        self._entry.streams.discard(self)

    def _message(self, message: Buffer) -> None:
        query = self._method.request.decode(message)
        self._rpc.pause()  # until the client has taken this answer
        answer = {
            "valid_host": query.get("host", ""),
            "original_request": query,
            **answered(query),
        }
        self._rpc.send(self._method.response.encode(answer), sent=self._rpc.resume)


def answered(query: Values) -> Values:
    """The answer to a decoded ServerReflectionRequest: one field of the response."""
    if "list_services" in query:
        names = {path[1:].partition("/")[0] for one in schemas().values() for path in one.methods}
        return {"list_services_response": {"service": [{"name": name} for name in sorted(names)]}}
    if "file_by_filename" in query:
        return _file(query["file_by_filename"], query["file_by_filename"])
    if "file_containing_symbol" in query:
        symbol = query["file_containing_symbol"]
        return _file(_files().get(symbol, ""), symbol)
    if "all_extension_numbers_of_type" in query or "file_containing_extension" in query:
        return _error(NOT_FOUND, "there are no extensions")
    return _error(INVALID, "the request asks for nothing")


def _file(name: str, query: str) -> Values:
    if name not in schemas():
        return _error(NOT_FOUND, f"not found: {query[:200]}")
    return {"file_descriptor_response": {"file_descriptor_proto": [_descriptor(name)]}}


@cache
def _files() -> Mapping[str, str]:
    """The file that describes each symbol."""
    return {symbol: name for name, schema in schemas().items() for symbol in symbols(schema)}


@cache
def _descriptor(name: str) -> bytes:
    return file_descriptor(name, schemas()[name])


def _error(code: int, text: str) -> Values:
    return {"error_response": {"error_code": code, "error_message": text}}
