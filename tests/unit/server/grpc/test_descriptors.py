"""Do protobuf's own tools read what our schemas are described as?"""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tritonclient.grpc import service_pb2

from wherry.server.grpc.descriptors import file_descriptor, symbols
from wherry.server.grpc.proto import load, parse
from wherry.server.v2.grpc.reflection import schemas


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
