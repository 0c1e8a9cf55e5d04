"""What do gRPC's own health checks answer, and when is a Watch call told of a change?"""

from __future__ import annotations

import asyncio
from typing import Final

from wherry.core.api import ModelNotFound
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.v2.grpc.entry import GrpcEntry

#: "" is the server as a whole.
SERVICES: Final = ("", "inference.GRPCInferenceService", "grpc.health.v1.Health")
#: Seconds between two looks on behalf of a client that watches.
WATCH_INTERVAL: Final = 1.0


def check(entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
    service = method.request.decode(rpc.message).get("service", "")
    if service not in SERVICES:
        raise ModelNotFound(f"unknown service '{service}'")
    rpc.respond(method.response.encode({"status": _status(entry, service)}))


class Watch:
    """A Watch call: sends the status at once, and again whenever it changes."""

    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
        self._entry = entry
        self._method = method
        self._rpc = rpc
        self._service: str = method.request.decode(rpc.message).get("service", "")
        self._last_status = ""
        self._timer: asyncio.TimerHandle | None = None
        rpc.on_leave = self._leave
        entry.watches.add(self)
        self.look()

    def look(self) -> None:
        """Send the status if it has changed, and look again later."""
        status = _status(self._entry, self._service)
        if status != self._last_status:
            self._last_status = status
            self._rpc.send(self._method.response.encode({"status": status}))
        self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL, self.look)

    def drain(self) -> None:
        self._leave()
        self._last_status = "NOT_SERVING"
        self._rpc.send(self._method.response.encode({"status": self._last_status}))
        self._rpc.finish()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._entry.watches.discard(self)


def _status(entry: GrpcEntry, service: str) -> str:
    if service not in SERVICES:
        return "SERVICE_UNKNOWN"
    return "NOT_SERVING" if entry.not_ready() else "SERVING"
