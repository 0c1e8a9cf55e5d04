"""What does a method do, which clients may call it, and how does an error end its calls?"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from wherry.core.api import WherryError, log_internal_error
from wherry.server.calls.client_text import text_of
from wherry.server.calls.terms import client_request_id
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Metadata, Rpc
from wherry.server.grpc.wire import Values

#: An error's text travels in the trailers, and clients refuse long ones: their whole error is lost.
MAX_TEXT_BYTES = 4096

_PREFIX = os.urandom(6).hex()
_numbers = itertools.count(1)


def fail(rpc: Rpc, error: Exception) -> None:
    """End the call with an error's own code and text; a bug of ours is a neutral INTERNAL."""
    rpc.fail(*status_of(rpc, error))


def status_of(rpc: Rpc, error: Exception) -> tuple[str, str, Metadata]:
    """Code, text and trailers of an error; a bug of ours is logged and not shown."""
    if not isinstance(error, WherryError):
        request_id = client_request_id(rpc.metadata) or f"{_PREFIX}-{next(_numbers):x}"
        logged = log_internal_error(error, request_id=request_id, path=rpc.path)
        where = f"it under id {request_id}" if logged else "one like it"
        return "INTERNAL", f"internal error; the server's log has {where}", ()
    trailers: Metadata = ()
    if error.retry_after is not None:
        # What gRPC's own retries wait for, where the client has a policy for them.
        trailers = (("grpc-retry-pushback-ms", str(math.ceil(error.retry_after * 1000))),)
    words = rpc.metadata.words
    code, text = (error.grpc_code, text_of(error)) if words is None else words(error)
    if code == "DEADLINE_EXCEEDED":
        # What a client's own clock says, which ends the call as often: its users look for that.
        text = f"Deadline Exceeded: {text}"
    return code, _shortened(text), trailers


def _shortened(text: str) -> str:
    """An error text may quote anything: a huge name, or lone surrogates, which are not UTF-8."""
    data = text.encode(errors="replace")
    if len(data) <= MAX_TEXT_BYTES:
        return data.decode()
    return data[:MAX_TEXT_BYTES].decode(errors="ignore") + "..."


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
