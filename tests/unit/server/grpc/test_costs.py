"""What gRPC's parsers cost: twice the bytes, at most 2.5 times the CPU, whatever they say."""

import asyncio
import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.costs import assert_linear
from tests.unit.server.grpc.raw import LIMITS, MANY, ManualApplication, Peer
from wherry.core.values.errors import InvalidRequest
from wherry.core.values.request import InferResponse
from wherry.server.calls.parameters import HeaderForwarding
from wherry.server.connections.held import KeptBuffers
from wherry.server.connections.limits import Limits
from wherry.server.grpc import frames, proto
from wherry.server.grpc.frames import frame, header_frames, window_update
from wherry.server.grpc.heads import CODINGS, Head, Refusal, percent_encoded
from wherry.server.grpc.hpack import HeaderDecoder, HpackError, TooManyHeaders, literal
from wherry.server.grpc.messages import Assembly, BadMessage
from wherry.server.grpc.wire_numbers import BLOCK, varint
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.grpc.infer_codec import InferCodec
from wherry.server.v2.model_tensors import ModelTensors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

Bytes = Callable[[int], bytes]


def repeated(*pieces: bytes) -> Bytes:
    """About `n` bytes of these, again and again."""
    whole = b"".join(pieces)
    return lambda n: whole * max(1, n // len(whole))


def numbered(text: str) -> Bytes:
    def make(n: int) -> bytes:
        count = max(1, n // (len(text) + 4))
        return b"".join(text.format(i=i).encode() for i in range(count))

    return make


# HPACK

BIG_ENTRY = b"\x40\x01x" + literal(b"", b"v" * 4000)[2:]
SMALL_ENTRIES = b"".join(b"\x40\x01x\x01" + bytes([i]) for i in range(120))

BLOCKS: dict[str, Bytes] = {
    "references to a large entry": lambda n: BIG_ENTRY + b"\xbe" * n,
    "references to all of a full table": lambda n: (
        SMALL_ENTRIES + bytes(range(0xBE, 0xFE)) * (n // 64)
    ),
    "references to the last entry": lambda n: SMALL_ENTRIES + b"\xff\x30" * (n // 2),
    "static references": repeated(b"\x90"),
    "empty literals": repeated(b"\0\0\0"),
    "insertions that evict one": repeated(b"\x40\x01a\x01b"),
    "insertions that evict all": repeated(SMALL_ENTRIES, BIG_ENTRY),
    "insertions of what the table has": lambda n: BIG_ENTRY + b"\x7e\x00" * (n // 2),
    "table size updates": repeated(b"\x20\x3f\xe1\x1f"),
    "one huffman string": lambda n: b"\0\x01n" + _huffman(b"\x00" * n),
    "short huffman strings": repeated(b"\0\x81\x1f\x81\x1f"),
    "one long literal": lambda n: literal(b"n", b"v" * n),
    "integers with zeros": repeated(b"\xff\x80\x80\x80\x00"),
    "integers without end": repeated(b"\xff\x80\x80\x80\x80\x80\x80"),
    "random bytes": lambda n: random.Random(n).randbytes(n),
}


def _huffman(data: bytes) -> bytes:
    """A string that says of itself to be Huffman's; `data` are its bytes."""
    head = bytearray(literal(b"", data)[2 : -len(data) or None])
    head[0] |= 0x80
    return bytes(head) + data


@pytest.mark.parametrize("limit", [2**16, 2**40])
@pytest.mark.parametrize("shape", BLOCKS)
def test_a_header_block(shape: str, limit: int) -> None:
    def decode(block: bytes) -> None:
        with contextlib.suppress(HpackError, TooManyHeaders):
            HeaderDecoder().decode(block, limit)

    assert_linear(decode, BLOCKS[shape], largest=2**18)


HEADS: dict[str, Bytes] = {
    "many names": numbered("x{i}: v\n"),
    "one name again and again": repeated(b"x: v\n"),
    "te again and again": repeated(b"te: trailers\n"),
    "binary metadata": numbered("x{i}-bin: AAAA\n"),
    "names of grpc": numbered("grpc-x{i}: v\n"),
    "a long name": lambda n: b"x" * n + b": v\n",
    "a long value": lambda n: b"x: " + b"v" * n + b"\n",
    "a long timeout": lambda n: b"grpc-timeout: " + b"1" * n + b"\n",
    "a long content type": lambda n: b"content-type: application/grpc" + b";" * n + b"\n",
    "encodings to accept": lambda n: b"grpc-accept-encoding: " + b"a," * (n // 2) + b"\n",
    "spaces to accept": lambda n: b"grpc-accept-encoding: " + b" " * n + b"\n",
    "a long path": lambda n: b":path: /" + b"%2f" * (n // 3) + b"\n",
}


@pytest.mark.parametrize("shape", HEADS)
def test_the_head_of_a_call(shape: str) -> None:
    own = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b")]

    def make(n: int) -> list[tuple[bytes, bytes]]:
        lines = HEADS[shape](n).split(b"\n")[:-1]
        fields = [(line.rpartition(b": ")[0], line.rpartition(b": ")[2]) for line in lines]
        kept = own[:2] if shape == "a long path" else own
        return [*kept, *fields, (b"content-type", b"application/grpc")]

    def read(headers: list[tuple[bytes, bytes]]) -> None:
        with contextlib.suppress(Refusal, frames.StreamFault):
            head = Head(headers)
            for coding in CODINGS:
                head.best_coding(coding)

    assert_linear(read, make)


@pytest.mark.parametrize("text", ["%", "é", "\n", "a", "\ud800"])
def test_an_errors_text(text: str) -> None:
    assert_linear(percent_encoded, lambda n: text * n)


def test_headers_that_may_be_forwarded() -> None:
    forwarding = HeaderForwarding("^x-(a|b)+$|.*secret")
    assert_linear(
        forwarding.of,
        lambda n: {f"x-{'ab' * 10}{i}": "v" for i in range(n // 24)},
    )


# Frames

SETTINGS = frame(frames.SETTINGS, 0, 0, b"")
OPEN = header_frames(
    1,
    0,
    b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", MANY.encode()),
            (b"content-type", b"application/grpc"),
        )
    ),
    2**14,
)  # fmt: skip
NARROW = frame(frames.SETTINGS, 0, 0, b"\x00\x04\x00\x00\x00\x00")


def opened(count: int) -> bytes:
    return b"".join(OPEN.replace(b"\0\0\0\x01", (2 * i + 1).to_bytes(4), 1) for i in range(count))


FLOODS: dict[str, Bytes] = {
    "pings": repeated(frame(frames.PING, 0, 0, b"12345678")),
    "answers to pings": repeated(frame(frames.PING, frames.ACK, 0, b"12345678")),
    "settings": repeated(frame(frames.SETTINGS, 0, 0, b"")),
    "a window for all calls": lambda n: opened(256) + NARROW * (n // len(NARROW)),
    "settings of many": lambda n: frame(
        frames.SETTINGS, 0, 0, b"\x00\x09\x00\x00\x00\x00" * (n // 6)
    ),
    "priorities": repeated(frame(frames.PRIORITY, 0, 1, bytes(5))),
    "unknown frames": repeated(frame(99, 0, 1, b"")),
    "windows of one byte": repeated(window_update(0, 1)),
    "windows of calls": lambda n: OPEN + window_update(1, 1) * (n // 13),
    "windows of calls that are over": lambda n: (
        OPEN + frames.reset(1, 8) + window_update(1, 1) * (n // 13)
    ),
    "empty data": lambda n: OPEN + frame(frames.DATA, 0, 1, b"") * (n // 9),
    "data of one byte": lambda n: (
        OPEN + b"".join(frame(frames.DATA, 0, 1, b"\0") for _ in range(n // 10))
    ),
    "padding alone": lambda n: (
        OPEN + frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)) * (n // 265)
    ),
    "empty messages": lambda n: (
        OPEN + b"".join(frame(frames.DATA, 0, 1, bytes(500)) for _ in range(n // 509))
    ),
    "a message of one-byte frames": lambda n: (
        OPEN
        + frame(frames.DATA, 0, 1, b"\0" + n.to_bytes(4))
        + frame(frames.DATA, 0, 1, b"x") * (n // 10)
    ),
    "data on a call that is cut off": lambda n: (
        OPEN + window_update(1, 0) + frame(frames.DATA, 0, 1, b"x") * (n // 10)
    ),
    "continuations": lambda n: (
        frame(frames.HEADERS, 0, 1, b"\x83") + frame(frames.CONTINUATION, 0, 1, b"") * (n // 9)
    ),
    "continuations of one byte": lambda n: (
        frame(frames.HEADERS, 0, 1, b"\x83") + frame(frames.CONTINUATION, 0, 1, b"\x90") * (n // 10)
    ),
    "calls": lambda n: opened(n // len(OPEN)),
    "rapid resets": lambda n: b"".join(
        OPEN.replace(b"\0\0\0\x01", (2 * i + 1).to_bytes(4), 1) + frames.reset(2 * i + 1, 8)
        for i in range(n // (len(OPEN) + 13))
    ),
    "resets that we are made to send": lambda n: b"".join(
        OPEN.replace(b"\0\0\0\x01", (2 * i + 1).to_bytes(4), 1) + window_update(2 * i + 1, 0)
        for i in range(n // (len(OPEN) + 13))
    ),
    "calls of no method": lambda n: opened(n // len(OPEN)).replace(MANY.encode(), b"/t.T/None"),
    "resets of calls that are over": lambda n: OPEN + frames.reset(1, 8) * (n // 13),
    "random frames": lambda n: OPEN + random.Random(n).randbytes(n),
}


@pytest.mark.parametrize("at_once", [2**16, 7])
@pytest.mark.parametrize("shape", FLOODS)
def test_a_flood_of_frames(shape: str, at_once: int) -> None:
    def read(flood: bytes) -> None:
        async def connected() -> None:
            peer = Peer(ManualApplication(), greet=False, limits=LIMITS)
            peer.feed(frames.PREFACE + SETTINGS)
            await peer.feed_all(flood, at_once)
            peer.wire.close()
            await peer.connections.all_closed()

        asyncio.run(connected())

    assert_linear(read, FLOODS[shape], smallest=2**12, largest=2**19)


def test_a_frame_of_headers_that_comes_byte_by_byte() -> None:
    limits = Limits(max_header_bytes=2**20)

    def read(flood: bytes) -> None:
        async def connected() -> None:
            peer = Peer(ManualApplication(), greet=False, limits=limits)
            peer.feed(frames.PREFACE + SETTINGS)
            await peer.feed_all(flood, 1)
            peer.wire.close()
            await peer.connections.all_closed()

        asyncio.run(connected())

    assert_linear(
        read,
        lambda n: frame(frames.HEADERS, 0, 1, literal(b"x", b"v" * n)),
        smallest=2**12,
        largest=2**19,
    )


# Messages

MESSAGES: dict[str, Bytes] = {
    "empty ones": lambda n: bytes(n),
    "of one byte": repeated(b"\0\0\0\0\x01x"),
    "one": lambda n: b"\0" + n.to_bytes(4) + bytes(n),
    "announced again and again": repeated(b"\0\0\0\0\x09123456789"),
}


@pytest.mark.parametrize("at_once", [1, 3, 2**16])
@pytest.mark.parametrize("shape", MESSAGES)
def test_the_messages_of_a_stream(shape: str, at_once: int) -> None:
    def read(data: bytes) -> None:
        assembly, view = Assembly(2**30, KeptBuffers()), memoryview(data)
        with contextlib.suppress(BadMessage):
            for i in range(0, len(view), at_once):
                for _ in assembly.feed(view[i : i + at_once]):
                    pass

    assert_linear(read, MESSAGES[shape])


# Protobuf

SCHEMA = proto.load("v2.proto", "model_config.proto")
REQUEST = SCHEMA.messages["ModelInferRequest"]
RESPONSE = SCHEMA.messages["ModelInferResponse"]


def block(number: int, content: bytes) -> bytes:
    return varint(number << 3 | BLOCK) + varint(len(content)) + content


def nested(number: int) -> Bytes:
    """A message in itself, as deep as the bytes go."""

    def make(n: int) -> bytes:
        heads: list[bytes] = []
        size = 0
        while size < n:
            heads.append(varint(number << 3 | BLOCK) + varint(size))
            size += len(heads[-1])
        return b"".join(reversed(heads))

    return make


def contents(number: int, data: bytes) -> bytes:
    """An input with `contents`, of which one field is `data`."""
    return block(5, block(5, block(number, data)))


REQUESTS: dict[str, Bytes] = {
    "inputs": repeated(block(5, b"")),
    "raw contents": repeated(block(7, b"")),
    "raw contents of a byte": repeated(block(7, b"x")),
    "parameters": lambda n: b"".join(
        block(4, block(1, b"%d" % i) + block(2, b"\x08\x01")) for i in range(n // 16)
    ),
    "the same parameter": repeated(block(4, block(1, b"k") + block(2, b"\x08\x01"))),
    "the name again and again": repeated(block(1, b"m")),
    "unknown fields": repeated(b"\xf8\x07\x01"),
    "unknown blocks in themselves": nested(99),
    "unknown groups": repeated(b"\xfb\x07"),
    "inputs in themselves": nested(5),
    "an input in pieces": lambda n: block(5, repeated(block(5, block(2, b"\x01")))(n)),
    "pieces of long arrays": lambda n: block(5, repeated(block(5, block(3, b"\x01" * 100)))(n)),
    "pieces of one number": lambda n: block(5, block(5, b"\x10\x01" * (n // 2))),
    "long blocks and single numbers": lambda n: block(
        5, block(5, (block(2, b"\x01" * 100) + b"\x10\x01") * (n // 104))
    ),
    "long blocks": lambda n: block(5, block(5, block(3, b"\x01" * 64) * (n // 66))),
    "one long block": lambda n: contents(3, b"\x81\x01" * (n // 2)),
    "numbers of ten bytes": lambda n: contents(3, (b"\xff" * 9 + b"\x01") * (n // 10)),
    "short strings": lambda n: block(5, block(5, block(8, b"") * (n // 2))),
    "shapes": lambda n: block(5, b"\x18\x01" * (n // 2)),
    "shapes in long blocks": lambda n: block(5, block(3, b"\x01" * 70) * (n // 72)),
    "outputs with parameters": repeated(block(6, block(2, block(1, b"k")))),
    "a tag of zeros": lambda n: b"\x80" * n,
    "a oneof that changes": lambda n: block(4, block(2, b"\x08\x01\x10\x01" * (n // 4))),
    "random bytes": lambda n: random.Random(n).randbytes(n),
}


@pytest.mark.parametrize("shape", REQUESTS)
def test_a_message_of_protobuf(shape: str) -> None:
    def read(message: bytes) -> None:
        with contextlib.suppress(InvalidRequest):
            REQUEST.decode(message)

    assert_linear(read, REQUESTS[shape])


# Tensors


@wherry.model(max_batch_size=2**30)
def texts(x: list[str]) -> list[str]:
    raise NotImplementedError


@wherry.model(max_batch_size=2**30)
def blobs(x: list[bytes]) -> list[bytes]:
    raise NotImplementedError


@wherry.model(max_batch_size=2**30)
def lists(x: list[list[int]]) -> list[list[int]]:
    raise NotImplementedError


def numbers(datatype: str) -> wherry.Model:
    def execute(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise NotImplementedError

    kind = Annotated[np.ndarray, getattr(wherry, datatype)[-1]]
    execute.__annotations__ = dict.fromkeys(("x", "return"), kind)
    return wherry.model(name=datatype, max_batch_size=4)(execute)


def tensor(datatype: str, shape: list[int], inside: bytes = b"", raw: bytes | None = None) -> bytes:
    """A request with one input."""
    sizes = b"".join(block(3, varint(size)) for size in shape)
    given = block(1, b"x") + block(2, datatype.encode()) + sizes
    if raw is None:
        return block(5, given + block(5, inside))
    return block(5, given) + block(7, raw)


def strings(field: bool, element: bytes) -> Bytes:
    def make(n: int) -> bytes:
        if field:
            one = block(8, element)
            return tensor("BYTES", [n // len(one)], one * (n // len(one)))
        one = pack_bytes([element])
        return tensor("BYTES", [n // len(one)], raw=one * (n // len(one)))

    return make


def counted(datatype: str, bytes_each: int, make: Bytes) -> Bytes:
    """Contents whose elements take this number of bytes."""

    def request(n: int) -> bytes:
        inside = make(n)
        return tensor(datatype, [1, len(inside) // bytes_each], inside)

    return request


def in_blocks(number: int, element: bytes, elements: int) -> Bytes:
    """Packed blocks of `elements` elements each, one behind the other."""
    one = block(number, element * elements)
    return lambda n: one * (n // len(one))


def of_blocks(datatype: str, number: int, element: bytes, elements: int) -> Bytes:
    make = in_blocks(number, element, elements)
    one = len(block(number, element * elements))

    def request(n: int) -> bytes:
        inside = make(n)
        return tensor(datatype, [1, len(inside) // one * elements], inside)

    return request


TENSORS: dict[str, tuple[wherry.Model, Bytes]] = {
    **{
        f"{model.config().name}, {'contents' if field else 'raw'}, {len(element)} bytes": (
            model,
            strings(field, element),
        )
        for model in (texts, blobs)
        for field in (False, True)
        for element in (b"", b"x", b"xy", b"x" * 63, b"x" * 64, b"x" * 5000)
    },
    "lists, contents": (lists, strings(True, b"[1,2]")),
    "lists, raw": (lists, strings(False, b"[1,2]")),
    "empty lists": (lists, strings(True, b"[]")),
    "no lists": (lists, strings(True, b"[")),
    "no texts": (texts, strings(True, b"\xff")),
    "long blocks of int64": (numbers("INT64"), of_blocks("INT64", 3, b"\x81\x7f", 32)),
    "short blocks of int64": (numbers("INT64"), of_blocks("INT64", 3, b"\x81\x7f", 31)),
    "blocks of one": (numbers("INT64"), of_blocks("INT64", 3, b"\x81\x7f", 1)),
    "int64 one by one": (
        numbers("INT64"),
        counted("INT64", 3, lambda n: b"\x18\x81\x7f" * (n // 3)),
    ),
    "long blocks of floats": (numbers("FP32"), of_blocks("FP32", 6, b"\1\2\3\4", 16)),
    "short blocks of floats": (numbers("FP32"), of_blocks("FP32", 6, b"\1\2\3\4", 15)),
    "small integers out of their range": (numbers("INT8"), of_blocks("INT8", 2, b"\x81\x7f", 31)),
    "booleans": (numbers("BOOL"), of_blocks("BOOL", 1, b"\1", 60)),
    "raw booleans": (numbers("BOOL"), lambda n: tensor("BOOL", [1, n], raw=b"\1" * n)),
    "raw floats": (numbers("FP32"), lambda n: tensor("FP32", [1, n // 4], raw=bytes(n // 4 * 4))),
    "a wrong count": (texts, lambda n: tensor("BYTES", [1], block(8, b"x") * (n // 3))),
}


def reader(model: wherry.Model) -> Callable[[bytes], object]:
    config = model.config()
    codec = InferCodec(ModelTensors(config, model.signature(config.name)), RESPONSE)
    return lambda message: codec.decode(REQUEST.decode(message))


@pytest.mark.parametrize("shape", TENSORS)
def test_the_tensors_of_a_request(shape: str) -> None:
    model, make = TENSORS[shape]
    decode = reader(model)

    def read(message: bytes) -> None:
        with contextlib.suppress(InvalidRequest):
            decode(message)

    assert_linear(read, make)


@pytest.mark.parametrize("shape", TENSORS)
def test_the_memory_of_a_request_is_a_multiple_of_its_message(shape: str) -> None:
    model, make = TENSORS[shape]
    decode, message = reader(model), make(2**14)
    most = 40 if model in (texts, blobs, lists) else 24
    tracemalloc.start()
    with contextlib.suppress(InvalidRequest):
        decode(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= most * len(message), f"{peak / len(message):.1f} times"


@pytest.mark.parametrize("element", ["", "x", "x" * 5000, b"x", b"\xff" * 300])
def test_the_tensors_of_an_answer(element: str | bytes) -> None:
    model = blobs if isinstance(element, bytes) else texts
    config = model.config()
    codec = InferCodec(ModelTensors(config, model.signature(config.name)), RESPONSE)
    assert_linear(
        lambda column: codec.encode(InferResponse({"output": column})),
        lambda n: [element] * (n // (len(element) + 4)),
    )


@pytest.mark.parametrize(
    "text",
    [
        "/", "//", "{", '"', "a.",
        "message A {}", "message A { int32 a = 1; }", "enum E { A = 0; }",
        "message A { oneof o { int32 a = 1; } }", "message A { map<string, int32> a = 1; }",
    ],
)  # fmt: skip
def test_a_file_of_descriptions(text: str) -> None:
    def read(text: str) -> None:
        with contextlib.suppress(ValueError, StopIteration, RuntimeError):
            proto.parse(text)

    assert_linear(read, lambda n: 'syntax = "proto3";' + text * (n // len(text)), largest=2**18)
