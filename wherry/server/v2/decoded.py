"""What does a codec make of a request, whatever protocol carried it?"""

from __future__ import annotations

import msgspec

from wherry.core.api import Columns
from wherry.server.calls.offload import held_bytes
from wherry.server.v2.output_codec import OutputCodec
from wherry.server.v2.parameters import Parameters
from wherry.server.v2.shared_memory import Window


class RequestedOutput(msgspec.Struct):
    """One output as the client asked for it."""

    codec: OutputCodec
    #: Over HTTP: as binary data behind the JSON.
    binary: bool = False
    #: The number of "score:index" strings in its place; 0: the tensor itself.
    classes: int = 0
    #: The shared memory that its data goes to; None: into the answer.
    window: Window | None = None


class DecodedRequest(msgspec.Struct):
    """A request as values."""

    columns: Columns
    rows: int
    id: str
    parameters: Parameters
    #: How each output is to be sent; None: all, in the protocol's plain form.
    requested_outputs: list[RequestedOutput] | None = None
    #: The outputs that the client named; None: all.
    output_names: list[str] | None = None
    #: Bytes that the columns hold in memory, if they were counted already.
    held_bytes: int | None = None
    #: Over gRPC: the client wants to be told of a stream's end that brings no data.
    empty_final_response: bool = False
    #: Seconds of the request's timeout, if some of them have passed.
    seconds_left: float | None = None
    #: At a natural route: the client sent a list of rows.
    several: bool = False


def counted(decoded: DecodedRequest) -> DecodedRequest:
    """Set `held_bytes`: counting takes long, so that the thread does it that has decoded."""
    decoded.held_bytes = held_bytes(decoded.columns)
    return decoded


def names_of(requested_outputs: list[RequestedOutput]) -> list[str]:
    return [one.codec.name for one in requested_outputs]
