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
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wherry.frontends.offload import LARGE_BYTES, SLICE_BYTES, give_way
from wherry.values.errors import BadModelOutput, InvalidRequest

Buffer = bytes | bytearray | memoryview
Values = dict[str, Any]
#: Values of a repeated field: an array if they came as one long block.
Numbers = list[Any] | npt.NDArray[Any]
#: Reads what stands at a position of the data into the values; returns the position behind it.
Reader = Callable[[memoryview, int, int, Values], int]

VARINT, FIXED64, BLOCK, FIXED32 = 0, 1, 2, 5

#: From so many bytes on numpy reads a block of numbers faster than a loop does, and a view costs
#: less than a copy.
_LONG_BLOCK: Final = 64
#: Bytes of a block of varints that are read at once: it takes five arrays of 64 bits.
_SLICE: Final = 2**16
#: Of one field. Two bytes make an empty one: without a limit, a request of megabytes would become
#: gigabytes of objects.
MAX_MESSAGES: Final = 1024
#: A message of at most this many fields is read without giving way to other threads.
LIGHT_FIELDS: Final = 128
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_INTEGERS: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


class Malformed(InvalidRequest):
    """The bytes are no message of this kind."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"failed to parse the request message: {problem}")


class Enum:
    """The numbers of an enumeration's names."""

    def __init__(self, name: str, numbers: Mapping[str, int]) -> None:
        self.name = name
        self.numbers = dict(numbers)


class Field:
    """One field of a message. `type` is a scalar's name, an Enum, or a Message."""

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
        self.repeated = repeated
        #: `type` is then the message of an entry: key and value.
        self.is_map = is_map
        self.oneof = oneof

    def __repr__(self) -> str:
        return f"<Field {self.name} = {self.number}>"


class Message:
    """One kind of message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: list[Field] = []
        self._readers: dict[int, Reader] = {}

    def __repr__(self) -> str:
        return f"<Message {self.name}>"

    def add(self, fields: Iterable[Field]) -> None:
        """Once every type that the fields name is known."""
        self.fields += fields
        for field in self.fields:
            self._readers.update(_readers(field, self.fields))

    def decode(self, data: Buffer) -> Values:
        """Malformed if these bytes are no such message."""
        view = memoryview(data)
        try:
            return self.read(view, 0, len(view))
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise Malformed(f"{self.name}: {error}") from None

    def is_light(self, data: Buffer, heavy: str) -> bool:
        """Is most of a large message in a few values of its `bytes` field `heavy`, which are read
        where they are? Malformed bytes are not."""
        tag = next(field.number for field in self.fields if field.name == heavy) << 3 | BLOCK
        view = memoryview(data)
        position, end = 0, len(view)
        rest = fields = 0
        while position < end and rest <= LARGE_BYTES and fields < LIGHT_FIELDS:
            fields += 1
            begin = position
            try:
                found, position = _varint(view, position, end)
                position = _skip(view, position, end, found)
            except Malformed:
                return False
            if found != tag:
                rest += position - begin
        return position == end and rest <= LARGE_BYTES

    def read(self, data: memoryview, position: int, end: int) -> Values:
        values: Values = {}
        readers = self._readers
        while position < end:
            stop = end if end - position <= SLICE_BYTES else position + SLICE_BYTES
            while position < stop:
                tag = data[position]
                position += 1
                if tag > 0x7F:
                    tag, position = _varint(data, position - 1, end)
                reader = readers.get(tag)
                if reader is None:
                    position = _skip(data, position, end, tag)
                else:
                    position = reader(data, position, end, values)
            if position < end:
                give_way()
        if position != end:
            raise Malformed(f"{self.name} is cut off")
        return values

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Names that the message does not have are left out; so are defaults, as protobuf does.

        Buffers (`bytes` fields) are copied once, into the message.
        """
        return b"".join(self.parts(values))

    def parts(self, values: Mapping[str, Any]) -> list[Buffer]:
        """What `encode` joins."""
        parts: list[Buffer] = []
        self.write(values, parts)
        return parts

    def write(self, values: Mapping[str, Any], parts: list[Buffer]) -> int:
        """Append the message's pieces to `parts`; returns their length."""
        size = 0
        for field in self.fields:
            value = values.get(field.name)
            if value is not None:
                size += _write(field, value, parts)
        return size


# In


def _readers(field: Field, siblings: Sequence[Field]) -> dict[int, Reader]:
    """What reads the field, by tag: packed and not, protobuf may send numbers in both ways."""
    kind = field.type
    number = field.number << 3
    if field.is_map:
        return {number | BLOCK: _map_reader(field)}
    if isinstance(kind, Message):
        return {number | BLOCK: _message_reader(field, kind)}
    if kind == "string":
        return {number | BLOCK: _string_reader(field, _others(field, siblings))}
    if kind == "bytes":
        return {number | BLOCK: _bytes_reader(field, _others(field, siblings))}
    wire_type = {"float": FIXED32, "double": FIXED64}.get(str(kind), VARINT)
    if not field.repeated:
        return {number | wire_type: _scalar_reader(field, _others(field, siblings))}
    return {
        number | wire_type: _scalar_reader(field, ()),
        number | BLOCK: _packed_reader(field),
    }


def _others(field: Field, siblings: Sequence[Field]) -> tuple[str, ...]:
    """The fields of the same `oneof`: the last one on the wire is the one that counts."""
    if not field.oneof:
        return ()
    return tuple(f.name for f in siblings if f.oneof == field.oneof and f is not field)


def _string_reader(field: Field, others: tuple[str, ...]) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = _block(data, position, end)
        text = str(data[position:stop], "utf-8")
        if repeated:
            values.setdefault(name, []).append(text)
        else:
            values[name] = text
            for other in others:
                values.pop(other, None)
        return stop

    return read


def _bytes_reader(field: Field, others: tuple[str, ...]) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = _block(data, position, end)
        value: Buffer = data[position:stop]
        if len(value) < _LONG_BLOCK:
            value = bytes(value)
        if repeated:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
            for other in others:
                values.pop(other, None)
        return stop

    return read


def _message_reader(field: Field, message: Message) -> Reader:
    name, repeated = field.name, field.repeated

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = _block(data, position, end)
        value = message.read(data, position, stop)
        if repeated:
            _append(values, name, value)
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
        position, stop = _block(data, position, end)
        pair = entry.read(data, position, stop)
        mapped = values.setdefault(name, {})
        if len(mapped) >= MAX_MESSAGES:
            raise _too_many(name)
        mapped[pair.get("key", no_key)] = pair["value"] if "value" in pair else no_value()
        return stop

    return read


def _scalar_reader(field: Field, others: tuple[str, ...]) -> Reader:
    name, repeated = field.name, field.repeated
    one = _reader_of_one(field.type)

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        value, position = one(data, position, end)
        if repeated:
            into = values.setdefault(name, [])
            if not isinstance(into, list):
                into = values[name] = into.tolist()
            into.append(value)
        else:
            values[name] = value
            for other in others:
                values.pop(other, None)
        return position

    return read


def _packed_reader(field: Field) -> Reader:
    name, kind = field.name, field.type
    one = _reader_of_one(kind)

    def read(data: memoryview, position: int, end: int, values: Values) -> int:
        position, stop = _block(data, position, end)
        if stop - position >= _LONG_BLOCK:
            many = _many(data[position:stop], kind)
            values[name] = _joined(values[name], many) if name in values else many
            return stop
        into = values.setdefault(name, [])
        if not isinstance(into, list):
            into = values[name] = into.tolist()
        while position < stop:
            value, position = one(data, position, stop)
            into.append(value)
        return stop

    return read


def _append(values: Values, name: str, value: Values) -> None:
    into = values.setdefault(name, [])
    if len(into) >= MAX_MESSAGES:
        raise _too_many(name)
    into.append(value)


def _too_many(name: str) -> Malformed:
    return Malformed(f"more than {MAX_MESSAGES} {name}")


def _reader_of_one(kind: str | Enum | Message) -> Callable[[memoryview, int, int], tuple[Any, int]]:
    if isinstance(kind, str) and kind in _FLOATS:
        form = _FLOATS[kind]

        def read_float(data: memoryview, position: int, end: int) -> tuple[Any, int]:
            if position + form.size > end:
                raise Malformed(f"a {kind} is cut off")
            return form.unpack_from(data, position)[0], position + form.size

        return read_float
    convert = _integer(kind)

    def read_varint(data: memoryview, position: int, end: int) -> tuple[Any, int]:
        value, position = _varint(data, position, end)
        return convert(value), position

    return read_varint


def _integer(kind: str | Enum | Message) -> Callable[[int], Any]:
    """From the 64 bits on the wire; a 32-bit field has the lower half of them."""
    if kind == "bool":
        return bool
    if kind == "uint64":
        return int
    if kind == "uint32":
        return lambda value: value & 0xFFFFFFFF
    if kind == "int64":
        return lambda value: value - (1 << 64) if value >> 63 else value
    # int32 and enumerations
    return lambda value: ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _many(block: memoryview, kind: str | Enum | Message) -> npt.NDArray[Any]:
    """All numbers of a long packed block."""
    if isinstance(kind, str) and kind in _FLOATS:
        form = _FLOATS[kind]
        if len(block) % form.size:
            raise Malformed(f"a {kind} is cut off")
        return np.frombuffer(block, f"<f{form.size}")
    raw = np.frombuffer(block, np.uint8)
    pieces = []
    while len(raw) > _SLICE:
        ends = np.flatnonzero(raw[_SLICE - 10 : _SLICE] < 0x80)
        if not len(ends):
            raise Malformed("a number is longer than ten bytes")
        cut = _SLICE - 10 + int(ends[-1]) + 1
        pieces.append(_varints(raw[:cut], kind))
        raw = raw[cut:]
        give_way()
    last = _varints(raw, kind)
    return np.concatenate([*pieces, last]) if pieces else last


def _varints(raw: npt.NDArray[np.uint8], kind: str | Enum | Message) -> npt.NDArray[Any]:
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        raise Malformed("a number is cut off")
    first = np.concatenate(([0], last[:-1] + 1))
    sizes = last - first + 1
    longest = int(sizes.max())
    if longest > 10:
        raise Malformed("a number is longer than ten bytes")
    numbers = np.zeros(len(last), np.uint64)
    for place in range(longest):
        has = sizes > place
        bits = (raw[first[has] + place] & 0x7F).astype(np.uint64)
        numbers[has] |= bits << np.uint64(7 * place)
    if kind == "bool":
        return numbers.astype(np.bool_)
    if kind == "int64":
        return numbers.view(np.int64)
    if kind == "uint64":
        return numbers
    halves = numbers.astype(np.uint32)
    return halves if kind == "uint32" else halves.view(np.int32)


def _varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift == 70:
            raise Malformed("a number is longer than ten bytes")
    raise Malformed("a number is cut off")


def _block(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Where the length-prefixed block at `position` begins and ends."""
    if position < end and data[position] < 0x80:
        size = data[position]
        position += 1
    else:
        size, position = _varint(data, position, end)
    if size > end - position:
        raise Malformed(f"a field says that it has {size} bytes, but only {end - position} follow")
    return position, position + size


def _skip(data: memoryview, position: int, end: int, tag: int) -> int:
    """Over a field that we do not know."""
    wire_type = tag & 7
    if not tag >> 3:
        raise Malformed("a field has the number 0")
    if wire_type == VARINT:
        return _varint(data, position, end)[1]
    if wire_type == BLOCK:
        return _block(data, position, end)[1]
    if wire_type == FIXED64:
        return position + 8
    if wire_type == FIXED32:
        return position + 4
    raise Malformed(f"a field has the wire type {wire_type}")


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
    """One behind the other, in the first if it is a list: a field may come in many pieces."""
    joined: list[Any] = first if isinstance(first, list) else first.tolist()
    joined += more if isinstance(more, list) else more.tolist()
    return joined


def _default(field: Field) -> Any:
    """What a map's key is if it was not sent; what makes its value (a dict must be a new one)."""
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
    data = _head(field) + number_bytes(kind, number)
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
    # An error text may quote anything, lone surrogates included, which are no UTF-8.
    data = value.encode(errors="replace") if isinstance(value, str) else value
    head = _head(field, BLOCK) + varint(len(data))
    parts.append(head)
    parts.append(data)
    return len(head) + len(data)


def _write_packed(field: Field, values: Sequence[Any], parts: list[Buffer]) -> int:
    kind = field.type
    block = b"".join([number_bytes(kind, _number(field, value)) for value in values])
    head = _head(field, BLOCK) + varint(len(block))
    parts += (head, block)
    return len(head) + len(block)


def _number(field: Field, value: Any) -> int | float:
    """JSON may say an enumeration by its name, and a number of 64 bits as a text."""
    kind = field.type
    if isinstance(kind, Enum):
        return kind.numbers[value] if isinstance(value, str) else int(value)
    if kind in _FLOATS:
        return float(value)
    if kind == "bool":
        return bool(value)
    number = int(value)
    low, high = _INTEGERS[str(kind)]
    if not low <= number <= high:
        raise BadModelOutput(f"{field.name}: {number} does not fit into {kind}")
    return number


def number_bytes(kind: str | Enum | Message, number: float) -> bytes:
    if isinstance(kind, str) and kind in _FLOATS:
        return _FLOATS[kind].pack(number)
    return varint(int(number) & 0xFFFFFFFFFFFFFFFF)


def varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = [bytes([value]) for value in range(0x80)]


def _head(field: Field, wire_type: int | None = None) -> bytes:
    if wire_type is None:
        wire_type = {"float": FIXED32, "double": FIXED64}.get(str(field.type), VARINT)
    return varint(field.number << 3 | wire_type)
