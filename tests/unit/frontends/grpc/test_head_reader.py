"""frontends/grpc/head_reader.py, against blocks that hpack writes."""

import hpack
import pytest

from tests.unit.frontends.grpc.raw import ONE
from wherry.frontends.grpc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from wherry.frontends.grpc.head_reader import REMEMBERED_BYTES, HeadReader
from wherry.frontends.grpc.hpack import TooManyHeaders, literal
from wherry.frontends.grpc.work import HEADERS_A_FRAME, ClientWork, TurnBudget

HEAD = [
    (":method", "POST"), (":scheme", "http"), (":path", ONE), ("content-type", "application/grpc"),
]  # fmt: skip


@pytest.fixture
def work() -> ClientWork:
    return ClientWork(TurnBudget())


@pytest.fixture
def reader(work: ClientWork) -> HeadReader:
    return HeadReader(work, 4000)


def test_an_equal_block_is_read_once_while_the_table_stays(reader: HeadReader) -> None:
    encoder = hpack.Encoder()
    first = reader.head(encoder.encode(HEAD))  # puts its headers into the table
    block = encoder.encode(HEAD)
    again = reader.head(block)
    assert again is not first
    assert reader.head(block) is again
    assert again.path == first.path == ONE


def test_a_changed_table_forgets_every_head(reader: HeadReader) -> None:
    encoder = hpack.Encoder()
    reader.head(encoder.encode(HEAD))
    block = encoder.encode(HEAD)
    reader.head(block)
    assert len(reader.remembered) == 1
    reader.head(encoder.encode([*HEAD, ("x-new", "1")]))
    assert len(reader.remembered) == 0


@pytest.mark.parametrize("value_bytes", [1, 1000, 3500])
def test_no_more_heads_are_remembered_than_are_of_use(reader: HeadReader, value_bytes: int) -> None:
    encoder = hpack.Encoder()
    reader.head(encoder.encode(HEAD))
    block = encoder.encode(HEAD)  # all of it is in the table now
    values = [f"{n:0{value_bytes}}" for n in range(300)]
    for value in values:
        head = reader.head(block + literal(b"n", value.encode()))
        assert head.metadata["n"] == value
        size = sum(
            len(name) + len(value) + 32
            for head_ in reader.remembered
            for name, value in head_.metadata.items()
        )
        assert 0 < size <= REMEMBERED_BYTES


def test_only_headers_that_are_decoded_count_as_work(reader: HeadReader, work: ClientWork) -> None:
    encoder = hpack.Encoder()
    many = [*HEAD, *((f"x-{n}", "1") for n in range(16))]
    reader.head(encoder.encode(many))
    block = encoder.encode(many)
    reader.head(block)
    spent = work.done
    assert spent == 2 * (len(many) // HEADERS_A_FRAME)
    reader.head(block)
    assert work.done == spent


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff", COMPRESSION_ERROR),
        (b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 3, ENHANCE_YOUR_CALM),
    ],
    ids=["what is no HPACK", "a bomb"],
)
def test_after_a_block_that_is_not_decoded_the_connection_ends(
    reader: HeadReader, block: bytes, code: int
) -> None:
    with pytest.raises(ConnectionFault) as caught:
        reader.head(block)
    assert caught.value.code == code


def test_a_block_over_the_limit_keeps_the_table(reader: HeadReader) -> None:
    encoder = hpack.Encoder()
    large = encoder.encode([*HEAD, ("x-large", "v" * 3990)])
    with pytest.raises(TooManyHeaders):
        reader.head(large)
    assert reader.head(encoder.encode(HEAD)).path == ONE
