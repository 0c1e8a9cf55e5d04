"""server/content/multipart.py: what a body has by name."""

import pytest

from wherry.core.values.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType
from wherry.server.content.multipart import MAX_URLENCODED, MAX_VALUES, NamedValue, named_values
from wherry.server.http.exchange import RequestHead

URLENCODED = "application/x-www-form-urlencoded"


def read(content_type: str | None, body: bytes, query: str = "") -> list[NamedValue] | None:
    headers = {} if content_type is None else {"content-type": content_type}
    return named_values(RequestHead("POST", "/", query, headers), body)


def told(values: list[NamedValue] | None) -> list[tuple[str, object]]:
    assert values is not None
    return [(one.name, one.data) for one in values]


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/ld+json",
        URLENCODED,
    ],
)
def test_json_is_json_also_if_curl_calls_it_a_form(content_type: str | None) -> None:
    assert read(content_type, b' \n{"a": 1}', "b=2") is None
    assert read(content_type, b'[ {"a": 1}, {"a": 2}]', "b=2") is None


def test_an_urlencoded_form_has_its_values_and_those_of_the_query_string() -> None:
    found = read(URLENCODED, b"a=1&a=2%20x&b=%C3%A9+f&c", "b=other&d=4")
    assert told(found) == [("a", "1"), ("a", "2 x"), ("b", "é f"), ("c", ""), ("d", "4")]


def test_any_other_body_is_a_file_without_a_name() -> None:
    found = read("image/jpeg; q=1", b"\xff\xd8", "top_k=3")
    assert told(found) == [("", b"\xff\xd8"), ("top_k", "3")]
    assert found is not None
    assert found[0].media_type == "image/jpeg"
    assert found[0].is_file


def test_no_body_at_all_is_the_query_string() -> None:
    assert told(read(None, b"", "text=hi")) == [("text", "hi")]
    assert read(None, b"") is None


def test_bytes_that_are_no_text_stay_what_they_are() -> None:
    for sent in (b"a=%FF%00", b"a=\xff\0"):
        ((_, data),) = told(read(URLENCODED, sent))
        assert isinstance(data, str)
        assert data.encode("utf-8", "surrogateescape") == b"\xff\0"


@pytest.mark.parametrize(
    ("content_type", "body", "query", "error", "why"),
    [
        ("nonsense", b"", "", UnsupportedMediaType, "'nonsense' is not a media type"),
        ("multipart/mixed; boundary=a", b"", "", UnsupportedMediaType, "multipart/form-data"),
        ("multipart/form-data", b"", "", InvalidRequest, "boundary"),
        (URLENCODED, b"a" * (MAX_URLENCODED + 1), "", RequestTooLarge, "as multipart/form-data"),
        (URLENCODED, b"a&" * MAX_VALUES, "", InvalidRequest, f"more than {MAX_VALUES} values"),
        ("image/png", b"", "a&" * MAX_VALUES, InvalidRequest, "the query string has more than"),
        (URLENCODED, b"%FF=1", "", InvalidRequest, "not UTF-8"),
        (URLENCODED, b"fLaC\0\0=", "", InvalidRequest, "is not a form.*its own Content-Type"),
        (None, b"\x89PNG\r\n\x1a\n\0", "", InvalidRequest, "it is not; send a file with its own"),
        (None, b"RIFF\x24\0", "a=1", InvalidRequest, "it is not; send a file with its own"),
    ],
)
def test_what_cannot_be_read_is_refused(
    content_type: str | None, body: bytes, query: str, error: type[InvalidRequest], why: str
) -> None:
    with pytest.raises(error, match=why):
        read(content_type, body, query)
