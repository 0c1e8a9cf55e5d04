"""How is the error of a gRPC call told in Triton's words, for `--triton-strict`?"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from wherry.frontends.grpc.rpc import Application, CallMetadata, Rpc
from wherry.frontends.v2.grpc.triton_admin import READERS
from wherry.frontends.v2.grpc.triton_reading import first_fault
from wherry.frontends.v2.triton_core import ViewOf
from wherry.frontends.v2.triton_reading import NO_REGION
from wherry.frontends.v2.triton_settings import NotTaken
from wherry.frontends.v2.triton_words import ToldError, in_tritons_words
from wherry.values.buffer import Buffer

_INFER = ("/ModelInfer", "/ModelStreamInfer")
#: What is wrong with the model's name or version: Triton looks at these first.
_BEFORE_THE_REQUEST = ("failed to get model version", "ModelInfer RPC doesn't")


#: Of a larger message only the id is read again: that is done while the event loop waits.
_MOST_BYTES = 1 << 20
#: A body for which the application refuses the request, once it has checked the key.
_NO_MESSAGE = b"\x00"
_MODEL = "Request for unknown model :"
_NO_REGION = NO_REGION.partition("'")[0]


class StrictCalls:
    """Another gRPC application, whose errors are those of Triton."""

    def __init__(self, application: Application, view_of: ViewOf) -> None:
        self._application = application
        self._view_of = view_of
        self.methods = application.methods
        self.vital = application.vital
        self.no_method = ""
        self.drain = application.drain
        self.end_streams = application.end_streams

    def __call__(self, rpc: Rpc) -> None:
        strict = CallMetadata(rpc.metadata)  # equal calls may share the other
        strict.trace = rpc.metadata.trace
        refused = self._read_as_triton(rpc)
        strict.words = partial(self._told, rpc.path, rpc.message, refused)
        rpc.metadata = strict
        self._application(rpc)

    def _read_as_triton(self, rpc: Rpc) -> ToldError | None:
        """Give the application what Triton would take of a request that is no inference; what
        Triton says of it otherwise."""
        name = rpc.path.rpartition("/")[2]
        if name not in READERS or rpc.path not in self.methods:
            return None
        method = self.methods[rpc.path]
        try:
            read = READERS[name](method.request.decode(rpc.message))
        except ValueError:
            return None  # the application says so
        except NotTaken as refused:
            rpc.message = _NO_MESSAGE
            return refused.told
        rpc.message = method.request.encode(read)
        return None

    def _told(
        self,
        path: str,
        whole: Buffer,
        refused: ToldError | None,
        code: str,
        text: str,
        streamed: Buffer,
    ) -> tuple[str, str]:
        if refused and code == "INVALID_ARGUMENT" and not text.startswith(_MODEL):
            return refused.code, refused.text
        message = whole or streamed
        request_id = ""
        if path.endswith(_INFER):
            with suppress(ValueError):  # it may be what the error is about
                kind = self.methods[path].request
                is_read = len(message) <= _MOST_BYTES
                request = kind.decode(message) if is_read else kind.short_fields(message)
                request_id = request.get("id", "")
                invalid = is_read and code == "INVALID_ARGUMENT"
                if invalid and not text.startswith(_BEFORE_THE_REQUEST):
                    name, version = (request.get(f"model_{x}", "") for x in ("name", "version"))
                    fault = first_fault(request, name, self._view_of(name, version))
                    if fault is not None:
                        return "NOT_FOUND" if fault.startswith(_NO_REGION) else code, fault
        told = in_tritons_words(ToldError(0, code, text), request_id, over_grpc=True)
        return told.code, told.text
