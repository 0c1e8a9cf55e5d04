"""Which messages and methods does a .proto file describe, and how do protobuf's tools get them?

Reads the part of the language that our own files use (proto3: messages, enums, maps, oneofs,
services), so that the files are the one description of the wire: for this server, for readers, and
for clients that are generated from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Final

from wherry.server.grpc.wire import Enum, Field, Message, Values

_COMMENT: Final = re.compile(r"//[^\n]*")
_TOKEN: Final = re.compile(r'[A-Za-z_][\w.]*|\d+|"[^"]*"|[{}()<>=;,]')
SCALARS: Final = frozenset(
    {"string", "bytes", "bool", "int32", "int64", "uint32", "uint64", "float", "double"}
)


@dataclass(frozen=True, slots=True)
class Method:
    #: As in a call's :path.
    path: str
    request: Message
    response: Message
    takes_stream: bool
    gives_stream: bool


@dataclass(slots=True)
class Schema:
    package: str = ""
    #: By name within the package: "ModelInferRequest", "ModelInferRequest.InferInputTensor".
    messages: dict[str, Message] = field(default_factory=dict)
    enums: dict[str, Enum] = field(default_factory=dict)
    #: By path: "/inference.GRPCInferenceService/ModelInfer".
    methods: dict[str, Method] = field(default_factory=dict)


#: Adds what names types, once all that the files describe are known.
_Later = list[Callable[[], None]]

#: Where our own files lie, if not beside this one.
_FOLDERS: Final = {"model_config.proto": "wherry.triton.repository"}


def load(*names: str, package: str = "") -> Schema:
    """The schema of our own files of these names, which are of one package: `package`, or the one
    that they name."""
    files = [resources.files(_FOLDERS.get(name, __package__)) / name for name in names]
    return parse(*(file.read_text(encoding="utf-8") for file in files), package=package)


def parse(*texts: str, package: str = "") -> Schema:
    """The files of one package. ValueError for what is not understood: they are ours."""
    schema = Schema()
    later: _Later = []
    for text in texts:
        tokens = iter(_TOKEN.findall(_COMMENT.sub("", text)))
        for word in tokens:
            if word == "package":
                named = next(tokens)
                schema.package = package or named
                _expect(tokens, ";")
            elif word in ("syntax", "import"):
                while next(tokens) != ";":
                    pass
            elif word == "message":
                _message(tokens, "", schema, later)
            elif word == "enum":
                _enum(tokens, "", schema)
            elif word == "service":
                _service(tokens, schema, later)
            else:
                raise ValueError(f"unexpected {word!r} in a .proto file")
    for step in later:
        step()
    return schema


def _message(tokens: Iterator[str], scope: str, schema: Schema, later: _Later) -> None:
    name = next(tokens)
    full = f"{scope}.{name}" if scope else name
    message = schema.messages[full] = Message(full)
    fields: list[Callable[[], Field]] = []
    later.append(lambda: message.add(field() for field in fields))
    oneof = ""
    _expect(tokens, "{")
    for word in tokens:
        if word == "}":
            if not oneof:
                return
            oneof = ""
        elif word == "message":
            _message(tokens, full, schema, later)
        elif word == "enum":
            _enum(tokens, full, schema)
        elif word == "oneof":
            oneof = next(tokens)
            _expect(tokens, "{")
        else:
            fields.append(_field(word, tokens, full, oneof, schema))


def _field(
    word: str, tokens: Iterator[str], scope: str, oneof: str, schema: Schema
) -> Callable[[], Field]:
    """Read a field; returns what makes it once all types are known."""
    key_type = ""
    repeated = word == "repeated"
    if word == "map":
        _expect(tokens, "<")
        key_type = next(tokens)
        _expect(tokens, ",")
        word = next(tokens)
        _expect(tokens, ">")
    elif repeated:
        word = next(tokens)
    name = next(tokens)
    _expect(tokens, "=")
    number = int(next(tokens))
    _expect(tokens, ";")

    def resolved() -> Field:
        kind = _type(word, scope, schema)
        if not key_type:
            return Field(name, number, kind, repeated=repeated, oneof=oneof)
        entry = Message(f"{scope}.{name}")
        entry.add([Field("key", 1, key_type), Field("value", 2, kind)])
        return Field(name, number, entry, is_map=True)

    return resolved


def _type(word: str, scope: str, schema: Schema) -> str | Enum | Message:
    """What a word means inside a message: the innermost description of that name."""
    if word in SCALARS:
        return word
    while True:
        name = f"{scope}.{word}" if scope else word
        if name in schema.messages:
            return schema.messages[name]
        if name in schema.enums:
            return schema.enums[name]
        if not scope:
            raise ValueError(f"unknown type {word!r}")
        scope = scope.rpartition(".")[0]


def _enum(tokens: Iterator[str], scope: str, schema: Schema) -> None:
    name = next(tokens)
    full = f"{scope}.{name}" if scope else name
    numbers: dict[str, int] = {}
    _expect(tokens, "{")
    while (word := next(tokens)) != "}":
        _expect(tokens, "=")
        numbers[word] = int(next(tokens))
        _expect(tokens, ";")
    schema.enums[full] = Enum(full, numbers)


def _service(tokens: Iterator[str], schema: Schema, later: _Later) -> None:
    service = next(tokens)
    _expect(tokens, "{")
    while next(tokens) != "}":  # rpc
        name = next(tokens)
        request = _argument(tokens)
        _expect(tokens, "returns")
        response = _argument(tokens)
        _expect(tokens, "{")
        _expect(tokens, "}")
        later.append(partial(_add_method, schema, f"{service}/{name}", *request, *response))


def _add_method(
    schema: Schema, name: str, takes: str, takes_stream: bool, gives: str, gives_stream: bool
) -> None:
    path, messages = f"/{schema.package}.{name}", schema.messages
    schema.methods[path] = Method(
        path, messages[takes], messages[gives], takes_stream, gives_stream
    )


def _argument(tokens: Iterator[str]) -> tuple[str, bool]:
    """The name of a message, and whether there is a stream of them."""
    _expect(tokens, "(")
    word = next(tokens)
    stream = word == "stream"
    if stream:
        word = next(tokens)
    _expect(tokens, ")")
    return word, stream


def _expect(tokens: Iterator[str], expected: str) -> None:
    word = next(tokens)
    if word != expected:
        raise ValueError(f"expected {expected!r} in a .proto file, not {word!r}")


# The descriptors for protobuf's tools (descriptor.proto): the reverse of protoc's work.

_TYPES: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9,
    "message": 11, "bytes": 12, "uint32": 13, "enum": 14,
}  # fmt: skip
_OPTIONAL, _REPEATED = 1, 3


def file_descriptor(name: str, schema: Schema) -> bytes:
    """A serialized google.protobuf.FileDescriptorProto of all that the schema describes, as one
    file of this name."""
    services: dict[str, list[Values]] = {}
    for path, method in schema.methods.items():
        service, _, called = path.removeprefix(f"/{schema.package}.").partition("/")
        services.setdefault(service, []).append(
            {
                "name": called,
                "input_type": f".{schema.package}.{method.request.name}",
                "output_type": f".{schema.package}.{method.response.name}",
                "client_streaming": method.takes_stream,
                "server_streaming": method.gives_stream,
            }
        )
    described = {
        "name": name,
        "package": schema.package,
        "message_type": _messages("", schema),
        "enum_type": _enums("", schema),
        "service": [{"name": one, "method": methods} for one, methods in services.items()],
        "syntax": "proto3",
    }
    return load("descriptor.proto").messages["FileDescriptorProto"].encode(described)


def symbols(schema: Schema) -> set[str]:
    methods = {path[1:].replace("/", ".") for path in schema.methods}
    services = {name.rpartition(".")[0] for name in methods}
    types = {f"{schema.package}.{name}" for name in (*schema.messages, *schema.enums)}
    return methods | services | types


def _messages(scope: str, schema: Schema) -> list[Values]:
    """The messages directly within a message, or on top with ""."""
    return [
        _described_message(message, schema)
        for name, message in schema.messages.items()
        if name.rpartition(".")[0] == scope
    ]


def _enums(scope: str, schema: Schema) -> list[Values]:
    return [
        {
            "name": name.rpartition(".")[2],
            "value": [{"name": one, "number": number} for one, number in enum.numbers.items()],
        }
        for name, enum in schema.enums.items()
        if name.rpartition(".")[0] == scope
    ]


def _described_message(message: Message, schema: Schema) -> Values:
    choices = list(dict.fromkeys(field.oneof for field in message.fields if field.oneof))
    entries = [
        {
            "name": _entry_name(field),
            "field": [_described_field(one, [], "", schema) for one in field.type.fields],
            "options": {"map_entry": True},
        }
        for field in message.fields
        if field.is_map and isinstance(field.type, Message)
    ]
    return {
        "name": message.name.rpartition(".")[2],
        "field": [
            _described_field(field, choices, message.name, schema) for field in message.fields
        ],
        "nested_type": _messages(message.name, schema) + entries,
        "enum_type": _enums(message.name, schema),
        "oneof_decl": [{"name": name} for name in choices],
    }


def _entry_name(field: Field) -> str:
    return "".join(word.capitalize() for word in field.name.split("_")) + "Entry"


def _described_field(field: Field, choices: list[str], scope: str, schema: Schema) -> Values:
    made: Values = {
        "name": field.name,
        "number": field.number,
        "label": _REPEATED if field.repeated or field.is_map else _OPTIONAL,
    }
    if isinstance(field.type, str):
        made["type"] = _TYPES[field.type]
    else:
        made["type"] = _TYPES["enum" if isinstance(field.type, Enum) else "message"]
        named = f"{scope}.{_entry_name(field)}" if field.is_map else field.type.name
        made["type_name"] = f".{schema.package}.{named}"
    if field.oneof:
        made["oneof_index"] = choices.index(field.oneof)
    return made
