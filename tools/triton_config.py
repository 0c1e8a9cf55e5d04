"""Writes wherry/triton/repository/triton_config.py from model_config.proto: `make proto`.

Each message becomes a struct, each enum a Literal. `ModelInstanceGroup.Kind` is called
TritonInstanceGroupKind: what is Triton's begins with its name, what is wherry's own does not.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from pathlib import Path

from wherry.server.grpc.proto import load
from wherry.server.grpc.wire import Enum, Field, Message

FILE = Path(__file__).parent.parent / "wherry" / "triton" / "repository" / "triton_config.py"

#: Where a field that is not said means something else than protobuf's zero.
DEFAULTS = {
    "ModelVersionPolicy.Latest.num_versions": "1",
    "ModelRateLimiter.Resource.count": "1",
    "ModelEnsembling.Step.model_version": "-1",
    "ModelOptimizationPolicy.PinnedMemoryBuffer.enable": "True",
}

#: Characters of a line, at most.
LINE = 100

SCALARS = {
    "string": "str",
    "bool": "bool",
    "int32": "Int32",
    "int64": "Int64",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float": "float",
    "double": "float",
}
ZEROS = {"string": '""', "bool": "False", "float": "0.0", "double": "0.0"}

HEAD = '''\
"""Which fields can a config.pbtxt have, and what are their defaults?

Written by `make proto` from model_config.proto: change that file, not this one. Sizes, counts and
microseconds are as Triton has them; mapping.py converts the units.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from wherry.triton.repository.schema import Int32, Int64, TritonMessage, UInt32, UInt64
'''


def generated() -> str:
    """The text of triton_config.py."""
    schema = load("model_config.proto")
    parts = [HEAD]
    parts += ["\n" + "\n".join(_enum(enum)) for enum in schema.enums.values()]
    parts += ["\n\n" + "\n".join(_struct(message)) for message in schema.messages.values()]
    return "".join(f"{part}\n" if part is not HEAD else part for part in parts)


def _enum(enum: Enum) -> Iterator[str]:
    names = sorted(enum.numbers, key=enum.numbers.__getitem__)
    yield from _listed(f"{_name(enum.name)} = Literal[", names, "]")


def _struct(message: Message) -> Iterator[str]:
    yield f"class {_name(message.name)}(TritonMessage):"
    one_of = [field.name for field in message.fields if field.oneof]
    if not message.fields:
        yield "    pass"
    if len(one_of) > 1:
        # The notations allow one of a message's fields that are in a oneof: there is one of those.
        assert len({field.oneof for field in message.fields} - {""}) == 1, message
        yield from _listed("    one_of: ClassVar[tuple[str, ...]] = (", one_of, ")")
        yield ""
    for field in message.fields:
        kind, default = _type_and_default(field, message.name)
        if keyword.iskeyword(field.name):
            default = f'msgspec.field(default={default}, name="{field.name}")'
            yield f"    {field.name}_: {kind} = {default}"
        else:
            yield f"    {field.name}: {kind} = {default}"


def _type_and_default(field: Field, message: str) -> tuple[str, str]:
    if field.is_map and isinstance(field.type, Message):
        key, value = (_word(part) for part in field.type.fields)
        return f"dict[{key}, {value}]", "{}"
    kind = _word(field)
    if field.repeated:
        return f"list[{kind}]", "[]"
    if field.oneof or isinstance(field.type, Message):
        return f"{kind} | None", "None"
    return kind, DEFAULTS.get(f"{message}.{field.name}") or _zero(field)


def _word(field: Field) -> str:
    return SCALARS[field.type] if isinstance(field.type, str) else _name(field.type.name)


def _zero(field: Field) -> str:
    if isinstance(field.type, Enum):
        return f'"{min(field.type.numbers, key=field.type.numbers.__getitem__)}"'
    return ZEROS.get(str(field.type), "0")


def _listed(head: str, names: list[str], end: str) -> Iterator[str]:
    """The names between `head` and `end`: in one line, or in one each."""
    quoted = [f'"{name}"' for name in names]
    whole = head + ", ".join(quoted) + end
    if len(whole) <= LINE:
        yield whole
        return
    indent = " " * (len(head) - len(head.lstrip()))
    yield head
    yield from (f"{indent}    {name}," for name in quoted)
    yield indent + end


def _name(name: str) -> str:
    return "Triton" + name.removeprefix("Model").replace(".", "")


if __name__ == "__main__":
    FILE.write_text(generated(), encoding="utf-8")
