"""How does a schema become the file descriptor that protobuf's tools read?

The reverse of protoc's work: https://protobuf.dev describes descriptor.proto. Pure.
"""

from __future__ import annotations

from typing import Final

from wherry.server.grpc.proto import Schema, load
from wherry.server.grpc.wire import Enum, Field, Message, Values

#: FieldDescriptorProto.Type and .Label.
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
    """The full names of its services, methods, messages and enums."""
    methods = {path[1:].replace("/", ".") for path in schema.methods}
    services = {name.rpartition(".")[0] for name in methods}
    types = {f"{schema.package}.{name}" for name in (*schema.messages, *schema.enums)}
    return methods | services | types


def _messages(scope: str, schema: Schema) -> list[Values]:
    """The messages directly within a message, or on top with ""."""
    return [
        _message(message, schema)
        for name, message in schema.messages.items()
        if name.rpartition(".")[0] == scope
    ]


def _enums(scope: str, schema: Schema) -> list[Values]:
    return [
        {"name": name.rpartition(".")[2], "value": _values(enum)}
        for name, enum in schema.enums.items()
        if name.rpartition(".")[0] == scope
    ]


def _values(enum: Enum) -> list[Values]:
    return [{"name": name, "number": number} for name, number in enum.numbers.items()]


def _message(message: Message, schema: Schema) -> Values:
    choices = list(dict.fromkeys(field.oneof for field in message.fields if field.oneof))
    entries = [_entry(field, schema) for field in message.fields if field.is_map]
    return {
        "name": message.name.rpartition(".")[2],
        "field": [_field(field, choices, message.name, schema) for field in message.fields],
        "nested_type": _messages(message.name, schema) + entries,
        "enum_type": _enums(message.name, schema),
        "oneof_decl": [{"name": name} for name in choices],
    }


def _entry(field: Field, schema: Schema) -> Values:
    """The message of a map's entries, as protoc makes it."""
    assert isinstance(field.type, Message)
    return {
        "name": _entry_name(field),
        "field": [_field(one, [], "", schema) for one in field.type.fields],
        "options": {"map_entry": True},
    }


def _entry_name(field: Field) -> str:
    return "".join(word.capitalize() for word in field.name.split("_")) + "Entry"


def _field(field: Field, choices: list[str], scope: str, schema: Schema) -> Values:
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
