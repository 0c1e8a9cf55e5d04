"""Which handler answers a call, and may this client ask at all?

The application over any transport: methods, keys, errors. It knows calls and messages as values;
HTTP/2 is the transport's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import wherry
from wherry.frontends.access.api_keys import ApiKeys
from wherry.frontends.access.restricted import Restrictions
from wherry.frontends.admission import Admission
from wherry.frontends.common import Common
from wherry.frontends.grpc import proto
from wherry.frontends.grpc.answers import fail
from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Rpc
from wherry.frontends.grpc.wire import Values
from wherry.frontends.v2.grpc import health
from wherry.frontends.v2.grpc.entry import Entry
from wherry.frontends.v2.grpc.infer import infer
from wherry.frontends.v2.grpc.kserve import KServe
from wherry.frontends.v2.grpc.repository import RepositoryCalls
from wherry.frontends.v2.grpc.settings import SettingCalls
from wherry.frontends.v2.grpc.shared_memory import SharedMemoryCalls
from wherry.frontends.v2.grpc.stream import InferStream
from wherry.frontends.v2.parameters import HeaderForwarding
from wherry.runtime.control import ModelControl
from wherry.runtime.runtime import Runtime

Handler = Callable[[Method, Rpc], object]

SERVICE: Final = "inference.GRPCInferenceService"

#: Which of Triton's groups a method belongs to; any other is "health".
GROUPS: Final = {
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
#: No key is needed: who asks is a load balancer.
OPEN: Final = frozenset({"ServerLive", "ServerReady", "Check", "Watch"})


class GrpcApp:
    """A Runtime as a gRPC application: call it with each Rpc.

    With `api_keys`, every method but health wants one of them, as `authorization: Bearer KEY` or
    `x-api-key: KEY` in the call's metadata; `restrictions` may ask for more, of a part of the
    methods (their headers begin with triton-grpc-protocol-).
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        admission: Admission | None = None,
        api_keys: Sequence[str] = (),
        common: Common | None = None,
        control: ModelControl | None = None,
        restrictions: Restrictions | None = None,
        forwarding: HeaderForwarding | None = None,
        name: str = "wherry",
        version: str = wherry.__version__,
    ) -> None:
        self._keys = ApiKeys(api_keys)
        self._restrictions = restrictions or None
        self._entry = entry = Entry(
            runtime,
            admission or Admission(),
            control=control or ModelControl(runtime),
            common=common,
            forwarding=forwarding,
        )
        handlers: dict[str, Handler] = {
            "ModelInfer": partial(infer, entry),
            "ModelStreamInfer": partial(InferStream, entry),
            "Check": partial(health.check, entry),
            "Watch": partial(health.Watch, entry),
            **RepositoryCalls(entry).calls(),
        }
        for calls in (
            KServe(entry, name=name, version=version).calls(),
            SharedMemoryCalls(entry.common.shared_memory).calls(),
            SettingCalls(entry).calls(),
        ):
            handlers |= {method: partial(_answer_at_once, call) for method, call in calls.items()}
        described = {
            **proto.load("v2.proto", "model_config.proto").methods,
            **proto.load("health.proto").methods,
        }
        self._handlers = {path: handlers[_name(path)] for path in described}
        #: What a transport must know: which methods there are, and which of them stream.
        self.methods: Mapping[str, Method] = described
        #: What is asked to find out whether the server lives; not what stays open.
        self.vital = frozenset(path for path in described if _name(path) in OPEN - {"Watch"})

    def __repr__(self) -> str:
        return f"<GrpcApp: {self._entry.runtime!r}, {self._entry.admission!r}>"

    def __call__(self, rpc: Rpc) -> None:
        method = _name(rpc.path)
        if self._keys and method not in OPEN:
            caller = self._keys.name_of(rpc.metadata)
            if caller is None:
                rpc.fail("UNAUTHENTICATED", self._keys.REFUSAL)
                return
            rpc.caller = caller
        try:
            if self._restrictions is not None:
                group = GROUPS.get(method, "health")
                self._restrictions.check(
                    group, rpc.metadata, what="protocol", prefix="triton-grpc-protocol-"
                )
            self._handlers[rpc.path](self.methods[rpc.path], rpc)
        except Exception as error:  # noqa: BLE001 - the top: whatever it is, the client is told
            fail(rpc, error)

    def drain(self) -> None:
        """Not ready from now on, as those that watch are told."""
        self._entry.drain()

    def end_streams(self) -> None:
        """Streams end when what they have begun is answered."""
        self._entry.end_streams()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _answer_at_once(call: Callable[[Values], Values], method: Method, rpc: Rpc) -> None:
    rpc.respond(method.response.encode(call(method.request.decode(rpc.message))))
