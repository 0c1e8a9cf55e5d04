"""How does the body of an infer request become columns, and columns an answer's body?

Pure: bytes in, columns out, and back. A codec is made once for each loaded model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wherry.core.api import BadModelOutput, Buffer, Columns, InferResponse, InvalidRequest, Tag
from wherry.server.calls.client_text import encode_json
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.calls.parameters import Parameters, check_window, checked_parameters
from wherry.server.content.media_types import OCTET_STREAM
from wherry.server.v2.http.generate_codec import AnswerBody, GenerateCodec
from wherry.server.v2.http.usual_requests import (
    DATA_STANDS_IN,
    HEAD_BYTES,
    BinaryHeads,
    UsualBody,
    WireInput,
    WireRequest,
    parse,
)
from wherry.server.v2.json_elements import mismatch
from wherry.server.v2.long_arrays import Folded, check_values, fold
from wherry.server.v2.model_tensors import (
    DecodedRequest,
    ModelTensors,
    RequestedOutput,
    in_order,
    names_of,
)
from wherry.server.v2.output_codec import OutputCodec, check_classifiable, is_large

#: Where an input's data may be, besides in `data`.
_SOURCES: Final = ("binary_data_size", "shared_memory_region")


class ModelCodec:
    def __init__(self, tensors: ModelTensors) -> None:
        self.model = tensors.model
        self._tensors = tensors
        self.inputs, self.outputs = tensors.inputs, tensors.outputs
        names = encode_json(tensors.model), encode_json(tensors.version)
        self._names = b'"model_name":%b,"model_version":%b,' % names
        self._views = all(codec.views for codec in self.inputs.values())
        self.generate = GenerateCodec(tensors)
        self._plain_head = b'{%b"outputs":[' % self._names
        self._usual = UsualBody(tensors) if len(self.inputs) == 1 else None
        self._binary_heads = BinaryHeads(tensors)

    # The request

    def decode(self, body: Buffer, json_bytes: int | None = None) -> DecodedRequest:
        """Decode a body, of which the first `json_bytes` are JSON and the others binary data; None:
        it is JSON. InvalidRequest names the member that is wrong."""
        if json_bytes is None:
            if self._usual is not None and len(body) <= LARGE_BYTES:
                usual = self._usual.decode(body)
                if usual is not None:
                    wire, columns, rows = usual
                    if not wire.parameters and not wire.outputs:
                        return DecodedRequest(columns, rows, wire.id)
                    return self._decoded(wire, columns, rows)
        elif 0 < json_bytes <= HEAD_BYTES:
            view = memoryview(body)
            known = self._binary_heads.decode(bytes(view[:json_bytes]), view[json_bytes:])
            if known is not None:
                return known
        return self.decode_in_full(body, json_bytes)

    def decode_in_full(self, body: Buffer, json_bytes: int | None = None) -> DecodedRequest:
        rest: memoryview | None = None
        if json_bytes is not None:
            view = memoryview(body)
            if json_bytes > len(view):
                raise InvalidRequest(
                    f"inference header size should be in range (0, {len(view)}), got: {json_bytes}"
                )
            if json_bytes == 0:
                return self._raw_request(view)
            body, rest = view[:json_bytes], view[json_bytes:]
        folded = None
        if len(body) > LARGE_BYTES:
            folded = fold(body, DATA_STANDS_IN)
            body = folded.envelope
            check_values(body)
        wire = parse(body)
        columns, rows = self._columns(wire.inputs, rest, folded)
        decoded = self._decoded(wire, columns, rows)
        if rest is not None and folded is None:
            self._binary_heads.learn(body, wire, decoded)
        return decoded

    def _decoded(self, wire: WireRequest, columns: Columns, rows: int) -> DecodedRequest:
        parameters = wire.parameters
        requested = None
        if parameters or wire.outputs:
            requested = self._requested(wire)
        if parameters:
            parameters = checked_parameters(parameters)
        named = None if requested is None or not wire.outputs else names_of(requested)
        return DecodedRequest(
            columns, rows, wire.id, parameters, named, requested_outputs=requested
        )

    def _columns(
        self, inputs: list[WireInput], rest: memoryview | None, folded: Folded | None
    ) -> tuple[Columns, int]:
        tensors = self._tensors
        columns: Columns = {}
        rows = 0
        position = 0
        for wire_input in inputs:
            name = wire_input.name
            codec = tensors.input(name, wire_input.datatype, columns)
            rows = tensors.rows(codec, wire_input.shape, rows)
            if "shared_memory_region" in wire_input.parameters:
                if wire_input.data or "binary_data_size" in wire_input.parameters:
                    raise _one_source(wire_input)
                window = tensors.window(wire_input.parameters, f"input '{name}'")
                columns[name] = codec.from_binary(
                    window.read(), rows, wire_input.shape, shared=True
                )
                continue
            size = _binary_bytes(wire_input) if wire_input.parameters else None
            if size is None:
                if not wire_input.data:
                    raise _one_source(wire_input)
                array = None if folded is None else folded.find(wire_input.data)
                columns[name] = (
                    codec.from_json(wire_input.data, rows, wire_input.shape)
                    if array is None
                    else codec.from_long_array(array, rows, wire_input.shape)
                )
                continue
            left = 0 if rest is None else len(rest) - position
            if rest is None or size > left:
                raise InvalidRequest(
                    f"unexpected size for input '{name}', expecting {size - left} additional"
                    f" bytes for model '{self.model}'"
                )
            columns[name] = codec.from_binary(
                rest[position : position + size], rows, wire_input.shape
            )
            position += size
        if rest is not None and position < len(rest):
            raise InvalidRequest(
                f"unexpected additional input data for model '{self.model}'",
                more=f": {len(rest) - position} bytes belong to no input",
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
        requested = [RequestedOutput(codec, binary=True) for codec in self.outputs.values()]
        return DecodedRequest({name: column}, rows, requested_outputs=requested)

    def _requested(self, wire: WireRequest) -> list[RequestedOutput] | None:
        all_binary = wire.parameters.pop("binary_data_output", False)  # not for the model
        if type(all_binary) is not bool:
            raise InvalidRequest("parameter 'binary_data_output' must be a bool")
        if not wire.outputs:
            if not all_binary:
                return None
            return [RequestedOutput(codec, binary=True) for codec in self.outputs.values()]
        by_name: dict[str, RequestedOutput] = {}
        for output in wire.outputs:
            one = self._requested_output(self._tensors.output(output.name), output.parameters)
            by_name.setdefault(output.name, one)  # the first of two holds, as in Triton
        return [*in_order(self.outputs, by_name).values()]

    def _requested_output(self, codec: OutputCodec, parameters: Parameters) -> RequestedOutput:
        if not parameters:
            return RequestedOutput(codec)
        what = f"output '{codec.name}'"
        binary = parameters.get("binary_data", False)
        if type(binary) is not bool:
            raise InvalidRequest(f"{what}: parameter 'binary_data' must be a bool")
        classes = parameters.get("classification", 0)
        if type(classes) is not int or not 0 <= classes < 2**64:
            raise InvalidRequest(
                f"{what}: parameter 'classification' must be a whole number from 1 up, of at most"
                " 64 bits",
                tag=Tag.JSON,
            )
        if classes:
            check_classifiable(codec.spec, self.model)
        check_window(parameters, what)
        elsewhere = "shared_memory_region" in parameters
        window = self._tensors.window(parameters, what) if elsewhere else None
        return RequestedOutput(codec, binary, classes, window)

    # The answer

    def encode_usual(
        self, response: InferResponse, decoded: DecodedRequest, *, packed: bool
    ) -> AnswerBody | None:
        """Encode an answer as `encode` does, if it is a usual one that costs little. None for all
        others. `packed`: it may have to be compressed, too."""
        if response.parameters:
            return None
        head = self._plain_head if not decoded.id else self._full_head(decoded.id, None)
        outputs, requested = response.outputs, decoded.requested_outputs
        text: list[bytes] = []
        if requested is None:
            for name, codec in self.outputs.items():
                if name in outputs:
                    member = codec.small_json(outputs[name])
                    if member is None:
                        return None
                    text.append(member)
            return AnswerBody(b"%b%b]}" % (head, b",".join(text)))
        data: list[Buffer] = []
        for one in requested:
            codec = one.codec
            if one.classes or one.window is not None or codec.name not in outputs:
                return None
            if one.binary:
                found = codec.small_binary(outputs[codec.name], packed=packed)
                if found is None:
                    return None
                member, buffer = found
                data.append(buffer)
            else:
                member = codec.small_json(outputs[codec.name])
                if member is None:
                    return None
            text.append(member)
        encoded = b"%b%b]}" % (head, b",".join(text))
        if not data:
            return AnswerBody(encoded)
        whole = [encoded, *data]
        size = sum(map(len, whole))
        return _with_data(b"".join(whole) if size <= LARGE_BYTES else whole, len(encoded))

    def encode(
        self,
        outputs: Columns,
        requested: list[RequestedOutput] | None = None,
        id: str = "",
        parameters: Mapping[str, Any] | None = None,
        *,
        in_slices: bool = False,
    ) -> AnswerBody:
        """Encode an answer. An output that the model did not give, as some may, is left out.

        `in_slices`: for large outputs, in another thread; the body is a list of parts.
        """
        head = self._plain_head if not id and not parameters else self._full_head(id, parameters)
        if requested is None:
            requested = [RequestedOutput(codec) for codec in self.outputs.values()]
        text, buffers = self._parts(outputs, requested, head)
        if buffers:
            return _with_data([*text, *buffers], sum(map(len, text)))
        return AnswerBody(text if in_slices else b"".join(text))

    def _parts(
        self, outputs: Columns, requested: list[RequestedOutput], head: bytes
    ) -> tuple[list[Buffer], list[Buffer]]:
        text: list[Buffer] = [head]
        buffers: list[Buffer] = []
        for one in requested:
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
            else:
                text += codec.json(column)
        text.append(b"]}")
        return text, buffers

    def is_large(
        self, outputs: Columns, requested: list[RequestedOutput] | None, *, packed: bool
    ) -> bool:
        """Whether encoding this answer would hold up the loop. `packed`: it is compressed, too."""
        if not is_large(outputs):
            return False
        if requested is None or packed:
            return True
        by_name = {one.codec.name: outputs[one.codec.name] for one in requested
                 if one.codec.name in outputs and not (one.binary and one.codec.views)}  # fmt: skip
        return is_large(by_name)

    def reads_in_place(self, json_bytes: int | None) -> bool:
        """Whether decoding a large body costs little: it is a little JSON, and data that becomes
        views."""
        return json_bytes is not None and self._views and json_bytes <= LARGE_BYTES

    def _full_head(self, id: str, parameters: Mapping[str, Any] | None) -> bytes:
        wire_input = b'"id":%b,' % encode_json(id) if id else b""
        encoded = b""
        if parameters:
            try:
                encoded = b'"parameters":%b,' % encode_json(parameters)
            except (TypeError, ValueError) as error:
                raise BadModelOutput(
                    f"model '{self.model}': a response parameter is not JSON: {error}"
                ) from None
        return b'{%b%b%b"outputs":[' % (wire_input, self._names, encoded)


def _with_data(body: bytes | Sequence[Buffer], json_bytes: int) -> AnswerBody:
    """An answer whose first `json_bytes` are JSON, before binary data."""
    headers = (("Inference-Header-Content-Length", str(json_bytes)),)
    return AnswerBody(body, OCTET_STREAM, headers)


def json_bytes_of(headers: Mapping[str, str]) -> int | None:
    """The bytes of JSON before binary data; None if there is only JSON. InvalidRequest."""
    header = headers.get("inference-header-content-length")
    if header is None:
        return None
    header = header.strip(" \t")
    if not (header.isascii() and header.isdigit() and len(header) < 16):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {header}")
    return int(header)


def _binary_bytes(wire_input: WireInput) -> int | None:
    check_window(wire_input.parameters, f"input '{wire_input.name}'")
    if "binary_data_size" not in wire_input.parameters:
        return None
    size = wire_input.parameters["binary_data_size"]
    if wire_input.data:
        raise _one_source(wire_input)
    if type(size) is not int or size < 0:
        raise InvalidRequest(
            f"Unable to parse 'binary_data_size': {mismatch('unsigned')}",
            tag=Tag.JSON,
            more=f" (input '{wire_input.name}')",
        )
    return size


def _one_source(wire_input: WireInput) -> InvalidRequest:
    sources = [f"'{name}'" for name in _SOURCES if name in wire_input.parameters]
    if wire_input.data:
        sources.insert(0, "'data'")
    but = f"But set {' '.join(sources)}" if sources else "But no field is set"
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in"
        f" 'parameters', 'shared_memory_region' in 'parameters'. {but}",
        more=f" (input '{wire_input.name}')",
    )
