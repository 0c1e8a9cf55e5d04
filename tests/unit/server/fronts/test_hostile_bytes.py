"""Are bytes that are not a message known as such?"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests.properties import examples
from wherry.core.workers.encoding import Garbage, MessageDecoder, MessageEncoder
from wherry.server.fronts.link_protocol import (
    CancelRows,
    Consumed,
    FromFront,
    FromOwner,
    Hello,
    OneRequest,
    Rows,
)

MOST = 2**20
DECODERS = [MessageDecoder(kind, copies=False) for kind in (FromFront, FromOwner)]


@wherry.model
def double(
    x: Annotated[np.ndarray, wherry.FP32[2]], text: str = ""
) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return 2 * x


@wherry.model(max_batch_size=8)
def hello(name: list[str]) -> list[str]:
    return [f"hello {one}" for one in name]


# Bytes


def bodies() -> list[bytes]:
    """The bodies of messages that are right, to be spoilt."""
    encoder = MessageEncoder(inline=True)
    x = np.zeros((2, 2), np.float32)
    messages = [
        Hello("front"),
        Rows(0, 0, 2, {"x": x, "name": ["a", "b"]}, ""),
        OneRequest(0, 1, 1, {"x": x}, "", "id", 1.0, 0, {"a": [1]}, None, ["y"], False),
        CancelRows(0, [1, 2]),
        Consumed(0, 1, 1),
    ]
    return [encoder.frame(one, slab=False)[12:] for one in messages]


@examples(30)
@given(
    st.sampled_from(bodies()),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8),
    st.integers(0, 10**6),
)
def test_a_spoilt_message_is_decoded_or_garbage(
    body: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    spoilt = bytearray(body)
    for place, value in changes:
        spoilt[place % len(spoilt)] = value
    data = memoryview(spoilt[: cut % (len(spoilt) + 1) or None])
    for decoder in DECODERS:
        with suppress(Garbage):
            decoder.decode(data)


def array(dtype: bytes, shape: tuple[int, ...], data: bytes = b"", where: int = 0) -> Any:
    """An array as an attacker may write it."""
    head = struct.pack("<B8sB", where, dtype, len(shape))
    return msgspec.msgpack.Ext(1, head + struct.pack(f"<{len(shape)}Q", *shape) + data)


@pytest.mark.parametrize(
    "column",
    [
        array(b"<f4", (2**40,)),
        array(b"<f4", (2**63, 2**63)),
        array(b"<f4", (-1 % 2**64, 4), bytes(16)),
        array(b"|O", (1,), bytes(8)),
        array(b"nonsense", (1,), bytes(8)),
        array(b"<f4", (4,), bytes(15)),
        array(b"<f4", (1,), bytes(8), where=1),
        array(b"<f4", (1,), bytes(8), where=2),
        array(b"<f4", (1,) * 255, bytes(4)),
        msgspec.msgpack.Ext(2, b"x"),
        msgspec.msgpack.Ext(1, b""),
    ],
)
def test_an_array_that_cannot_be_is_garbage(column: Any) -> None:
    body = msgspec.msgpack.encode(["Rows", 0, 0, 1, {"x": column}, ""])
    with pytest.raises(Garbage):
        MessageDecoder(FromFront, copies=False).decode(memoryview(body))


def test_deep_nesting_is_garbage() -> None:
    body = msgspec.msgpack.encode(["Rows", 0, 0, 1, {"x": 0}, ""])
    deep = body.replace(b"\xa1x\x00", b"\xa1x" + b"\x91" * 100_000 + b"\x00")
    with pytest.raises(Garbage):
        MessageDecoder(FromFront, copies=False).decode(memoryview(deep))
