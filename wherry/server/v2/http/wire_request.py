"""What does the JSON of an infer request hold, before it is known which model's it is?"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final

import msgspec

from wherry.core.api import Buffer, InvalidRequest
from wherry.server.v2.json_elements import decoded_again
from wherry.server.v2.parameters import InvalidParameter

#: Whatever else a client puts there is refused before it is built.
WireParameters = dict[str, str | int | bool | float | None]
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


class _TensorParameters(msgspec.Struct, frozen=True):
    """The parameters of an input or an output that say something here: others may be anything."""

    binary_data: msgspec.Raw = msgspec.Raw()
    binary_data_size: msgspec.Raw = msgspec.Raw()
    classification: msgspec.Raw = msgspec.Raw()
    shared_memory_region: msgspec.Raw = msgspec.Raw()
    shared_memory_offset: msgspec.Raw = msgspec.Raw()
    shared_memory_byte_size: msgspec.Raw = msgspec.Raw()


class _LooseInput(WireInput, gc=False):
    parameters: _TensorParameters = _TensorParameters()  # type: ignore[assignment]


class _LooseOutput(WireOutput, gc=False):
    parameters: _TensorParameters = _TensorParameters()  # type: ignore[assignment]


class _LooseRequest(WireRequest, gc=False):
    inputs: list[_LooseInput]  # type: ignore[assignment]
    outputs: list[_LooseOutput] = []  # type: ignore[assignment]


class _Parameters(msgspec.Struct):
    parameters: dict[str, msgspec.Raw] = {}


_decode: Final = msgspec.json.Decoder(WireRequest).decode
_decode_loose: Final = msgspec.json.Decoder(_LooseRequest).decode
_decode_parameter: Final = msgspec.json.Decoder(str | int | bool | float | None).decode
_decode_parameters: Final = msgspec.json.Decoder(_Parameters).decode


def parse(body: Buffer) -> WireRequest:
    """The envelope of an infer request; its data stays text."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as problem:
        with contextlib.suppress(ValueError, RecursionError):
            return _decode_again(body)
        try:
            return decoded_again(_decode, body, problem)
        except InvalidRequest as error:
            if "(parameters[...]: expected" in str(error):
                _check_parameters(body)
            raise


def _decode_again(body: Buffer) -> WireRequest:
    """Decode, and leave out the parameters of tensors that mean nothing here: as in Triton, these
    may be lists and objects. Other decoding takes each for a mistake, and is faster."""
    wire = _decode_loose(body)
    tensors: list[WireInput | WireOutput] = [*wire.inputs, *wire.outputs]
    for tensor in tensors:
        loose: Any = tensor.parameters
        members = msgspec.structs.asdict(loose)
        tensor.parameters = {
            name: _decode_parameter(value) for name, value in members.items() if value
        }
    return wire


def _check_parameters(body: Buffer) -> None:
    """InvalidRequest, with its name, for the first parameter that is a list or an object."""
    parameters: dict[str, msgspec.Raw] = {}
    with contextlib.suppress(ValueError, RecursionError):  # something behind them is wrong, too
        parameters = _decode_parameters(body).parameters
    for name, value in parameters.items():
        if bytes(memoryview(value)[:1]) in b"[{":
            raise InvalidParameter(name)
