"""The .proto files: are they what the public clients were generated from?"""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tritonclient.grpc import model_config_pb2, service_pb2

from wherry.server.grpc.proto import Schema, file_descriptor, load, parse, symbols
from wherry.server.grpc.wire import Enum, Field, Message
from wherry.server.v2.grpc.kserve import schemas


def pool_of(name: str, described: bytes) -> Any:
    made: Any = descriptor_pool.DescriptorPool()
    made.Add(descriptor_pb2.FileDescriptorProto.FromString(described))
    return made


@pytest.mark.parametrize("name", schemas())
def test_every_symbol_is_found_in_the_file_that_is_said_to_have_it(name: str) -> None:
    schema = schemas()[name]
    pool = pool_of(name, file_descriptor(name, schema))
    found = pool.FindFileByName(name)
    assert found.package == schema.package
    methods = {m.full_name for s in found.services_by_name.values() for m in s.methods}
    assert methods == {path[1:].replace("/", ".") for path in schema.methods}
    for symbol in symbols(schema) - methods:  # protobuf's pool finds no methods
        assert pool.FindFileContainingSymbol(symbol).name == name, symbol


def test_messages_of_the_description_have_the_bytes_of_public_clients() -> None:
    """Maps, oneofs with zeros in them, nested messages, packed numbers."""
    schema = load("v2.proto", "model_config.proto")
    pool = pool_of("v2.proto", file_descriptor("v2.proto", schema))
    kind = pool.FindMessageTypeByName("inference.ModelInferRequest")
    ours: Any = message_factory.GetMessageClass(kind)
    theirs = service_pb2.ModelInferRequest(model_name="m", id="7")
    theirs.parameters["no"].bool_param = False
    theirs.parameters["zero"].int64_param = 0
    given = theirs.inputs.add(name="a", datatype="FP32", shape=[2, -1])
    given.contents.fp32_contents.extend([1.0, 2.0])
    theirs.raw_input_contents.append(b"\0\1")
    again = ours.FromString(theirs.SerializeToString(deterministic=True))
    assert again.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )
    assert again.parameters["no"].WhichOneof("parameter_choice") == "bool_param"
    assert ours.DESCRIPTOR.fields_by_name["parameters"].message_type.GetOptions().map_entry


def test_a_file_may_be_read_as_another_package() -> None:
    text = "package a; message M { M one = 1; } service S { rpc Do(M) returns (stream M) {} }"
    assert set(parse(text, package="b").methods) == {"/b.S/Do"}
    assert symbols(parse(text, package="b")) == {"b.M", "b.S", "b.S.Do"}


SCHEMA = load("v2.proto", "model_config.proto")
PUBLIC = [
    descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for module in (service_pb2, model_config_pb2)
]


def test_every_field_of_every_public_message_is_there_with_its_number_and_type() -> None:
    ours = {name: described(message) for name, message in SCHEMA.messages.items()}
    expected: dict[str, Any] = {}
    for file in PUBLIC:
        for message in file.message_type:
            collect(message, "", expected)
    assert ours == expected


def test_every_enumeration_has_the_public_numbers() -> None:
    expected: dict[str, dict[str, int]] = {}
    for file in PUBLIC:
        collect_enums(file, "", expected)
        for message in file.message_type:
            collect_enums_of(message, "", expected)
    assert {name: enum.numbers for name, enum in SCHEMA.enums.items()} == expected


def test_every_public_method_is_there_with_its_messages() -> None:
    (service,) = PUBLIC[0].service
    expected = {
        f"/inference.{service.name}/{m.name}": (
            m.input_type, m.output_type, m.client_streaming, m.server_streaming
        )
        for m in service.method
    }  # fmt: skip
    ours = {
        path: (
            f".inference.{m.request.name}", f".inference.{m.response.name}", m.takes_stream,
            m.gives_stream,
        )
        for path, m in SCHEMA.methods.items()
    }  # fmt: skip
    assert ours == expected


def test_the_health_service_is_the_standard_one() -> None:
    health = load("health.proto")
    assert set(health.methods) == {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
    response = health.messages["HealthCheckResponse"]
    # Triton's answer to Check, byte for byte
    assert response.encode({"status": "SERVING"}) == b"\x08\x01"
    assert response.encode({"status": "SERVICE_UNKNOWN"}) == b"\x08\x03"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("extend X {}", "unexpected 'extend'"),
        ("message M { Unknown x = 1; }", "unknown type 'Unknown'"),
        ("message M { int32 x 1; }", "expected '='"),
        ("enum E { A 1; }", "expected '='"),
    ],
)
def test_what_our_files_do_not_use_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text)


def test_a_name_means_the_innermost_message_of_that_name() -> None:
    schema: Schema = parse(
        "package p; message A { message B { int32 x = 1; } B b = 1; } message B { A.B y = 2; }"
    )
    assert schema.messages["A"].fields[0].type is schema.messages["A.B"]
    assert schema.messages["B"].fields[0].type is schema.messages["A.B"]


def described(message: Message) -> dict[str, Any]:
    return {field.name: description(field) for field in message.fields}


def description(field: Field) -> tuple[Any, ...]:
    kind = field.type
    if field.is_map:
        assert isinstance(kind, Message)
        return (field.number, "map", *(description(one)[1:] for one in kind.fields))
    name = kind.name if isinstance(kind, Message | Enum) else kind
    return field.number, name, field.repeated, field.oneof


def collect(message: Any, scope: str, into: dict[str, Any]) -> None:
    name = f"{scope}{message.name}"
    entries = {n.name: n for n in message.nested_type if n.options.map_entry}
    into[name] = {f.name: public(f, message, entries) for f in message.field}
    for nested in message.nested_type:
        if not nested.options.map_entry:
            collect(nested, f"{name}.", into)


def public(field: Any, message: Any, entries: dict[str, Any]) -> tuple[Any, ...]:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        return (field.number, "map", *(public(one, entry, {})[1:] for one in entry.field))
    kind = field.type_name.removeprefix(".inference.")
    kind = kind or descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
    return field.number, kind, field.label == field.LABEL_REPEATED, oneof


def collect_enums_of(message: Any, scope: str, into: dict[str, dict[str, int]]) -> None:
    collect_enums(message, f"{scope}{message.name}.", into)
    for nested in message.nested_type:
        collect_enums_of(nested, f"{scope}{message.name}.", into)


def collect_enums(holder: Any, scope: str, into: dict[str, dict[str, int]]) -> None:
    for enum in holder.enum_type:
        into[f"{scope}{enum.name}"] = {value.name: value.number for value in enum.value}
