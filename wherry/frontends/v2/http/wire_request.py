"""What does the JSON of an infer request hold, before it is known which model's it is?"""

from __future__ import annotations

import contextlib
from typing import Annotated, Final

import msgspec

from wherry.frontends.v2.json_elements import decoded_again
from wherry.frontends.v2.parameters import InvalidParameter
from wherry.values.buffer import Buffer
from wherry.values.errors import InvalidRequest

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


class _Parameters(msgspec.Struct):
    parameters: dict[str, msgspec.Raw] = {}


_decode: Final = msgspec.json.Decoder(WireRequest).decode
_decode_parameters: Final = msgspec.json.Decoder(_Parameters).decode


def parse(body: Buffer) -> WireRequest:
    """The envelope of an infer request; its data stays text."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as problem:
        try:
            return decoded_again(_decode, body, problem)
        except InvalidRequest as error:
            if "(parameters[...]: expected" in str(error):
                _check_parameters(body)
            raise


def _check_parameters(body: Buffer) -> None:
    """InvalidRequest, with its name, for the first parameter that is a list or an object."""
    parameters: dict[str, msgspec.Raw] = {}
    with contextlib.suppress(ValueError, RecursionError):  # something behind them is wrong, too
        parameters = _decode_parameters(body).parameters
    for name, value in parameters.items():
        if bytes(memoryview(value)[:1]) in b"[{":
            raise InvalidParameter(name)
