"""server/grpc/messages.py"""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.unit.server.grpc.raw import prefixed
from wherry.server.connections.kept_buffers import KeptBuffers
from wherry.server.grpc.messages import Assembly, BadMessage, Message, packed, unpacked


@examples(2)
@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.integers(1, 20), max_size=40))
def test_however_a_stream_is_cut_its_messages_are_the_same(
    texts: list[bytes], cuts: list[int]
) -> None:
    assembly = Assembly(50, KeptBuffers())
    data = b"".join(map(prefixed, texts))
    found: list[Message] = []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        place = assembly.place()
        if place is not None and len(piece) % 2:
            fits = piece[: len(place)]
            place[: len(fits)] = fits
            found += assembly.placed(len(fits))
            piece = piece[len(fits) :]
        found += assembly.feed(memoryview(piece))
    assert [(flag, bytes(message)) for flag, message in found] == [(False, t) for t in texts]
    assert assembly.between
    assert assembly.missing == 0


def test_a_message_says_what_it_lacks() -> None:
    assembly = Assembly(1000, KeptBuffers())
    assert list(assembly.feed(memoryview(b"\0\0"))) == []
    assert (assembly.between, assembly.missing) == (False, 0)
    assert list(assembly.feed(memoryview(b"\0\0\x0aab"))) == []
    assert (assembly.between, assembly.missing) == (False, 8)


def test_a_message_over_the_limit_is_refused_at_its_length() -> None:
    with pytest.raises(BadMessage, match=r"larger than max \(101 vs. 100 bytes\)"):
        list(Assembly(100, KeptBuffers()).feed(memoryview(b"\0\0\0\0\x65")))
    assert list(Assembly(100, KeptBuffers()).feed(memoryview(prefixed(bytes(100))))) == [
        (False, bytes(100))
    ]


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(BadMessage, match="larger than max") as caught:
        unpacked(bomb, "deflate", 1000)
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert unpacked(zlib.compress(bytes(1000)), "deflate", 1000) == bytes(1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_packed_is_unpacked_again_and_short_ones_are_left(coding: str) -> None:
    text = b"text" * 1000
    prefix, (payload,), size = packed([text[:5], text[5:]], coding)
    assert prefix == bytes([1]) + len(payload).to_bytes(4)
    assert size == len(prefix) + len(payload)
    assert len(payload) < 1000
    assert unpacked(payload, coding, 4000) == text
    assert packed([b"short"], coding) == (b"\0\0\0\0\x05", [b"short"], 10)
    assert packed([text], "identity") == (b"\0\0\0\x0f\xa0", [text], 4005)
