"""How does a protobuf message become a dict, and a dict a message?

Only the wire format; which messages there are comes from the .proto files (`proto.py`). The
protobuf package would copy every tensor twice on its way in, and its one registry for the whole
process refuses a second description of a name that tritonclient has described already.

A decoded message holds the fields that were sent: scalars, dicts for messages and maps, lists; of
many numbers sent as one block, an array. Large `bytes` are views of the message, not copies. Enum
values are numbers; to encode, a name will do. Unknown fields are skipped, as protobuf demands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt

from wherry.core.api import BadModelOutput, Buffer
from wherry.server.calls.offload import LARGE_BYTES, SLICE_BYTES, give_way
from wherry.server.grpc.wire_numbers import (
    BLOCK,
    FLOATS,
    INTEGERS,
    LONG_BLOCK,
    Malformed,
    number_bytes,
    number_reader,
    read_block,
    read_numbers,
    read_varint,
    skip,
    varint,
    wire_type,
)

Values = dict[str, Any]
#: Values of a repeated field: an array if they came as one long block.
Numbers = list[Any] | npt.NDArray[Any]
#: Reads what stands at a position of the data into the values; returns the position behind it.
Reader = Callable[[memoryview, int, int, Values], int]

#: Messages or texts of one field. Two bytes make an empty one: without a limit, a request of
#: megabytes would become gigabytes of objects.
MAX_MESSAGES: Final = 1024
#: A message of at most this many fields is read without giving way to other threads.
LIGHT_FIELDS: Final = 128


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    name: str
    numbers: Mapping[str, int]


class Field:
    def __init__(
        self,
        name: str,
        number: int,
        type: str | Enum | Message,
        *,
        repeated: bool = False,
        is_map: bool = False,
        oneof: str = "",
    ) -> None:
        self.name = name
        self.number = number
        self.type = type
        #: The kind of its numbers, and how one of them is sent; of no meaning for others.
        self.scalar = "int32" if isinstance(type, Enum) else str(type)
        self.wire_type = wire_type(self.scalar)
        self.repeated = repeated
        #: `type` is then the message of an entry: key and value.
        self.is_map = is_map
        self.oneof = oneof


class Message:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []
        self._readers: dict[int, Reader] = {}

    def add(self, fields: Iterable[Field]) -> None:
        """Add fields, once the types that they name are all known."""
        self.fields += fields
        for field in self.fields:
            self._readers.update(_readers(field, self.fields))

    def tag(self, name: str) -> int:
        """The tag of a field that is not a number: what stands before its length."""
        return next(field.number for field in self.fields if field.name == name) << 3 | BLOCK

    def around(self, name: str, parts: Sequence[Buffer]) -> list[Buffer]:
        """The pieces of a message that has one field: a message in these pieces."""
        return [varint(self.tag(name)) + varint(sum(map(len, parts))), *parts]

    def decode(self, data: Buffer) -> Values:
        """The fields of a message in these bytes. Malformed if they are not such a message."""
        view = memoryview(data)
        try:
            return self.read(view, 0, len(view))
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise Malformed(f"{self.name}: {error}") from None

    def is_light(self, data: Buffer, heavy: str) -> bool:
        """Whether a large message costs little to decode: most of it are a few values of its
        `bytes` field `heavy`, which are not copied. False for malformed bytes."""
        tag = self.tag(heavy)
        view = memoryview(data)
        position, end = 0, len(view)
        rest = fields = 0
        while position < end and rest <= LARGE_BYTES and fields < LIGHT_FIELDS:
            fields += 1
            begin = position
            try:
                found, position = read_varint(view, position, end)
                position = skip(view, position, end, found)
            except Malformed:
                return False
            if found != tag:
                rest += position - begin
        return position == end and rest <= LARGE_BYTES

    def read(self, data: memoryview, position: int, end: int) -> Values:
        """`decode` from `position` to `end`."""
        values: Values = {}
        readers = self._readers
        while position < end:
            stop = end if end - position <= SLICE_BYTES else position + SLICE_BYTES
            while position < stop:
                tag = data[position]
                position += 1
                if tag > 0x7F:
                    tag, position = read_varint(data, position - 1, end)
                reader = readers.get(tag)
                if reader is None:
                    position = skip(data, position, end, tag)
                else:
                    position = reader(data, position, end, values)
            if position < end:
                give_way()
        if position != end:
            raise Malformed(f"{self.name} is cut off")
        return values

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of a message. Names that it does not have are left out; so are defaults, as in
        protobuf. Buffers (`bytes` fields) are copied once, into the message.
        """
        return b"".join(self.parts(values))

    def parts(self, values: Mapping[str, Any]) -> list[Buffer]:
        parts: list[Buffer] = []
        self.write(values, parts)
        return parts

    def write(self, values: Mapping[str, Any], parts: list[Buffer]) -> int:
        size = 0
        for field in self.fields:
            value = values.get(field.name)
            if value is not None:
                size += _write(field, value, parts)
        return size


# In


def _readers(field: Field, siblings: Sequence[Field]) -> dict[int, Reader]:
    readers = _readers_of(field)
    others = _others(field, siblings)
    return {tag: _only(reader, others) for tag, reader in readers.items()} if others else readers


def _only(reader: Reader, others: tuple[str, ...]) -> Reader:
    """Read a field of a `oneof`, which replaces the others: the last one on the wire counts."""

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position = reader(data, position, end, values)
        for other in others:
            values.pop(other, None)
        return position

    return read


def _readers_of(field: Field) -> dict[int, Reader]:
    """Numbers of a repeated field may be sent packed and not."""
    kind = field.type
    number = field.number << 3
    if field.is_map:
        return {number | BLOCK: _map_reader(field)}
    if isinstance(kind, Message):
        return {number | BLOCK: _message_reader(field, kind)}
    if kind == "string":
        return {number | BLOCK: _string_reader(field)}
    if kind == "bytes":
        return {number | BLOCK: _bytes_reader(field)}
    if not field.repeated:
        return {number | field.wire_type: _scalar_reader(field)}
    return {
        number | field.wire_type: _scalar_reader(field),
        number | BLOCK: _packed_reader(field),
    }


def _others(field: Field, siblings: Sequence[Field]) -> tuple[str, ...]:
    if not field.oneof:
        return ()
    return tuple(f.name for f in siblings if f.oneof == field.oneof and f is not field)


def _string_reader(field: Field) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = read_block(data, position, end)
        text = str(data[position:stop], "utf-8")
        if repeated:
            into = values.setdefault(name, [])
            if len(into) >= MAX_MESSAGES:
                raise _too_many(name)
            into.append(text)
        else:
            values[name] = text
        return stop

    return read


def _bytes_reader(field: Field) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = read_block(data, position, end)
        value: Buffer = data[position:stop]
        if len(value) < LONG_BLOCK:
            value = bytes(value)
        if repeated:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
        return stop

    return read


def _message_reader(field: Field, message: Message) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = read_block(data, position, end)
        value = message.read(data, position, stop)
        if repeated:
            into = values.setdefault(name, [])
            if len(into) >= MAX_MESSAGES:
                raise _too_many(name)
            into.append(value)
        elif name in values:  # sent in pieces, which protobuf allows
            _merge(message, values[name], value)
        else:
            values[name] = value
        return stop

    return read


def _map_reader(field: Field) -> Reader:
    name, entry = field.name, field.type
    assert isinstance(entry, Message)
    key, value = entry.fields
    no_key = _default(key)
    no_value = _default(value)

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = read_block(data, position, end)
        pair = entry.read(data, position, stop)
        mapped = values.setdefault(name, {})
        if len(mapped) >= MAX_MESSAGES:
            raise _too_many(name)
        mapped[pair.get("key", no_key)] = pair["value"] if "value" in pair else no_value()
        return stop

    return read


def _scalar_reader(field: Field) -> Reader:
    name, repeated = field.name, field.repeated
    one = number_reader(field.scalar)

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        value, position = one(data, position, end)
        if repeated:
            _list(values, name).append(value)
        else:
            values[name] = value
        return position

    return read


def _packed_reader(field: Field) -> Reader:
    name, kind = field.name, field.scalar
    one = number_reader(kind)

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = read_block(data, position, end)
        if stop - position >= LONG_BLOCK:
            many = read_numbers(data[position:stop], kind)
            values[name] = _joined(values[name], many) if name in values else many
            return stop
        into = _list(values, name)
        while position < stop:
            value, position = one(data, position, stop)
            into.append(value)
        return stop

    return read


def _list(values: Values, name: str) -> list[Any]:
    found: Numbers = values.setdefault(name, [])
    if isinstance(found, list):
        return found
    made: list[Any] = found.tolist()
    values[name] = made
    return made


def _too_many(name: str) -> Malformed:
    return Malformed(f"more than {MAX_MESSAGES} {name}")


def _merge(message: Message, into: Values, values: Values) -> None:
    for field in message.fields:
        if field.name not in values:
            continue
        value = values[field.name]
        if field.name not in into:
            into[field.name] = value
            for other in _others(field, message.fields):
                into.pop(other, None)
        elif field.is_map:
            into[field.name].update(value)
        elif field.repeated:
            into[field.name] = _joined(into[field.name], value)
        elif isinstance(field.type, Message):
            _merge(field.type, into[field.name], value)
        else:
            into[field.name] = value


def _joined(first: Numbers, more: Numbers) -> list[Any]:
    """Both as one list, which is `first` if that is one: a field may come in many pieces."""
    joined: list[Any] = first if isinstance(first, list) else first.tolist()
    joined += more if isinstance(more, list) else more.tolist()
    return joined


def _default(field: Field) -> Any:
    """The default of a map's key; for its value, what makes the default."""
    if field.name == "key":
        return "" if field.type == "string" else 0
    if isinstance(field.type, Message):
        return dict
    return {"string": str, "bytes": bytes, "bool": bool}.get(str(field.type), int)


# Out


def _write(field: Field, value: Any, parts: list[Buffer]) -> int:
    kind = field.type
    if field.is_map:
        assert isinstance(kind, Message)
        return sum(
            [
                _write_block(field, kind, {"key": key, "value": one}, parts)
                for key, one in value.items()
            ]
        )
    if isinstance(kind, Message):
        if field.repeated:
            return sum([_write_block(field, kind, one, parts) for one in value])
        return _write_block(field, kind, value, parts)
    if kind == "string" or kind == "bytes":
        if field.repeated:
            return sum([_write_bytes(field, one, parts) for one in value])
        return _write_bytes(field, value, parts) if len(value) or field.oneof else 0
    if field.repeated:
        return _write_packed(field, value, parts) if len(value) else 0
    number = _number(field, value)
    if not number and not field.oneof:
        return 0
    data = _head(field, field.wire_type) + number_bytes(field.scalar, number)
    parts.append(data)
    return len(data)


def _write_block(
    field: Field, message: Message, values: Mapping[str, Any], parts: list[Buffer]
) -> int:
    inner: list[Buffer] = []
    size = message.write(values, inner)
    head = _head(field, BLOCK) + varint(size)
    parts.append(head)
    parts += inner
    return len(head) + size


def _write_bytes(field: Field, value: str | Buffer, parts: list[Buffer]) -> int:
    # An error text may have lone surrogates, which are not UTF-8.
    data = value.encode(errors="replace") if isinstance(value, str) else value
    head = _head(field, BLOCK) + varint(len(data))
    parts.append(head)
    parts.append(data)
    return len(head) + len(data)


def _write_packed(field: Field, values: Sequence[Any], parts: list[Buffer]) -> int:
    block = b"".join([number_bytes(field.scalar, _number(field, value)) for value in values])
    head = _head(field, BLOCK) + varint(len(block))
    parts += (head, block)
    return len(head) + len(block)


def _number(field: Field, value: Any) -> int | float:
    """The number to send: in JSON form, an enumeration may be a name and 64 bits a text."""
    kind = field.type
    if isinstance(kind, Enum):
        return kind.numbers[value] if isinstance(value, str) else int(value)
    if field.scalar in FLOATS:
        return float(value)
    if kind == "bool":
        return bool(value)
    number = int(value)
    low, high = INTEGERS[field.scalar]
    if not low <= number <= high:
        raise BadModelOutput(f"{field.name}: {number} does not fit into {kind}")
    return number


def _head(field: Field, kind: int) -> bytes:
    return varint(field.number << 3 | kind)
