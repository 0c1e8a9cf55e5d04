"""How does a front have an owner answer a gRPC call that is not for a model?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wherry.server.fronts.link import OwnerLink
from wherry.server.fronts.link_protocol import CallResponsePart, ForwardCall
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import SOON, MethodHandler, Rpc
from wherry.server.v2.grpc.entry import GrpcEntry

OWN: Final = frozenset(("ModelInfer", "ModelStreamInfer", "ServerLive", "ServerReflectionInfo"))


def passed_on(
    name: str, handler: MethodHandler, entry: GrpcEntry, choose: Callable[[], OwnerLink | None]
) -> MethodHandler:
    """The handler as a front has it; `choose` gives the link to the owner."""
    if name in OWN:
        return handler

    def pass_on(method: Method, rpc: Rpc) -> None:
        link = choose()
        if link is None:
            _no_owner(rpc)
        else:
            PassedOnCall(entry, method, rpc, link)

    return MethodHandler(pass_on, handler.group, handler.open)


class PassedOnCall:
    """One call that an owner answers. It ends early when the client leaves, or, if it may last as
    long as the client likes, when the front stops."""

    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc, link: OwnerLink) -> None:
        self._entry = entry
        self._method = method
        self._rpc = rpc
        self._link = link
        rpc.on_leave = self._leave
        if method.gives_stream:
            entry.watches.add(self)
        message = bytes(rpc.message)
        metadata = dict(rpc.metadata)

        def message_of(id: int) -> ForwardCall:
            return ForwardCall(id, rpc.path, metadata, rpc.timeout, message)

        self._id = link.forward(message_of, self._on_part, len(message))

    def drain(self) -> None:
        """End a Watch call, as this front stops."""
        self._leave()
        self._rpc.send(self._method.response.encode({"status": "NOT_SERVING"}))
        self._rpc.finish()

    def _on_part(self, part: CallResponsePart | None) -> None:
        rpc = self._rpc
        if part is None:
            _no_owner(rpc)
        elif part.code not in ("", "OK"):
            rpc.fail(part.code, part.text, part.metadata)
        elif part.message is None:
            rpc.finish()
        elif part.ends:
            rpc.respond(part.message)
        else:
            rpc.send(part.message)
        if part is None or part.ends:
            self._entry.watches.discard(self)

    def _leave(self) -> None:
        self._link.forget(self._id)
        self._entry.watches.discard(self)


def _no_owner(rpc: Rpc) -> None:
    rpc.fail("UNAVAILABLE", "the process that owns the models is gone; retry later", SOON)
