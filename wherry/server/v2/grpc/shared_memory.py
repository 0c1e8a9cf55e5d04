"""What do the shared memory calls answer?

The regions are `server/v2/shared_memory.py`'s. Of CUDA memory there are none here: its status is
empty, to forget what is not there is no error, and to register some is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from wherry.core.api import RegionNotFound, Unsupported
from wherry.server.grpc.handler import MethodHandler, at_once
from wherry.server.grpc.wire import Values
from wherry.server.v2.shared_memory import SharedMemory


class SharedMemoryCalls:
    """The calls by the method's name. An empty name in a request means all regions."""

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions

    def handlers(self) -> dict[str, MethodHandler]:
        calls: dict[str, Callable[[Values], Values]] = {
            "SystemSharedMemoryStatus": self._status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._register_cuda,
            "CudaSharedMemoryUnregister": lambda _: {},
        }
        return {name: at_once(call, "shared-memory") for name, call in calls.items()}

    def _status(self, request: Values) -> Values:
        regions = self._regions.status(request.get("name") or None)
        return {"regions": {region.name: asdict(region) for region in regions}}

    def _register(self, request: Values) -> Values:
        self._regions.register(
            request.get("name", ""),
            request.get("key", ""),
            request.get("byte_size", 0),
            request.get("offset", 0),
        )
        return {}

    def _unregister(self, request: Values) -> Values:
        self._regions.unregister(request.get("name") or None)
        return {}

    def _cuda_status(self, request: Values) -> Values:
        if name := request.get("name", ""):
            raise RegionNotFound(f"Unable to find cuda shared memory region: '{name}'")
        return {}

    def _register_cuda(self, request: Values) -> Values:
        raise Unsupported(
            f"cuda shared memory region '{request.get('name', '')}': this server takes no CUDA"
            " shared memory; use system shared memory, or send the data"
        )
