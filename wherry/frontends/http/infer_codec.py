"""How does the body of an infer or generate request become columns, and columns an answer's body?

Pure: bytes in, columns out, and back. A codec is made once for each loaded model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from wherry.config import ModelConfig
from wherry.errors import BadModelOutput, InvalidRequest, Unsupported
from wherry.frontends.http.exchange import Buffer
from wherry.frontends.http.tensors import InputCodec, OutputCodec, encode_json, explain
from wherry.request import Columns
from wherry.signature import Signature

T = TypeVar("T")
Parameters = dict[str, Any]

HEADER_LENGTH: Final = "inference-header-content-length"
OCTET_STREAM: Final = "application/octet-stream"

#: Strings (left as they are) and the literals that JSON does not know.
_STRING_OR_NON_FINITE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|NaN|-?Infinity', re.DOTALL)


class WireInput(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[int]
    #: As it came: only the model's input knows what it must be.
    data: msgspec.Raw = msgspec.Raw()
    parameters: Parameters = {}


class WireOutput(msgspec.Struct, gc=False):
    name: str
    parameters: Parameters = {}


class WireRequest(msgspec.Struct, gc=False):
    inputs: list[WireInput]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[WireOutput] = []


class Wanted(msgspec.Struct):
    """One output as the client asked for it."""

    codec: OutputCodec
    binary: bool
    #: So many "score:index" strings in its place; 0: the tensor itself.
    classes: int


class InferBody(msgspec.Struct):
    """A decoded request."""

    columns: Columns
    rows: int
    id: str
    parameters: Parameters
    #: None: every output, as JSON.
    wanted: list[Wanted] | None


class AnswerBody(msgspec.Struct):
    """An encoded answer; `json_bytes` is set if binary data follows that much JSON."""

    body: bytes | list[Buffer]
    json_bytes: int | None


_decode: Final = msgspec.json.Decoder(WireRequest).decode
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode


class ModelCodec:
    """The wire form of one model's requests and answers."""

    def __init__(self, config: ModelConfig, signature: Signature) -> None:
        self.model = config.name
        self.streams = signature.streams
        batched = self._batched = config.max_batch_size > 0
        self.inputs = {
            spec.name: InputCodec(spec, config.name, batched=batched) for spec in signature.inputs
        }
        self.outputs = {
            spec.name: OutputCodec(spec, config.name, batched=batched) for spec in signature.outputs
        }
        self._required = [spec.name for spec in signature.inputs if not spec.optional]
        self._version = config.version
        name, version = encode_json(config.name), encode_json(config.version)
        self._head = b'"model_name":%b,"model_version":%b,"outputs":[' % (name, version)
        self._plain_head = b"{" + self._head

    # The request

    def decode(self, body: Buffer, header_length: str | None) -> InferBody:
        """InvalidRequest names the member that is wrong."""
        if header_length is None:
            wire, rest = parse(body), None
        else:
            size = _json_bytes(header_length, len(body))
            view = memoryview(body)
            if size == 0:
                return self._raw_request(view)
            wire, rest = parse(view[:size]), view[size:]
        columns, rows = self._columns(wire.inputs, rest)
        parameters = wire.parameters
        wanted = None
        if parameters or wire.outputs:
            wanted = self._wanted(wire)
            if parameters:
                parameters = checked_parameters(parameters)
        return InferBody(columns, rows, wire.id, parameters, wanted)

    def _columns(self, inputs: list[WireInput], rest: memoryview | None) -> tuple[Columns, int]:
        columns: Columns = {}
        rows = 0
        position = 0
        for given in inputs:
            name = given.name
            codec = self.inputs.get(name)
            if codec is None:
                raise InvalidRequest(
                    f"unexpected inference input '{name}' for model '{self.model}'"
                )
            if given.datatype != codec.datatype:
                raise InvalidRequest(
                    f"inference input '{name}' data-type is '{given.datatype}', but model"
                    f" '{self.model}' expects '{codec.datatype}'"
                )
            if name in columns:
                raise InvalidRequest(f"input '{name}' is given twice for model '{self.model}'")
            count = codec.rows_of(given.shape)
            if rows and count != rows:
                raise InvalidRequest(
                    f"input '{name}' batch size does not match other inputs for model"
                    f" '{self.model}': {count} rows, the others have {rows}"
                )
            rows = count
            if not given.parameters:
                if not given.data:
                    raise _no_data(name)
                columns[name] = codec.from_json(given.data, count, given.shape)
                continue
            size = _binary_bytes(given)
            if size is None:
                columns[name] = codec.from_json(given.data, count, given.shape)
                continue
            left = 0 if rest is None else len(rest) - position
            if rest is None or size > left:
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {size - left} additional"
                    f" bytes for model '{self.model}'"
                )
            columns[name] = codec.from_binary(rest[position : position + size], count, given.shape)
            position += size
        if rest is not None and position < len(rest):
            raise InvalidRequest(
                f"unexpected additional input data for model '{self.model}':"
                f" {len(rest) - position} bytes belong to no input"
            )
        if len(columns) != len(self.inputs):
            self._check_complete(columns)
        if len(columns) > 1:
            # In the model's order, whatever the client's: requests alike may share a batch.
            columns = {name: columns[name] for name in self.inputs if name in columns}
        return columns, rows

    def _check_complete(self, columns: Columns) -> None:
        missing = [name for name in self._required if name not in columns]
        if missing or not columns:
            raise InvalidRequest(
                f"expected {len(self._required)} inputs but got {len(columns)} inputs for model"
                f" '{self.model}'. Got input(s) {list(columns)}, but missing required input(s)"
                f" {missing or list(self.inputs)}. Please provide all required input(s)."
            )

    def _raw_request(self, data: memoryview) -> InferBody:
        if len(self.inputs) != 1:
            raise InvalidRequest(
                f"a raw request (Inference-Header-Content-Length: 0) needs a model with one input;"
                f" '{self.model}' has {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        ((name, codec),) = self.inputs.items()
        column, rows = codec.from_raw(data)
        wanted = [Wanted(codec, binary=True, classes=0) for codec in self.outputs.values()]
        return InferBody({name: column}, rows, "", {}, wanted)

    def _wanted(self, wire: WireRequest) -> list[Wanted] | None:
        all_binary = wire.parameters.get("binary_data_output", False)
        if type(all_binary) is not bool:
            raise InvalidRequest("parameter 'binary_data_output' must be a bool")
        if not wire.outputs:
            if not all_binary:
                return None
            return [Wanted(codec, binary=True, classes=0) for codec in self.outputs.values()]
        asked: dict[str, Wanted] = {}
        for output in wire.outputs:
            codec = self.outputs.get(output.name)
            if codec is None:
                raise InvalidRequest(
                    f"unexpected inference output '{output.name}' for model '{self.model}'"
                )
            asked[output.name] = _wanted_output(codec, output)
        return [asked[name] for name in self.outputs if name in asked]  # in the model's order

    def decode_generate(self, body: Buffer) -> InferBody:
        """A JSON object whose members are inputs by name; the others are parameters."""
        members = parse_object(body)
        if isinstance(members.get("parameters"), dict) and "parameters" not in self.inputs:
            members = {**members.pop("parameters"), **members}
        request_id = "" if "id" in self.inputs else members.pop("id", "")
        if type(request_id) is not str:
            raise InvalidRequest("id: expected str")
        columns: Columns = {}
        rows = 0
        for name, codec in self.inputs.items():
            value = members.pop(name, None)
            if value is None:
                continue
            elements = codec.elements_of(value)
            shape = codec.shape_of(len(elements))
            count = codec.rows_of(shape)
            if rows and count != rows:
                raise InvalidRequest(
                    f"input '{name}' of model '{self.model}' has {count} rows, others have {rows}"
                )
            rows = count
            columns[name] = codec.from_values(elements, count, shape)
        if len(columns) != len(self.inputs):
            self._check_complete(columns)
        return InferBody(columns, rows, request_id, checked_parameters(members), None)

    # The answer

    def encode_generate(self, outputs: Columns, id: str = "") -> bytes:
        answer: dict[str, Any] = {"id": id} if id else {}
        answer["model_name"], answer["model_version"] = self.model, self._version
        for name, codec in self.outputs.items():
            answer[name] = codec.values(outputs[name])
        try:
            return encode_json(answer)
        except (TypeError, ValueError) as error:
            raise BadModelOutput(f"model '{self.model}': an output is no JSON: {error}") from None

    def encode(
        self, outputs: Columns, wanted: list[Wanted] | None = None, id: str = ""
    ) -> AnswerBody:
        head = self._plain_head if not id else b'{"id":%b,%b' % (encode_json(id), self._head)
        if wanted is None:
            members = [codec.json(outputs[name]) for name, codec in self.outputs.items()]
            return AnswerBody(b"%b%b]}" % (head, b",".join(members)), None)
        members = []
        buffers: list[Buffer] = []
        for one in wanted:
            codec = one.codec
            column = outputs[codec.name]
            if one.classes:
                spec, column = codec.classes(column, one.classes)
                codec = OutputCodec(spec, self.model, batched=self._batched)
            if one.binary:
                member, data = codec.binary(column)
                members.append(member)
                if len(data):
                    buffers.append(data)
            else:
                members.append(codec.json(column))
        text = b"%b%b]}" % (head, b",".join(members))
        if not buffers:
            return AnswerBody(text, None)
        return AnswerBody([text, *buffers], len(text))


def parse(body: Buffer) -> WireRequest:
    """The envelope of an infer request; its data stays text."""
    return _parsed(_decode, body)


def parse_object(body: Buffer) -> dict[str, Any]:
    return _parsed(_decode_object, body)


def _parsed(decode: Callable[[Buffer], T], body: Buffer) -> T:
    try:
        try:
            return decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            loose = _with_quoted_literals(body)
            if loose is None:
                raise
            return decode(loose)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"failed to parse the request JSON: {explain(error)}") from None


def checked_parameters(parameters: Parameters) -> Parameters:
    """A request's parameters for the core; InvalidRequest for keys and types that may not be."""
    for name, value in parameters.items():
        if name.startswith("triton_"):
            raise InvalidRequest(
                f"parameter '{name}' is reserved: parameters must not start with 'triton_'"
            )
        if value and name in ("sequence_id", "sequence_start", "sequence_end"):
            raise Unsupported(f"parameter '{name}': sequences of requests are not supported")
        if type(value) not in (str, int, bool, float):
            raise InvalidRequest(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool',"
                " 'string' or 'double'."
            )
    priority = parameters.get("priority", 0)
    if type(priority) is not int or priority < 0:
        raise InvalidRequest("parameter 'priority' must be a whole number from 0 up")
    return parameters


def _with_quoted_literals(body: Buffer) -> bytes | None:
    """The body with NaN, Infinity and -Infinity as strings; None if there are none."""
    text = bytes(body)
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    return _STRING_OR_NON_FINITE.sub(
        lambda match: match[0] if match[0][:1] == b'"' else b'"%b"' % match[0], text
    )


def _json_bytes(header: str, total: int) -> int:
    if not (header.isascii() and header.isdigit() and len(header) < 16):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {header}")
    size = int(header)
    if size > total:
        raise InvalidRequest(f"inference header size should be in range (0, {total}), got: {size}")
    return size


def _binary_bytes(given: WireInput) -> int | None:
    """The size of an input's binary data; None if it has JSON data."""
    parameters = given.parameters
    if "shared_memory_region" in parameters:
        raise Unsupported(f"input '{given.name}': shared memory is not supported by this server")
    size = parameters.get("binary_data_size")
    if size is None:
        if not given.data:
            raise _no_data(given.name)
        return None
    if given.data:
        raise InvalidRequest(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in"
            f" 'parameters', 'shared_memory_region' in 'parameters'. Input '{given.name}' sets two"
        )
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"input '{given.name}': parameter 'binary_data_size' must be a whole number of bytes"
        )
    return size


def _no_data(name: str) -> InvalidRequest:
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in"
        f" 'parameters', 'shared_memory_region' in 'parameters'. Input '{name}' sets none"
    )


def _wanted_output(codec: OutputCodec, output: WireOutput) -> Wanted:
    parameters = output.parameters
    if not parameters:
        return Wanted(codec, binary=False, classes=0)
    if "shared_memory_region" in parameters:
        raise Unsupported(f"output '{codec.name}': shared memory is not supported by this server")
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise InvalidRequest(f"output '{codec.name}': parameter 'binary_data' must be a bool")
    classes = parameters.get("classification", 0)
    if type(classes) is not int or classes < 0:
        raise InvalidRequest(
            f"output '{codec.name}': parameter 'classification' must be a whole number from 1 up"
        )
    if classes:
        codec.check_classifiable()
    return Wanted(codec, binary, classes)
