"""Which operations has one loaded model, and which JSON goes to it and comes from it?"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
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
from wherry.server.calls.client_text import encode_json
from wherry.server.content.media_types import FORM, JSON_LINES
from wherry.server.http.exchange import JSON
from wherry.server.http.route import (
    ANY_TEXT,
    BINARY,
    EVENTS,
    FILE,
    OF_NATURAL,
    READS,
    Json,
    Operation,
    json_of,
    list_of,
    named,
    object_of,
)
from wherry.server.v2.element_bytes import wire_shape
from wherry.server.v2.http.form_codec import FormCodec
from wherry.server.v2.http.kserve import (
    ANSWERED,
    GENERATE,
    GENERATE_STREAM,
    INFER,
    INPUT_TENSOR,
    PARAMETER,
    REQUESTED_OUTPUT,
    TENSOR,
    TENSORS,
)
from wherry.server.v2.model_tensors import ModelTensors


def model_operations(
    loaded: LoadedModel, registry: SchemaRegistry
) -> Iterator[tuple[str, Operation]]:
    """What this model has by POST, typed by its inputs and outputs."""
    described = ModelSchemas(loaded, registry)
    about, path = about_model(loaded), f"/v2/models/{loaded.name}"
    first_line = about.partition("\n")[0]
    summary = f"{loaded.name}: {first_line}" if first_line else loaded.name
    common: dict[str, Any] = {"tag": loaded.name, "description": about}
    route = loaded.config.route
    if described.speaks_json:
        if route is not None:
            natural = _natural(loaded, described)
            yield route, replace(natural, summary=summary, **common)
        typed = _generate(loaded, described)
        word = "generate_stream" if loaded.signature.streams else "generate"
        title = f"{summary} (V2)" if route else summary
        named = replace(typed, id=f"{word}_{loaded.name}", summary=title, **common)
        yield f"{path}/{word}", named
    if not loaded.signature.streams:
        yield (
            f"{path}/infer",
            replace(
                INFER,
                summary=f"{summary} (as tensors)",
                takes={**INFER.takes, JSON: described.infer_request()},
                gives={**INFER.gives, JSON: described.infer_answer()},
                id=f"infer_{loaded.name}",
                **common,
            ),
        )


def _generate(loaded: LoadedModel, described: ModelSchemas) -> Operation:
    takes = {JSON: described.generate_request(), **_files(described)}
    examples, answer = json_of(described.examples()), described.generate_answer()
    if loaded.signature.streams:
        return replace(GENERATE_STREAM, takes=takes, examples=examples, events=answer)
    gives = {JSON: answer, **_file_answer(loaded)}
    return replace(GENERATE, takes=takes, examples=examples, gives=gives)


def _natural(loaded: LoadedModel, described: ModelSchemas) -> Operation:
    answer = described.natural_answer()
    made = Operation(
        summary="",
        takes={JSON: described.natural_request(), **_files(described)},
        gives={JSON: answer, **_file_answer(loaded)},
        examples=json_of(described.natural_examples()),
        errors=OF_NATURAL,
        reads=READS,
        parameters=(described.priority_header(),),
        id=loaded.name,
    )
    if not loaded.signature.streams:
        return made
    return replace(made, gives={EVENTS: {}, JSON_LINES: {}}, events=answer)


def _files(described: ModelSchemas) -> dict[str, Any]:
    """The other forms of a body, for a model that takes a file."""
    file = described.file_input
    if file is None:
        return {}
    kinds = file.media.accepts if file.media is not None else ()
    return {FORM: described.form(), **dict.fromkeys((BINARY, *kinds), FILE)}


def _file_answer(loaded: LoadedModel) -> dict[str, Any]:
    """The answer that is a file, if one of the outputs may be one."""
    files = [one for one in loaded.signature.outputs if one.form is Form.BYTES and not one.shape]
    if len(files) != 1:
        return {}
    media = files[0].media
    return {BINARY if media is None else media.media_type: FILE}


def about_model(loaded: LoadedModel) -> str:
    """What its author wrote about a model: its description, else the docstring of the code."""
    model = loaded.model
    if loaded.config.description:
        return loaded.config.description
    kind = type(model)
    if isinstance(model, FunctionModel):
        return inspect.cleandoc(model.function.__doc__ or "")
    if kind.__module__.partition(".")[0] == "wherry":
        return ""  # it is ours, and not about this model
    return inspect.cleandoc(vars(kind).get("__doc__") or kind.execute.__doc__ or "")


_REF: Final = "#/components/schemas/"
_JSON_TYPES: Final = {str: "string", int: "integer", bool: "boolean"}


class SchemaRegistry:
    """The named schemas of one document. What has a name is there once, and referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        #: Of each type by its id, with the type, which keeps the id its own.
        self._of_types: dict[tuple[int, str], tuple[Any, Json]] = {}

    def of(self, schema: Any, prefix: str = "") -> Json:
        """The schema of a type; one that is JSON already stays, and has its name from its title.

        `prefix` stands before the names of a user's types: two models may have different ones of
        the same name.
        """
        if not isinstance(schema, dict):
            key = id(schema), prefix
            if key not in self._of_types:
                self._of_types[key] = schema, self._of_type(schema, prefix)
            return self._of_types[key][1]
        if "title" not in schema:
            return schema
        name = _name(schema["title"])
        self.schemas.setdefault(name, schema)
        return {"$ref": _REF + name}

    def _of_type(self, kind: Any, prefix: str) -> Json:
        try:
            (schema,), named = msgspec.json.schema_components(
                [kind], ref_template=_REF + prefix + "{name}"
            )
        except (TypeError, ValueError, RecursionError):
            return {}  # a type of the user's that JSON has no schema for
        for name, component in named.items():
            if getattr(kind, "takes_any_members", False):
                component.pop("additionalProperties", None)
            if not prefix:
                _require_constants(component)
            # Generators of clients name their classes by the title.
            self.schemas[_name(prefix + name)] = {**_renamed(component), "title": prefix + name}
        whole: Json = _renamed(schema)
        return whole

    def sharpen(self, more: dict[str, Json]) -> None:
        """Add what the types do not have, to those schemas that are here: other keywords, and other
        schemas of the members that they have."""
        for name, keywords in more.items():
            if (schema := self.schemas.get(name)) is None:
                continue
            members = schema["properties"]
            sharper = keywords["properties"].items()
            members |= {member: value for member, value in sharper if member in members}
            self.schemas[name] = {**schema, **keywords, "properties": members}


def _name(text: str) -> str:
    """A name that a component may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_")


def _require_constants(schema: Json) -> None:
    for name, member in schema.get("properties", {}).items():
        if "default" in member and member.get("enum") == [member["default"]]:
            schema["required"] = [*schema.get("required", ()), name]


def _renamed(value: Any) -> Any:
    """A schema with references by the names that components may have, and with what generators of
    clients need: the type of an enum, and no default that means "not given"."""
    if isinstance(value, dict):
        made = {key: _renamed(member) for key, member in value.items()}
        kinds = {type(one) for one in made.get("enum", ())}
        if "type" not in made and len(kinds) == 1 and (kind := _JSON_TYPES.get(kinds.pop())):
            made["type"] = kind
        if "anyOf" in made and made.get("default", 0) is None:
            del made["default"]
        return made
    if isinstance(value, list):
        return [_renamed(element) for element in value]
    if isinstance(value, str) and value.startswith(_REF):
        return _REF + _name(value.removeprefix(_REF))
    return value


def without_raw(schema: Any) -> Any:
    """The same schema; of a Struct of ours, see `_taken`."""
    return (
        _taken(schema)
        if isinstance(schema, type) and issubclass(schema, msgspec.Struct)
        else schema
    )


@cache
def _taken(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same Struct with any value where it keeps JSON as text, of which there is no schema.

    It takes members that are not known, and so do the Structs in it: they are ignored and named in
    a header.
    """
    members: list[Any] = []
    for member in msgspec.structs.fields(kind):
        if member.type is msgspec.Raw:
            members.append((member.encode_name, Any, None))
        elif member.required:
            members.append((member.encode_name, member.type))
        else:
            members.append((member.encode_name, member.type, member.default))
    return msgspec.defstruct(
        kind.__name__,
        members,
        kw_only=True,
        namespace={"__doc__": kind.__doc__, "takes_any_members": True},
    )


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
                "outputs": list_of(self._registry.of(REQUESTED_OUTPUT)),
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
        if not spec.optional:
            return row
        return {"anyOf": [row, {"type": "null"}], **_default(spec)}

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
        return {"anyOf": choices, **_default(spec)} if len(choices) > 1 else row

    def _answered(self, spec: TensorSpec) -> Json:
        """What `generate` answers of an output: rows and their elements stand in one flat list."""
        element = self._element(spec)
        if _is_float(spec):
            element = {"type": ["number", "null"], "description": "null: no finite number"}
        many = list_of(element)
        return many if _known(spec) > 1 else {"anyOf": [element, many]}

    def _row(self, spec: TensorSpec, element: Json | None = None) -> Json:
        """One row: an element, or a list of as many as its shape has, nested by its dimensions."""
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
        element = _scalar(spec)
        if spec.form is Form.JSON:  # as text, which V2 requires, or as it is
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


def _default(spec: TensorSpec) -> Json:
    """What stands for a row that leaves the input out, where that is known."""
    default = spec.default
    if default is None or isinstance(default, bytes):
        return {}
    finite = not isinstance(default, float) or math.isfinite(default)
    return {"default": default} if finite else {}


def _known(spec: TensorSpec) -> int:
    """The elements that every row has at least."""
    return math.prod(abs(size) for size in spec.shape)


def _as_json(value: Any) -> Any:
    """A sample's value, with bytes as the text that they are; ValueError if they are not text."""
    if isinstance(value, Mapping):
        return {key: _as_json(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value
