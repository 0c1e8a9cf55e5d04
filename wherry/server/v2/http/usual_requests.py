"""What does the JSON of an infer request hold, and which need not be read member by member?

`parse` reads any. `UsualBody` and `BinaryHeads` return what ModelCodec.decode_in_full does, or None
for a request that they do not know: that one is read in full.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from wherry.core.api import Buffer, Columns, bytes_of
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.json_elements import decoded_again
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors, RequestedOutput

#: Those that mean something here are checked one by one; of a tensor the others may be anything.
WireParameters = dict[str, Any]
Shape = list[Annotated[int, msgspec.Meta(ge=0)]]

#: The objects and arrays that are open where the data of an input begins.
DATA_STANDS_IN: Final = "{[{"


class WireInput(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: Shape
    #: As it came: only the model's input knows what it must be.
    data: msgspec.Raw = msgspec.Raw()
    parameters: WireParameters = {}


class WireOutput(msgspec.Struct, gc=False):
    name: str
    parameters: WireParameters = {}


class WireRequest(msgspec.Struct, gc=False):
    inputs: list[WireInput]
    id: str = ""
    parameters: WireParameters = {}
    outputs: list[WireOutput] = []


_decode: Final = msgspec.json.Decoder(WireRequest).decode


def parse(body: Buffer) -> WireRequest:
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:
        return decoded_again(_decode, body, error)


SIZE: Final = "binary_data_size"
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
        for a shape that the input cannot have, or that its data does not fit."""
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
            output_names=known.output_names,
            held_bytes=known.held_bytes,
            requested_outputs=known.requested_outputs,
        )

    def learn(self, head: Buffer, wire: WireRequest, decoded: DecodedRequest) -> None:
        if len(head) > HEAD_BYTES or wire.id or decoded.parameters:
            return
        if not all(one.parameters.keys() == {SIZE} for one in wire.inputs):
            return
        requested_outputs = decoded.requested_outputs
        if any(one.window is not None for one in requested_outputs or ()):
            return
        inputs = [
            (self._tensors.inputs[one.name], one.shape, one.parameters[SIZE]) for one in wire.inputs
        ]
        varies = any(isinstance(column, list) for column in decoded.columns.values())
        if len(self._known) == MOST_HEADS:
            self._known.clear()
        self._known[bytes(head)] = _BinaryHead(
            inputs,
            sum(size for _, _, size in inputs),
            decoded.rows,
            requested_outputs,
            decoded.output_names,
            None if varies else bytes_of(decoded.columns),
        )
