"""server/grpc/hpack.py against another implementation, in both directions."""

import random

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.server.grpc.hpack import (
    STATIC,
    Header,
    HeaderBomb,
    HeaderDecoder,
    HpackError,
    TooManyHeaders,
    header_bytes,
    huffman_decoded,
    literal,
)

ENOUGH = 2**20


def test_the_static_table_is_the_rfcs() -> None:
    assert list(STATIC) == list(HeaderTable.STATIC_TABLE)


def headers(dice: random.Random) -> list[Header]:
    names = [*(name for name, _ in STATIC), dice.randbytes(dice.randint(1, 20))]
    return [
        (dice.choice(names), dice.randbytes(dice.choice([0, 1, 30, 200, 2000])))
        for _ in range(dice.randint(1, 8))
    ]


@examples(0.5)
@given(st.integers(0, 2**32))
def test_any_headers_are_read_back_whatever_the_table_does(seed: int) -> None:
    dice = random.Random(seed)
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    seen: list[Header] = []
    for _ in range(10):
        if dice.random() < 0.2:
            encoder.header_table_size = dice.choice([0, 50, 1000, 4096])
        given_ = headers(dice) + dice.sample(seen, min(len(seen), 3))
        seen += given_
        assert decoder.decode(encoder.encode(given_, huffman=dice.random() < 0.5), ENOUGH) == given_


@examples(3)
@given(st.binary(max_size=60))
def test_any_bytes_are_headers_or_an_error(block: bytes) -> None:
    decoder = HeaderDecoder(200)
    for _ in range(3):
        try:
            decoder.decode(block, ENOUGH)
        except HpackError:
            return
        assert decoder._table_bytes == sum(len(n) + len(v) + 32 for n, v in decoder._entries) <= 200


@examples(2)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_huffman_text_or_an_error(data: bytes) -> None:
    encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    assert huffman_decoded(encoder.encode(data)) == data
    try:
        text = huffman_decoded(data)
    except HpackError:
        return
    assert encoder.encode(text) == data  # there is one way to write it


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xff\xff\xff", "no Huffman code"),  # the end's own code
        (b"\x1f\xff", "end in ones"),  # a whole byte of padding
        (b"\x18", "end in ones"),  # padding of zeros
    ],
)
def test_a_huffman_text_ends_in_less_than_a_byte_of_ones(data: bytes, problem: str) -> None:
    with pytest.raises(HpackError, match=problem):
        huffman_decoded(data)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"\x80", "an index"),
        (b"\xbe", "an index"),
        (b"\xff\xff\xff\xff\xff\x0f", "too large"),
        (b"\xff\x80\x80\x80\x80\x80\x01", "too large"),
        (b"\xff", "cut off"),
        (b"\x40\x05abc", "cut off"),
        (b"\x40\x01a", "cut off"),
        (b"\x82\x20", "behind a header"),
        (b"\x00\x00\x00\x20", "behind a header"),
        (b"\x20\x3f\x01\x20", "size update too many"),
        (b"\x7f" + b"\x80" * 50 + b"\x01", "a number that is too large"),
        (b"\x00\x7f" + b"\xff" * 50, "a number that is too large"),
        (b"\x3f\xe2\x1f", "a table of 4097 bytes"),
    ],
)
def test_what_is_no_header_block_is_said(block: bytes, problem: str) -> None:
    with pytest.raises(HpackError, match=problem):
        HeaderDecoder().decode(block, ENOUGH)


def test_the_version_tells_of_every_change_of_the_table() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x82\x84" + literal(b"a", b"b"), ENOUGH)
    assert decoder.version == 0
    decoder.decode(b"\x40\x01a\x01b", ENOUGH)
    assert decoder.version == 1
    assert decoder.decode(b"\xbe", ENOUGH) == [(b"a", b"b")]
    assert decoder.version == 1
    decoder.decode(b"\x20", ENOUGH)
    assert decoder.version == 2
    assert repr(decoder) == "<HeaderDecoder: 0 entries, 0 bytes>"


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = HeaderDecoder(100)
    decoder.decode(b"\x40\x01a\x01b\x40\x01a" + b"\x7f\x01" + b"x" * 128, ENOUGH)
    with pytest.raises(HpackError, match="an index"):
        decoder.decode(b"\xbe", ENOUGH)


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 255, 300, 20_000])
def test_a_literal_is_read_by_others_and_changes_no_table(length: int) -> None:
    decoder = hpack.Decoder()
    name, value = b"n" * max(length, 1), b"v" * length
    assert decoder.decode(literal(name, value), raw=True) == [(name, value)]
    assert len(decoder.header_table.dynamic_entries) == 0


def inserted(size: int) -> bytes:
    """A header that goes into the table and counts for `size` there."""
    return b"\x40\x01n" + literal(b"", b"v" * (size - 33))[2:]


BOMBS = {
    "a large entry": (inserted(4000), b"\xbe"),
    "many small entries": (b"".join(inserted(33) for _ in range(120)), bytes(range(0xBE, 0xFE))),
    "the static table": (b"", b"\x90"),
    "empty literals": (b"", b"\0\0\0"),
    "names of the table": (inserted(4000), b"\x0f\x2f\x00"),
    "inserted from the table": (inserted(1900), b"\x7e\x00"),
    "huffman": (b"", b"\0\x81\x1f\x8a" + 10 * b"\0"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_is_beyond_the_limit_is_not_kept_and_a_bomb_not_read(bomb: str) -> None:
    first, again = BOMBS[bomb]
    decoder = HeaderDecoder()
    if first:
        decoder.decode(first, ENOUGH)
    one = header_bytes(decoder.decode(again, ENOUGH))
    limit = 10 * one
    assert header_bytes(decoder.decode(10 * again, limit)) == limit
    with pytest.raises(TooManyHeaders) as error:
        decoder.decode(11 * again, limit)
    assert error.value.size == 11 * one
    with pytest.raises(TooManyHeaders):
        decoder.decode(20 * again, limit)
    with pytest.raises(HeaderBomb):
        decoder.decode(21 * again, limit)


def test_too_many_headers_are_read_to_the_end_for_the_tables_sake() -> None:
    decoder = HeaderDecoder()
    with pytest.raises(TooManyHeaders):
        decoder.decode(b"\x90" + b"\x40\x01a\x01b", 60)
    assert decoder.decode(b"\xbe", 60) == [(b"a", b"b")]
