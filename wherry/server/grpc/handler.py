"""What does a method do, and which clients may call it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Values


@dataclass(frozen=True, slots=True)
class MethodHandler:
    """The function behind one method, and the group of the API that the method belongs to.

    `group` is one of `restricted.GROUPS`: what an operator restricts or switches off. An `open`
    method needs no key: load balancers probe these.
    """

    call: Callable[[Method, Rpc], object]
    group: str
    open: bool = False


def at_once(answer: Callable[[Values], Values], group: str, *, open: bool = False) -> MethodHandler:
    """Make the handler of a unary method that needs no waiting for its response."""
    return MethodHandler(partial(_respond, answer), group, open)


def _respond(answer: Callable[[Values], Values], method: Method, rpc: Rpc) -> None:
    rpc.respond(method.response.encode(answer(method.request.decode(rpc.message))))
