"""How does a ModelInferRequest become columns, and columns a ModelInferResponse?

Pure: decoded messages in, columns out, and columns in, bytes out. A codec is made once for each
loaded model. What a tensor's bytes mean is the same as over HTTP, hence `input_codec.py` and
`output_codec.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from wherry.core.api import (
    DATATYPES,
    Array,
    BadModelOutput,
    Buffer,
    Column,
    Columns,
    Form,
    InferResponse,
    InvalidRequest,
)
from wherry.server.calls.offload import join_in_slices
from wherry.server.calls.parameters import Parameters, checked_parameters, has_window
from wherry.server.grpc.wire import Message, Values
from wherry.server.grpc.wire_numbers import varint
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.model_tensors import (
    DecodedRequest,
    ModelTensors,
    RequestedOutput,
    in_order,
    names_of,
)
from wherry.server.v2.output_codec import OutputCodec, check_classifiable, is_large

#: Descriptions of outputs that are remembered at most, and the dimensions of one.
MOST_OUTPUTS: Final = 256
MOST_DIMENSIONS: Final = 16


class AnswerFields:
    """Encodes the fields of one model's answers, but for the data itself."""

    def __init__(self, kind: Message, model: str, version: str) -> None:
        self._kind = kind
        #: The first fields: the model's name and version.
        self.begin = kind.encode({"model_name": model, "model_version": version})
        self._tag_of_id = varint(kind.tag("id"))
        tag_of_raw = self._tag_of_raw = varint(kind.tag("raw_output_contents"))
        self._short_raw = [tag_of_raw + varint(size) for size in range(0x80)]
        self._outputs: dict[tuple[object, ...], bytes] = {}

    def id(self, id: str) -> bytes:
        data = id.encode(errors="replace")
        return self._tag_of_id + varint(len(data)) + data

    def parameters(self, parameters: Mapping[str, Values]) -> bytes:
        return self._kind.encode({"parameters": parameters})

    def output(self, name: str, datatype: str, shape: list[int]) -> bytes:
        key = (name, datatype, *shape)
        known = self._outputs.get(key)
        if known is None:
            described = {"name": name, "datatype": datatype, "shape": shape}
            known = self._kind.encode({"outputs": [described]})
            if len(shape) <= MOST_DIMENSIONS:
                if len(self._outputs) >= MOST_OUTPUTS:
                    self._outputs.clear()
                self._outputs[key] = known
        return known

    def raw_head(self, size: int) -> bytes:
        """What stands before the data of an output, of `size` bytes."""
        return self._short_raw[size] if size < 0x80 else self._tag_of_raw + varint(size)


#: Dimensions of a shape that are looked at: more than any input has, so that it has another shape.
MOST_DIMS: Final = 1024
#: Which field of `contents` carries a datatype.
CONTENTS_FIELD: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

#: And, of a field, its widest.
KIND_OF_FIELD: Final = {field: datatype for datatype, field in CONTENTS_FIELD.items()}

#: What the fields of smaller integers carry.
CONTENTS_DTYPE: Final = {"int_contents": np.int32, "uint_contents": np.uint32}

#: An array up to this many bytes is made contiguous within 0.1 ms or so.
COPIED_BYTES: Final = 2**20

EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
FINAL_RESPONSE: Final = "triton_final_response"


class InferCodec:
    """The wire form of one model's requests and answers.

    With `views`, arrays may be views of the request's message, which cannot be written to: an
    instance copies what its model may write. `answer` is the ModelInferResponse.
    """

    def __init__(self, tensors: ModelTensors, answer: Message, *, views: bool = True) -> None:
        self.model = tensors.model
        self.tensors = tensors
        #: Inputs whose columns may be views. Rows that are arrays each go to the model as they are.
        self.viewed = frozenset(
            name
            for name, codec in tensors.inputs.items()
            if views and codec.spec.form is not Form.ARRAYS
        )
        self._fields = AnswerFields(answer, tensors.model, tensors.version)
        self._all_outputs = [RequestedOutput(codec) for codec in tensors.outputs.values()]

    # The request

    def decode(self, wire: Values) -> DecodedRequest:
        columns, rows = self._columns(wire.get("inputs", []), wire.get("raw_input_contents", []))
        parameters: Parameters = {}
        empty_final_response = False
        if "parameters" in wire:
            parameters = values_of(wire["parameters"])
            empty_final_response = _empty_final_response(parameters)
            _unsign(parameters)
            checked_parameters(parameters)
        requested = self._requested(wire["outputs"]) if "outputs" in wire else None
        return DecodedRequest(
            columns,
            rows,
            wire.get("id", ""),
            parameters,
            None if requested is None else names_of(requested),
            requested_outputs=requested,
            empty_final_response=empty_final_response,
        )

    def reads_in_place(self, wire: Values) -> bool:
        """Whether all large parts of a request are raw contents that become views."""
        inputs = self.tensors.inputs
        names = [wire_input.get("name", "") for wire_input in wire.get("inputs", ())]
        return all(inputs[name].views for name in names if name in inputs)

    def _columns(self, inputs: list[Values], raw_contents: list[Buffer]) -> tuple[Columns, int]:
        tensors = self.tensors
        columns: Columns = {}
        rows = 0
        raw = iter(raw_contents) if raw_contents else None
        for wire_input in inputs:
            name = wire_input.get("name", "")
            codec = tensors.input(name, wire_input.get("datatype", ""), columns)
            shape = list(wire_input.get("shape", ())[:MOST_DIMS])
            rows = tensors.rows(codec, shape, rows)
            parameters = wire_input.get("parameters")
            if parameters and has_window(parameters, name):
                if wire_input.get("contents"):
                    raise InvalidRequest(
                        f"input '{name}' for model '{self.model}' has both contents and a shared"
                        " memory region; send one of them"
                    )
                window = tensors.window(values_of(parameters), f"input '{name}'")
                columns[name] = codec.from_binary(window.read(), rows, shape, shared=True)
                continue
            if raw is None:
                values = self._contents(codec, wire_input, math.prod(shape))
                if codec.datatype == "BYTES":
                    columns[name] = codec.from_elements(values, rows, shape)
                    continue
                data = self._numbers(codec, values)
            else:
                if wire_input.get("contents"):
                    raise InvalidRequest(
                        "contents field must not be specified when using raw_input_contents for"
                        f" '{name}' for model '{self.model}'"
                    )
                if (content := next(raw, None)) is None:
                    raise InvalidRequest(
                        f"unable to find data for input tensor '{name}' for model '{self.model}' in"
                        f" request. raw_input_contents has only {len(raw_contents)} entries"
                    )
                data = memoryview(content)
            columns[name] = codec.from_binary(data, rows, shape, shared=name in self.viewed)
        columns = tensors.complete(columns)
        if raw is not None and (surplus := len([*raw])):
            raise InvalidRequest(
                f"unexpected additional input data for model '{self.model}'",
                more=f": {surplus} of {len(raw_contents)} raw_input_contents belong to no input",
            )
        return columns, rows or 1  # all inputs may be optional

    def _contents(self, codec: InputCodec, wire_input: Values, count: int) -> Any:
        contents: Values = wire_input.get("contents", {})
        expected = CONTENTS_FIELD.get(codec.datatype)
        if expected is None:
            raise InvalidRequest(
                f"input '{codec.name}' of model '{self.model}': {codec.datatype} has no field in"
                " contents; use raw_input_contents"
            )
        for field, values in contents.items():
            if field != expected and len(values):
                raise InvalidRequest(
                    f"unexpected explicit tensor data for input tensor '{codec.name}' for model"
                    f" '{self.model}' of type '{KIND_OF_FIELD[field]}', expected datatype"
                    f" '{codec.datatype}'",
                    more=f": it belongs in contents.{expected}, not {field}",
                )
        values = contents.get(expected, ())
        if count and not len(values):
            raise InvalidRequest(
                f"unable to find data for input tensor '{codec.name}' for model '{self.model}' in"
                " request."
            )
        if len(values) != count:
            if size := codec.spec.datatype.itemsize:
                raise codec.errors.size_mismatch(count * size, len(values) * size)
            raise codec.errors.wrong_string_count(count, len(values))
        return values

    def _numbers(self, codec: InputCodec, values: Any) -> memoryview:
        dtype = DATATYPES[codec.datatype].dtype
        expected = CONTENTS_FIELD[codec.datatype]
        array: Array = np.asarray(values, CONTENTS_DTYPE.get(expected, dtype))
        if array.dtype.itemsize > dtype.itemsize and array.size:
            limits = np.iinfo(str(dtype))
            if array.min() < limits.min or array.max() > limits.max:
                raise InvalidRequest(
                    f"input '{codec.name}' of model '{self.model}': a number in contents.{expected}"
                    f" is out of the range of {codec.datatype}"
                )
        array = np.ascontiguousarray(array, dtype)
        return array.data.cast("B") if array.size else memoryview(b"")

    def _requested(self, outputs: list[Values]) -> list[RequestedOutput]:
        by_name: dict[str, RequestedOutput] = {}
        for output in outputs:
            codec = self.tensors.output(output.get("name", ""))
            one = self._requested_output(codec, values_of(output.get("parameters", {})))
            by_name.setdefault(codec.name, one)  # the first of two holds, as in Triton
        return [*in_order(self.tensors.outputs, by_name).values()]

    def _requested_output(self, codec: OutputCodec, parameters: Parameters) -> RequestedOutput:
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise InvalidRequest(
                "invalid value type for 'classification' parameter, expected int64_param",
                more=f": a whole number from 1 up (output '{codec.name}')",
            )
        if classes:
            check_classifiable(codec.spec, self.model)
        window = None
        if has_window(parameters, codec.name):
            window = self.tensors.window(parameters, f"output '{codec.name}'")
        return RequestedOutput(codec, classes=classes, window=window)

    # The answer

    def encode_usual(
        self, response: InferResponse, id: str, requested: list[RequestedOutput] | None
    ) -> list[Buffer] | None:
        """Encode an answer as `encode` does, if it is a usual one that costs little. None for all
        others."""
        if response.parameters:
            return None
        fields = self._fields
        head = fields.begin
        if id:
            head += fields.id(id)
        raw: list[Buffer] = []
        for one in self._all_outputs if requested is None else requested:
            codec, column = one.codec, response.outputs.get(one.codec.name)
            if column is None or one.classes or one.window is not None:
                return None
            usual = codec.small_raw(column)
            if usual is None:
                return None
            shape, data = usual
            head += fields.output(codec.name, codec.datatype, shape)
            raw += (fields.raw_head(len(data)), data)
        return [head, *raw]

    def is_large(self, response: InferResponse, requested: list[RequestedOutput] | None) -> bool:
        outputs = response.outputs
        if not is_large(outputs):
            return False
        if requested is None:
            requested = self._all_outputs
        names = {one.codec.name for one in requested if one.classes or not one.codec.views}
        return is_large({
            name: column for name, column in outputs.items()
            if name in names or _takes_a_long_copy(column)
        })  # fmt: skip

    def encode(
        self,
        response: InferResponse,
        id: str = "",
        requested: list[RequestedOutput] | None = None,
        *,
        final: bool | None = None,
    ) -> list[Buffer]:
        """The pieces of a ModelInferResponse. Those of arrays are the arrays' own memory. `final`
        is for streams only."""
        fields = self._fields
        head = fields.begin
        if id:
            head += fields.id(id)
        if response.parameters or final is not None:
            head += fields.parameters(self._parameters(response, final))
        raw: list[Buffer] = []
        for one in self._all_outputs if requested is None else requested:
            codec = one.codec
            column = response.outputs.get(codec.name)
            if column is None or (isinstance(column, list) and _is_absent(column, codec)):
                continue  # a stream may have nothing for one of its outputs this time
            if one.classes:
                codec, column = self.tensors.classified(codec, column, one.classes)
            shape, flat = codec.flat(column)
            data = join_in_slices([*codec.raw_parts(flat)])
            if one.window is not None:
                one.window.write(data)
                data = b""  # each output has its entry: clients count them
            head += fields.output(codec.name, codec.datatype, shape)
            raw += (fields.raw_head(len(data)), data)
        return [head, *raw]

    def _parameters(self, response: InferResponse, final: bool | None) -> dict[str, Values]:
        values = response.parameters or {}
        parameters = {name: parameter(self.model, name, value) for name, value in values.items()}
        if final is not None:
            parameters[FINAL_RESPONSE] = {"bool_param": final}
        return parameters


def values_of(wire: Mapping[str, Values]) -> Parameters:
    """The plain values of a map of InferParameters; None where one has no value at all."""
    return {name: next(iter(value.values()), None) for name, value in wire.items()}


def _empty_final_response(parameters: Parameters) -> bool:
    """Take out the parameter that requests an empty last response, which Triton's C++ client sends.

    It matters only in a stream of a model that streams.
    """
    requested = parameters.pop(EMPTY_FINAL_RESPONSE, False)
    if type(requested) is not bool:
        raise InvalidRequest(
            f"invalid value type for '{EMPTY_FINAL_RESPONSE}' parameter, expected bool_param."
        )
    return requested


def _unsign(parameters: Parameters) -> None:
    """Read a sequence's id as the unsigned number that Triton's clients put into an int64_param.

    Only that: a timeout above 2^63 microseconds is not meant, and a negative one is a mistake.
    """
    value = parameters.get("sequence_id")
    if type(value) is int and value < 0:
        parameters["sequence_id"] = value + 2**64


def parameter(model: str, name: str, value: Any) -> Values:
    if isinstance(value, bool | np.bool_):
        return {"bool_param": bool(value)}
    if isinstance(value, int | np.integer):
        return {"int64_param" if value < 2**63 else "uint64_param": int(value)}
    if isinstance(value, float | np.floating):
        return {"double_param": float(value)}
    if isinstance(value, str):
        return {"string_param": value}
    raise BadModelOutput(
        f"model '{model}': response parameter '{name}' must be a string, int, bool or float, not"
        f" {type(value).__name__}"
    )


def _takes_a_long_copy(column: Column) -> bool:
    """Whether an array is not in one piece; one that is goes out from where it lies."""
    if not isinstance(column, np.ndarray) or column.flags.c_contiguous:
        return False
    return column.nbytes > COPIED_BYTES


def _is_absent(column: list[Any], codec: OutputCodec) -> bool:
    absent = [row for row in column if row is None]
    if not absent:
        return False
    if len(absent) == len(column):
        return True
    raise InvalidRequest(
        f"output '{codec.name}': the model answered only some rows of this request, which no tensor"
        " can express; send one row per request"
    )
