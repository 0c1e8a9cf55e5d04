"""Which handler answers a call, and may this client call it?

The application over any transport: methods, keys, errors. It knows calls and messages as values;
HTTP/2 is the transport's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from wherry.core.api import Runtime
from wherry.server.access.api_keys import Restrictions
from wherry.server.calls.load_reports import FORMAT_HEADER, LoadReports
from wherry.server.calls.terms import REQUEST_ID, client_request_id
from wherry.server.fronts.pass_on import PassOn
from wherry.server.fronts.pass_on_calls import passed_on
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import CallMetadata, Metadata, MethodHandler, Rpc, fail
from wherry.server.v2.common import Common
from wherry.server.v2.grpc.entry import GrpcEntry, infer
from wherry.server.v2.grpc.kserve import KServeCalls, Reflection, Watch, check, schemas
from wherry.server.v2.grpc.stream import InferStream
from wherry.server.v2.triton_errors import code_and_sentence
from wherry.triton.api import ModelControl

SERVICE: Final = "inference.GRPCInferenceService"


class GrpcApp:
    """A Runtime as a gRPC application: call it with each Rpc.

    With keys in `common`, every method but health needs one of them, as `authorization: Bearer KEY`
    or `x-api-key: KEY` in the call's metadata; `restrictions` may require more, of a part of the
    methods (their headers begin with triton-grpc-protocol-).
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        common: Common | None = None,
        control: ModelControl | None = None,
        restrictions: Restrictions | None = None,
        pass_on: PassOn | None = None,
    ) -> None:
        """With `pass_on` this is a front's application: an owner answers what it passes on."""
        common = common or Common()
        self._triton_errors = common.triton_errors
        self._keys = common.keys or None
        self._restrictions = restrictions or None
        load = runtime.registry.load_report if pass_on is None else pass_on.load_report
        # gRPC's own clients read no other form.
        self._load_reports = LoadReports(load, common.metrics.load_report and "bin")
        described = {
            path: method for one in schemas().values() for path, method in one.methods.items()
        }
        infer_method = described[f"/{SERVICE}/ModelInfer"]
        self._entry = entry = GrpcEntry(
            runtime, common, control or ModelControl(runtime), infer_method
        )
        handlers = {
            "ModelInfer": MethodHandler(partial(infer, entry), "inference"),
            "ModelStreamInfer": MethodHandler(partial(InferStream, entry), "inference"),
            "Check": MethodHandler(partial(check, entry), "health", open=True),
            "Watch": MethodHandler(partial(Watch, entry), "health", open=True),
            "ServerReflectionInfo": MethodHandler(partial(Reflection, entry), "metadata"),
            **KServeCalls(entry).handlers(),
        }
        if pass_on is not None:
            handlers = {
                name: passed_on(name, handler, entry, pass_on.choose)
                for name, handler in handlers.items()
            }
        self._handlers = {path: handlers[path.rpartition("/")[2]] for path in described}
        #: What a transport must know: which methods there are, and which of them stream.
        self.methods: Mapping[str, Method] = described
        #: Methods that report whether the server lives, and end at once.
        self.vital = frozenset(
            path
            for path, handler in self._handlers.items()
            if handler.open and not described[path].gives_stream
        )

    def __call__(self, rpc: Rpc) -> None:
        handler = self._handlers[rpc.path]
        if self._triton_errors:
            rpc.metadata.words = code_and_sentence
        if self._keys is not None and not handler.open:
            caller = self._keys.name_of(rpc.metadata)
            if caller is None:
                rpc.fail("UNAUTHENTICATED", self._keys.REFUSAL)
                return
            rpc.caller = caller
        if REQUEST_ID in rpc.metadata or FORMAT_HEADER in rpc.metadata or self._load_reports.always:
            rpc.metadata.trailers = self._trailers(rpc.metadata)
        try:
            if self._restrictions is not None:
                self._restrictions.check(
                    handler.group, rpc.metadata, what="protocol", prefix="triton-grpc-protocol-"
                )
            handler.call(self.methods[rpc.path], rpc)
        except Exception as error:  # noqa: BLE001 - the top: whatever it is, the client gets an answer
            fail(rpc, error)

    def _trailers(self, metadata: CallMetadata) -> Callable[[], Metadata] | None:
        """What gives the trailers of a call: its id, if it has one, and a load report, if it
        requests one."""
        report, request_id = self._load_reports.requested_by(metadata), client_request_id(metadata)
        if not request_id:
            return report
        return lambda: ((REQUEST_ID, request_id), *(report() if report else ()))

    def drain(self) -> None:
        """Report "not ready" from now on, to open Watch calls, too."""
        self._entry.drain()

    def end_streams(self) -> None:
        """End each stream when the requests that it has begun are answered."""
        self._entry.end_streams()
