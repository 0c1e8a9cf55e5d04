"""How does the body of an infer request become columns, and columns an answer's body?

Pure: bytes in, columns out, and back. A codec is made once for each loaded model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from wherry.frontends.json_text import encode_json
from wherry.frontends.offload import LARGE_BYTES
from wherry.frontends.v2.classification import check_classifiable
from wherry.frontends.v2.decoded import DecodedRequest, WantedOutput, names_of
from wherry.frontends.v2.http.generate_codec import GenerateCodec
from wherry.frontends.v2.json_elements import decoded_again
from wherry.frontends.v2.json_errors import mismatch
from wherry.frontends.v2.long_arrays import Folded, fold
from wherry.frontends.v2.model_tensors import ModelTensors, in_order
from wherry.frontends.v2.output_codec import OutputCodec, is_large
from wherry.frontends.v2.parameters import InvalidParameter, Parameters, checked_parameters
from wherry.values.buffer import Buffer
from wherry.values.errors import BadModelOutput, InvalidRequest
from wherry.values.request import Columns

#: The header that says how many bytes of JSON stand before binary data.
HEADER_LENGTH: Final = "inference-header-content-length"
OCTET_STREAM: Final = "application/octet-stream"

#: Where an input's data may be, besides in `data`.
_SOURCES: Final = ("binary_data_size", "shared_memory_region")
#: Whatever else a client puts there is refused before it is built.
WireParameters = dict[str, str | int | bool | float | None]


#: The objects and arrays that are open where the data of an input begins.
DATA_STANDS_IN: Final = "{[{"


class WireInput(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
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


class AnswerBody(msgspec.Struct):
    """An encoded answer; `json_bytes` is set if binary data follows that much JSON."""

    body: bytes | Sequence[Buffer]
    json_bytes: int | None
    #: What is said of the body, if it is compressed already.
    headers: Sequence[tuple[str, str]] = ()


_decode: Final = msgspec.json.Decoder(WireRequest).decode
_decode_parameters: Final = msgspec.json.Decoder(_Parameters).decode


class ModelCodec:
    """The wire form of one model's requests and answers."""

    def __init__(self, tensors: ModelTensors) -> None:
        self.model = tensors.model
        self._tensors = tensors
        self.inputs, self.outputs = tensors.inputs, tensors.outputs
        names = encode_json(tensors.model), encode_json(tensors.version)
        self._names = b'"model_name":%b,"model_version":%b,' % names
        self._views = all(codec.views for codec in self.inputs.values())
        self.generate = GenerateCodec(tensors)
        self._plain_head = b'{%b"outputs":[' % self._names

    # The request

    def decode(self, body: Buffer, header_length: str | None) -> DecodedRequest:
        """InvalidRequest names the member that is wrong."""
        rest: memoryview | None = None
        if header_length is not None:
            size = _json_bytes(header_length, len(body))
            view = memoryview(body)
            if size == 0:
                return self._raw_request(view)
            body, rest = view[:size], view[size:]
        folded = None
        if len(body) > LARGE_BYTES:
            folded = fold(body, DATA_STANDS_IN)
            body = folded.envelope
        wire = parse(body)
        columns, rows = self._columns(wire.inputs, rest, folded)
        parameters = wire.parameters
        wanted = None
        if parameters or wire.outputs:
            wanted = self._wanted(wire)
        if parameters:
            parameters = checked_parameters(parameters)
        named = None if wanted is None or not wire.outputs else names_of(wanted)
        return DecodedRequest(columns, rows, wire.id, parameters, wanted, named)

    def _columns(
        self, inputs: list[WireInput], rest: memoryview | None, folded: Folded | None
    ) -> tuple[Columns, int]:
        tensors = self._tensors
        columns: Columns = {}
        rows = 0
        position = 0
        for given in inputs:
            name = given.name
            codec = tensors.input(name, given.datatype, columns)
            rows = tensors.rows(codec, given.shape, rows)
            if "shared_memory_region" in given.parameters:
                if given.data or "binary_data_size" in given.parameters:
                    raise _one_source(given)
                window = tensors.window(given.parameters, f"input '{name}'")
                columns[name] = codec.from_binary(window.read(), rows, given.shape, shared=True)
                continue
            size = _binary_bytes(given) if given.parameters else None
            if size is None:
                if not given.data:
                    raise _one_source(given)
                array = None if folded is None else folded.find(given.data)
                columns[name] = (
                    codec.from_json(given.data, rows, given.shape)
                    if array is None
                    else codec.from_long_array(array, rows, given.shape)
                )
                continue
            left = 0 if rest is None else len(rest) - position
            if rest is None or size > left:
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {size - left} additional"
                    f" bytes for model '{self.model}'"
                )
            columns[name] = codec.from_binary(rest[position : position + size], rows, given.shape)
            position += size
        if rest is not None and position < len(rest):
            raise InvalidRequest(
                f"unexpected additional input data for model '{self.model}':"
                f" {len(rest) - position} bytes belong to no input"
            )
        return tensors.complete(columns), rows or 1  # all inputs may be optional

    def _raw_request(self, data: memoryview) -> DecodedRequest:
        if len(self.inputs) != 1:
            raise InvalidRequest(
                "Raw request must only have 1 input (found 1) to be deduced but got"
                f" {len(self.inputs)} inputs in '{self.model}' model configuration"
            )
        ((name, codec),) = self.inputs.items()
        column, rows = codec.from_raw(data)
        wanted = [WantedOutput(codec, binary=True) for codec in self.outputs.values()]
        return DecodedRequest({name: column}, rows, "", {}, wanted)

    def _wanted(self, wire: WireRequest) -> list[WantedOutput] | None:
        all_binary = wire.parameters.pop("binary_data_output", False)  # the model is not told
        if type(all_binary) is not bool:
            raise InvalidRequest("parameter 'binary_data_output' must be a bool")
        if not wire.outputs:
            if not all_binary:
                return None
            return [WantedOutput(codec, binary=True) for codec in self.outputs.values()]
        asked = {
            output.name: self._wanted_output(self._tensors.output(output.name), output.parameters)
            for output in wire.outputs
        }
        return [*in_order(self.outputs, asked).values()]

    def _wanted_output(self, codec: OutputCodec, parameters: Parameters) -> WantedOutput:
        if not parameters:
            return WantedOutput(codec)
        what = f"output '{codec.name}'"
        binary = parameters.get("binary_data", False)
        if type(binary) is not bool:
            raise InvalidRequest(f"{what}: parameter 'binary_data' must be a bool")
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise InvalidRequest(
                f"{what}: parameter 'classification' must be a whole number from 1 up"
            )
        if classes:
            check_classifiable(codec.spec, self.model)
        elsewhere = "shared_memory_region" in parameters
        window = self._tensors.window(parameters, what) if elsewhere else None
        return WantedOutput(codec, binary, classes, window)

    # The answer

    def encode(
        self,
        outputs: Columns,
        wanted: list[WantedOutput] | None = None,
        id: str = "",
        parameters: Mapping[str, Any] | None = None,
        *,
        in_slices: bool = False,
    ) -> AnswerBody:
        """Encode an answer. An output that the model did not give, as some may, is left out.

        `in_slices`: for large outputs, in another thread; the body is a list of parts.
        """
        head = self._plain_head if not id and not parameters else self._full_head(id, parameters)
        if wanted is None:
            if not in_slices:
                given = [
                    c.json(outputs[name]) for name, c in self.outputs.items() if name in outputs
                ]
                return AnswerBody(b"%b%b]}" % (head, b",".join(given)), None)
            wanted = [WantedOutput(codec) for codec in self.outputs.values()]
        text, buffers = self._parts(outputs, wanted, head, in_slices=in_slices)
        if in_slices:
            return AnswerBody(text + buffers, sum(map(len, text)) if buffers else None)
        joined = b"".join(text)
        return AnswerBody([joined, *buffers], len(joined)) if buffers else AnswerBody(joined, None)

    def _parts(
        self, outputs: Columns, wanted: list[WantedOutput], head: bytes, *, in_slices: bool
    ) -> tuple[list[Buffer], list[Buffer]]:
        """The JSON of an answer in parts, and the binary data behind it."""
        text: list[Buffer] = [head]
        buffers: list[Buffer] = []
        for one in wanted:
            codec = one.codec
            if codec.name not in outputs:
                continue
            column = outputs[codec.name]
            if len(text) > 1:
                text.append(b",")
            if one.classes:
                codec, column = self._tensors.classified(codec, column, one.classes)
            if one.window is not None:
                member, data = codec.elsewhere(column)
                text.append(member)
                one.window.write(data)
            elif one.binary:
                member, parts = codec.binary(column)
                text.append(member)
                buffers += [part for part in parts if len(part)]
            elif in_slices:
                text += codec.json_parts(column)
            else:
                text.append(codec.json(column))
        text.append(b"]}")
        return text, buffers

    def is_large(
        self, outputs: Columns, wanted: list[WantedOutput] | None, *, packed: bool
    ) -> bool:
        """Whether encoding this answer would hold up the loop. `packed`: it is compressed, too."""
        if not is_large(outputs):
            return False
        if wanted is None or packed:
            return True
        asked = {one.codec.name: outputs[one.codec.name] for one in wanted
                 if one.codec.name in outputs and not (one.binary and one.codec.views)}  # fmt: skip
        return is_large(asked)

    def reads_in_place(self, body: Buffer, header_length: str | None) -> bool:
        """Whether decoding costs little: a body is a little JSON, and data that becomes views."""
        if header_length is None or not self._views:
            return False
        return _json_bytes(header_length, len(body)) <= LARGE_BYTES

    def _full_head(self, id: str, parameters: Mapping[str, Any] | None) -> bytes:
        given = b'"id":%b,' % encode_json(id) if id else b""
        said = b""
        if parameters:
            try:
                said = b'"parameters":%b,' % encode_json(parameters)
            except (TypeError, ValueError) as error:
                raise BadModelOutput(
                    f"model '{self.model}': a response parameter is no JSON: {error}"
                ) from None
        return b'{%b%b%b"outputs":[' % (given, self._names, said)


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


def _json_bytes(header: str, total: int) -> int:
    if not (header.isascii() and header.isdigit() and len(header) < 16):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {header}")
    size = int(header)
    if size > total:
        raise InvalidRequest(f"inference header size should be in range (0, {total}), got: {size}")
    return size


def _binary_bytes(given: WireInput) -> int | None:
    """The size of an input's binary data; None if it has JSON data."""
    size = given.parameters.get("binary_data_size")
    if size is None:
        return None
    if given.data:
        raise _one_source(given)
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"Unable to parse 'binary_data_size': {mismatch('unsigned')} (input '{given.name}')"
        )
    return size


def _one_source(given: WireInput) -> InvalidRequest:
    told = [f"'{name}'" for name in _SOURCES if name in given.parameters]
    if given.data:
        told.insert(0, "'data'")
    but = f"But set {' '.join(told)}" if told else "But no field is set"
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in"
        f" 'parameters', 'shared_memory_region' in 'parameters'. {but} (input '{given.name}')"
    )
