"""server/grpc/heads.py"""

import grpc
import hpack
import pytest

from tests.unit.server.grpc.raw import ONE
from wherry.server.grpc.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from wherry.server.grpc.heads import (
    CODES,
    REMEMBERED_BYTES,
    Head,
    HeadReader,
    Refusal,
    percent_encoded,
    trailers,
)
from wherry.server.grpc.hpack import TooManyHeaders, literal
from wherry.server.grpc.work import HEADERS_A_FRAME, ClientWork, TurnBudget


def head(**fields: str) -> Head:
    given = {
        ":method": "POST", ":scheme": "http", ":path": "/a/B", "content-type": "application/grpc",
        "te": "trailers", **{name.replace("_", "-"): value for name, value in fields.items()},
    }  # fmt: skip
    return Head([(name.encode(), value.encode("latin-1")) for name, value in given.items()])


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]


def test_codes_are_those_of_grpc() -> None:
    assert {code.name: code.value[0] for code in grpc.StatusCode} == CODES


def test_metadata_is_what_is_not_http2s_or_grpcs_own() -> None:
    given = head(
        user_agent="x", x_key="\xe9", trace_bin="AA", grpc_timeout="1S", grpc_encoding="gzip"
    )
    assert given.metadata == {"user-agent": "x", "x-key": "\xe9"}
    assert given.coding == "gzip"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9),
     ("99999999H", 99999999 * 3600), ("0S", 0)],
)  # fmt: skip
def test_a_timeout_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert head(grpc_timeout=text).timeout == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "1.5S", " 1S", "1S ", "\xb2S"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        head(grpc_timeout=text)
    assert ("grpc-status", "13") in decoded(caught.value.block)


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "Application/GRPC"])
def test_content_types_of_grpc_are_taken(kind: str) -> None:
    assert head(content_type=kind).path == "/a/B"


@pytest.mark.parametrize(
    ("accepted", "wanted", "best"),
    [
        ("identity,deflate, gzip", "gzip", "gzip"),
        ("identity", "gzip", "identity"),
        ("", "gzip", "identity"),
        ("gzipped", "gzip", "identity"),
    ],
)
def test_an_answer_is_packed_as_the_client_can_unpack(
    accepted: str, wanted: str, best: str
) -> None:
    assert head(grpc_accept_encoding=accepted).best_coding(wanted) == best


def test_an_errors_text_is_percent_encoded() -> None:
    assert percent_encoded("100% \u20ac\n~") == b"100%25 %E2%82%AC%0A~"
    assert percent_encoded("\ud800") == b"?"
    assert decoded(trailers("NOT_FOUND", "a\rb", [("x", "y")])) == [
        ("grpc-status", "5"),
        ("grpc-message", "a%0Db"),
        ("x", "y"),
    ]


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
    assert reader.remembered[block] is again
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
            for head_ in reader.remembered.values()
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
    assert reader.remembered[block].path == ONE
    assert work.done == spent


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff", COMPRESSION_ERROR),
        (b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 3, ENHANCE_YOUR_CALM),
    ],
    ids=["what is not HPACK", "a bomb"],
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
