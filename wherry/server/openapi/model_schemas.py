"""Which JSON goes to one loaded model and comes from it, by its signature?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from wherry.core.api import (
    BF16,
    BOOL,
    BYTES,
    FP16,
    FP32,
    Form,
    FunctionModel,
    LoadedModel,
    TensorSpec,
)
from wherry.server.calls.json_text import encode_json
from wherry.server.http.exchange import JSON
from wherry.server.http.route import (
    ANY_TEXT,
    FILE,
    Json,
    list_of,
    named,
    object_of,
)
from wherry.server.openapi.schemas import SchemaRegistry
from wherry.server.v2.http.described import (
    ANSWERED,
    INPUT_TENSOR,
    PARAMETER,
    TENSOR,
    TENSORS,
    WANTED,
)
from wherry.server.v2.http.form_codec import FormCodec
from wherry.server.v2.model_tensors import ModelTensors
from wherry.server.v2.wire_shape import wire_shape

_OR_NULL: Final[Json] = {"type": [*PARAMETER["type"], "null"]}
#: JSON has no numbers of these.
_BINARY_ONLY: Final = (FP16, BF16)
#: Bytes in JSON, and in a form or as a whole body.
_IN_BASE64: Final = object_of(
    {"b64": {"type": "string", "contentEncoding": "base64"}},
    ["b64"],
    title="Base64",
    additionalProperties=False,
)


class ModelSchemas:
    """The JSON that goes to one model and comes from it, as schemas."""

    def __init__(self, loaded: LoadedModel, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._name = loaded.name
        self._version = loaded.version
        self._batched = loaded.config.max_batch_size > 0
        #: A stream is of one batch at most; other requests may be split.
        self._most_rows = loaded.config.max_batch_size if loaded.signature.streams else None
        levels = loaded.config.priority_levels
        most = {"maximum": levels} if levels else {}
        self._priority: Json = {"type": "integer", "minimum": 0, **most}
        self._samples = loaded.config.examples
        #: Outputs of a foreign model may be left out.
        self._gives_all = isinstance(loaded.model, FunctionModel)
        signature = loaded.signature
        self.inputs, self.outputs = signature.inputs, signature.outputs
        self._needed = [spec.name for spec in self.inputs if not spec.optional]
        self._unnamed = signature.returns == "single"
        first = self.inputs[0]
        #: The input whose row is the whole object at the model's own route.
        self._whole = first if len(self.inputs) == 1 and first.holds_objects else None
        forms = FormCodec(ModelTensors(loaded.config, signature))
        #: The input that a body which is a file is for.
        self.file_input = None if forms.file_input is None else forms.file_input.spec

    @property
    def speaks_json(self) -> bool:
        """Whether all that must be there can be written as JSON."""
        needed = (*(spec for spec in self.inputs if not spec.optional), *self.outputs)
        return not any(spec.datatype in _BINARY_ONLY for spec in needed)

    def generate_request(self) -> Json:
        """The inputs by name. Every other member is a parameter."""
        inputs = {spec.name: self._value(spec) for spec in self.inputs}
        ours = {
            "id": ANY_TEXT,
            "parameters": {"type": "object", "additionalProperties": PARAMETER},
            **self._parameters(),
        }
        return object_of(
            {**inputs, **{k: v for k, v in ours.items() if k not in inputs}},
            self._needed,
            title=f"{self._name}.Inputs",
            additionalProperties=PARAMETER,
        )

    def generate_answer(self) -> Json:
        """The outputs by name: one row as it is, several as a list."""
        outputs = {spec.name: self._answered(spec) for spec in self.outputs}
        needed = ["model_name", "model_version", *(outputs if self._gives_all else ())]
        return object_of(
            {**ANSWERED, **outputs},
            sorted(set(needed), key=needed.index),
            title=f"{self._name}.Outputs",
        )

    def infer_request(self) -> Json:
        """The envelope of tensors, whose names and datatypes are this model's."""
        needed = sum(not spec.optional for spec in self.inputs)
        tensors = [self._tensor(spec) for spec in self.inputs]
        inputs = list_of(
            tensors[0] if len(tensors) == 1 else {"oneOf": tensors},
            minItems=needed,
            maxItems=len(tensors),
        )
        return object_of(
            {
                "inputs": inputs,
                "id": ANY_TEXT,
                "parameters": object_of(self._parameters(), additionalProperties=_OR_NULL),
                "outputs": list_of(self._registry.of(WANTED)),
            },
            ["inputs"],
            title=f"{self._name}.InferRequest",
        )

    def infer_answer(self) -> Json:
        names = [spec.name for spec in self.outputs]
        member = {**TENSOR["properties"], "name": {"type": "string", "enum": names}}
        outputs = list_of(object_of(member, TENSOR["required"]))
        return {
            **TENSORS,
            "title": f"{self._name}.InferAnswer",
            "properties": {**TENSORS["properties"], "outputs": outputs},
        }

    # At the model's own route

    def natural_request(self) -> Json:
        """An object with the inputs as members, or a list of them."""
        if self._whole is not None:
            row = self._element(self._whole)
        else:
            row = object_of(
                {spec.name: self._natural(spec) for spec in self.inputs},
                self._needed,
                title=f"{self._name}.Row",
                additionalProperties=False,
            )
        return self._or_rows(self._registry.of(row))

    def natural_answer(self) -> Json:
        """The value that the model returns: that of its only output, or an object of them."""
        outputs = {spec.name: self._natural_output(spec) for spec in self.outputs}
        row: Json = next(iter(outputs.values()))
        if not self._unnamed:
            row = object_of(outputs, list(outputs) if self._gives_all else [])
        return self._or_rows(row)

    def form(self) -> Json:
        """The inputs as the fields of a multipart form; one that is repeated is several rows."""
        fields = {spec.name: self._field(spec) for spec in self.inputs}
        return object_of(fields, self._needed, title=f"{self._name}.Form")

    def priority_header(self) -> Json:
        """What a body at the model's own route has no member for."""
        about = "1 is first; 0 is the model's default."
        return named("X-Request-Priority", "header", self._priority, about)

    def _natural(self, spec: TensorSpec) -> Json:
        row = self._row(spec)
        return {"anyOf": [row, {"type": "null"}]} if spec.optional else row

    def _natural_output(self, spec: TensorSpec) -> Json:
        if spec.form is Form.BYTES and not spec.shape:
            return self._registry.of(_IN_BASE64)
        return self._row(spec, {"type": ["number", "null"]} if _is_float(spec) else None)

    def _field(self, spec: TensorSpec) -> Json:
        if spec.form is Form.BYTES and not spec.shape:
            many = self._most_rows is None and self._batched
            return {"anyOf": [FILE, list_of(FILE, minItems=1)]} if many else FILE
        if spec.form is Form.TEXT and not spec.shape:
            return ANY_TEXT
        return self._row(spec)

    def _or_rows(self, row: Json) -> Json:
        many = list_of(row, minItems=1)
        most = self._most_rows if self._batched else 1
        return {"anyOf": [row, many if most is None else {**many, "maxItems": most}]}

    def examples(self) -> dict[str, Json]:
        """The model's own examples, as far as they are JSON."""
        found: dict[str, Json] = {}
        for number, sample in enumerate(self._samples, 1):
            try:
                value = msgspec.json.decode(encode_json(_as_json(sample)))
            except (TypeError, ValueError):
                continue
            found[f"example {number}" if len(self._samples) > 1 else "example"] = {"value": value}
        return found

    def _parameters(self) -> Json:
        """The parameters that are the server's; any other is the model's."""
        return {
            "priority": self._priority,
            "timeout": {"type": "integer", "minimum": 0, "description": "Microseconds."},
        }

    def natural_examples(self) -> dict[str, Json]:
        """The same at the model's own route."""
        if self._whole is None:
            return self.examples()
        name = self._whole.name
        return {key: {"value": one["value"][name]} for key, one in self.examples().items()}

    # One tensor

    def _value(self, spec: TensorSpec) -> Json:
        """What `generate` takes for an input."""
        row = self._row(spec)
        choices = [row]
        most = self._most_rows if self._batched else 1
        if most is None or most > 1 or spec.shape == ():
            many = list_of(row, minItems=1)
            choices.append(many if most is None else {**many, "maxItems": most})
        if spec.optional:
            choices.append({"type": "null"})
        return {"anyOf": choices} if len(choices) > 1 else row

    def _answered(self, spec: TensorSpec) -> Json:
        """What `generate` answers of an output: rows and their elements stand in one flat list."""
        element = self._element(spec)
        if _is_float(spec):
            element = {"type": ["number", "null"], "description": "null: no finite number"}
        many = list_of(element)
        return many if _known(spec) > 1 else {"anyOf": [element, many]}

    def _row(self, spec: TensorSpec, element: Json | None = None) -> Json:
        """One row: an element, or a list of as many as its shape says, nested by its dimensions."""
        schema = element or self._element(spec)
        for size in reversed(spec.shape):
            schema = list_of(schema)
            if size >= 0:
                schema |= {"minItems": size, "maxItems": size}
        return schema

    def _element(self, spec: TensorSpec) -> Json:
        if spec.form is Form.JSON:
            prefix = f"{self._name}."
            return self._registry.of(spec.json_type, prefix) or {"type": "object"}
        if spec.form is Form.BYTES:
            return {"anyOf": [ANY_TEXT, self._registry.of(_IN_BASE64)]}
        return _scalar(spec)

    def _tensor(self, spec: TensorSpec) -> Json:
        """A tensor in V2's words."""
        element = _scalar(spec)
        if spec.form is Form.JSON:  # as text, which V2 asks for, or as it is
            as_text = {**element, "contentMediaType": JSON, "contentSchema": self._element(spec)}
            element = {"anyOf": [as_text, self._element(spec)]}
        return object_of(
            {
                **TENSOR["properties"],
                "name": {"const": spec.name},
                "datatype": {"const": spec.datatype.name},
                "shape": self._shape(spec),
                "data": list_of(element),
            },
            INPUT_TENSOR["required"],
            title=f"{self._name}.{spec.name}",
        )

    def _shape(self, spec: TensorSpec) -> Json:
        """The shape of a tensor on the wire, in which -1 is any size."""
        dims = wire_shape(spec, self._batched)
        sizes: list[Json] = [
            {"type": "integer", "minimum": int(self._batched and not place)}
            if size < 0
            else {"const": size}
            for place, size in enumerate(dims)
        ]
        if spec.shape == () and self._batched:
            sizes.append({"const": 1})  # [rows, 1] is taken, too
        return list_of(
            {"type": "integer"}, prefixItems=sizes, minItems=len(dims), maxItems=len(sizes)
        )


def _scalar(spec: TensorSpec) -> Json:
    """One element of a tensor as JSON."""
    datatype = spec.datatype
    if datatype is BYTES:
        return ANY_TEXT
    if datatype is BOOL:
        return {"type": "boolean"}
    if datatype.dtype.kind == "f":
        schema: Json = {"type": "number", "format": "float" if datatype is FP32 else "double"}
        if datatype is FP32:
            limit = float(np.finfo(np.float32).max)
            schema |= {"minimum": -limit, "maximum": limit}
        return schema
    limits = np.iinfo(datatype.dtype.name)
    sized = {"format": f"int{64 if datatype.itemsize > 4 else 32}"}
    return {"type": "integer", **sized, "minimum": int(limits.min), "maximum": int(limits.max)}


def _is_float(spec: TensorSpec) -> bool:
    return spec.datatype.dtype.kind == "f"


def _known(spec: TensorSpec) -> int:
    """The elements that every row has at least."""
    return math.prod(abs(size) for size in spec.shape)


def _as_json(value: Any) -> Any:
    """A sample's value, with bytes as the text that they are; ValueError if they are none."""
    if isinstance(value, Mapping):
        return {key: _as_json(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value
