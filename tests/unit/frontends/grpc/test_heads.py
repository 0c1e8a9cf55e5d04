"""frontends/grpc/heads.py"""

import grpc
import hpack
import pytest

from wherry.frontends.grpc.heads import CODES, Head, Refusal, percent_encoded, trailers


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
    assert repr(given) == "<Head /a/B>"


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
