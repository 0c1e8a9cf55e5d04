"""Which infer requests are like most others, and need not be read member by member?

Both classes return what ModelCodec.decode_in_full does, or None for a request that they do not
know: that one is read in full.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from wherry.core.api import Buffer, Columns, bytes_of
from wherry.server.v2.decoded import DecodedRequest, RequestedOutput
from wherry.server.v2.http.wire_request import (
    Shape,
    WireInput,
    WireOutput,
    WireParameters,
    WireRequest,
)
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import ModelTensors

#: What a model remembers of the JSON before binary data.
MOST_HEADS: Final = 64
HEAD_BYTES: Final = 2048


class UsualBody:
    """Reads a JSON body for a model with one input, whose data is a flat list.

    One decoder checks name, datatype and elements, so that the data is not read a second time.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        (self._codec,) = tensors.inputs.values()
        self._most_rows = tensors.most_rows
        #: The last shape and its rows: most requests have the same. One tuple for all threads.
        self._last: tuple[list[int], int] = ([], 0)
        codec = self._codec
        of_input: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("name", Literal[codec.name]),
            ("datatype", Literal[codec.datatype]),
            ("shape", Shape),
            ("data", codec.elements.usual_type),
            ("parameters", WireParameters, {}),
        ]
        input_type: Any = msgspec.defstruct("UsualInput", of_input, gc=False)
        of_body: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("inputs", tuple[input_type]),
            ("id", str, ""),
            ("parameters", WireParameters, {}),
            ("outputs", list[WireOutput], []),
        ]
        body_type: Any = msgspec.defstruct("UsualRequest", of_body, gc=False)
        self._decode = msgspec.json.Decoder(body_type).decode
        self._any_rows = codec.elements.are_rows

    def decode(self, body: Buffer) -> tuple[Any, Columns, int] | None:
        """The whole as a WireRequest with other inputs, the columns, and their rows. InvalidRequest
        for a shape that the input cannot have, or that its data has not."""
        if self._any_rows:
            check_values(body)
        try:
            wire = self._decode(body)
        except (ValueError, RecursionError):
            return None
        (wire_input,) = wire.inputs
        if wire_input.parameters:
            return None
        codec, shape = self._codec, wire_input.shape
        last_shape, rows = self._last
        if not rows or shape != last_shape:
            rows = codec.rows_of(shape)
            if rows > self._most_rows:
                return None
            self._last = shape, rows
        return wire, {codec.name: codec.from_list(wire_input.data, rows, shape)}, rows


class _BinaryHead(msgspec.Struct, frozen=True):
    """What is known of a request whose JSON has come before."""

    inputs: list[tuple[InputCodec, list[int], int]]
    data_bytes: int
    rows: int
    requested_outputs: list[RequestedOutput] | None
    output_names: list[str] | None
    #: Of the columns in memory; None: that differs.
    held_bytes: int | None


class BinaryHeads:
    """The JSON that stood before binary data, as its bytes: a client that sends the same shapes
    again sends the same bytes again. Those with an id are not remembered: they do not come twice.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._known: dict[bytes, _BinaryHead] = {}

    def decode(self, head: bytes, data: memoryview) -> DecodedRequest | None:
        """InvalidRequest for data that its datatype does not allow."""
        known = self._known.get(head)
        if known is None or known.data_bytes != len(data):
            return None
        columns: Columns = {}
        start = 0
        for codec, shape, size in known.inputs:
            part = data[start : start + size]
            columns[codec.name] = codec.from_binary(part, known.rows, shape)
            start += size
        if len(known.inputs) > 1:
            columns = self._tensors.complete(columns)
        return DecodedRequest(
            columns,
            known.rows,
            "",
            {},
            known.requested_outputs,
            known.output_names,
            known.held_bytes,
        )

    def learn(self, head: Buffer, wire: WireRequest, decoded: DecodedRequest) -> None:
        """Remember the head of a request that was read in full, if it may come again."""
        if len(head) > HEAD_BYTES or wire.id or decoded.parameters:
            return
        if not all(
            wire_input.parameters.keys() == {"binary_data_size"} for wire_input in wire.inputs
        ):
            return
        requested_outputs = decoded.requested_outputs
        if requested_outputs is not None and any(
            one.window is not None for one in requested_outputs
        ):
            return
        inputs = [
            (self._tensors.inputs[wire_input.name], wire_input.shape, _size(wire_input))
            for wire_input in wire.inputs
        ]
        if len(self._known) == MOST_HEADS:
            self._known.clear()
        self._known[bytes(head)] = _BinaryHead(
            inputs,
            sum(size for _, _, size in inputs),
            decoded.rows,
            requested_outputs,
            decoded.output_names,
            _array_bytes(decoded.columns),
        )


def _array_bytes(columns: Columns) -> int | None:
    if any(isinstance(column, list) for column in columns.values()):
        return None
    return bytes_of(columns)


def _size(wire_input: WireInput) -> int:
    size = wire_input.parameters["binary_data_size"]
    assert isinstance(size, int)
    return size
