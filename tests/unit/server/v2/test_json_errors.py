"""server/v2/json_elements.py: what is wrong with a client's JSON is said as Triton says it."""

from typing import Any

import msgspec
import pytest

from wherry.core.values.errors import InvalidRequest
from wherry.server.v2.http.usual_requests import WireRequest
from wherry.server.v2.json_elements import malformed, mismatch, parse_object
from wherry.server.v2.long_arrays import MAX_DEPTH

DECODER = msgspec.json.Decoder(WireRequest)


def said_of(text: bytes) -> str:
    with pytest.raises((ValueError, RecursionError)) as caught:
        DECODER.decode(text)
    error: Any = caught.value
    return str(malformed(error))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"AAA", "failed to parse the request JSON buffer: Invalid value. at 0"),
        (b"not json", "failed to parse the request JSON buffer: Invalid value. at 4"),
        (b"{1: 2}", "Missing a name for object member. at 1"),
        (b'{"inputs" 2}', "Missing a colon after a name of object member. at "),
        (b'{"inputs": [] "id": ""}', "Missing a comma or '}' after an object member. at "),
        (b'{"inputs": [{} 2]}', "Missing a comma or ']' after an array element. at "),
        (b'{"inputs": []} more', "The document root must not be followed by other values. at "),
        (b"", "failed to parse the request JSON buffer: Input data was truncated"),
        (
            b'{"inputs": [], "id": 1e999}',
            "failed to parse the request JSON buffer: id: number out of range",
        ),
    ],
)
def test_text_that_is_no_json_is_told_of_with_its_place(text: bytes, said: str) -> None:
    if text == b'{"inputs": [{} 2]}':
        text = b'{"x": [{} 2]}'  # a member that we skip: the syntax is looked at all the same
    assert said in said_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "attempt to get members for non-object (expected object, got array)"),
        (
            b"{}",
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
            " (object missing required field inputs)",
        ),
        (
            b'{"inputs": 1}',
            "Unable to parse 'inputs': attempt to access JSON non-array as array"
            " (inputs: expected array, got int)",
        ),
        (b'{"inputs": [], "id": 5}', "Unable to parse 'id': attempt to access JSON non-string as"),
        (b'{"inputs": [{"datatype": "", "shape": []}]}', "Unable to parse 'name': attempt to"),
        (
            b'{"inputs": [{"name": "", "datatype": "", "shape": [2, -5]}]}',
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as"
            " unsigned-integer (inputs[0].shape[1]: expected int >= 0)",
        ),
        (
            b'{"inputs": [{"name": "", "datatype": "", "shape": ["a"]}]}',
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer",
        ),
    ],
)
def test_a_member_of_the_wrong_kind_is_named_with_both_words(text: bytes, said: str) -> None:
    assert said in said_of(text)


def test_json_that_is_nested_too_deeply_is_told_the_limit() -> None:
    # Python 3.14 refuses what its stack cannot take, earlier ones from a depth of some thousands.
    deep = b'{"inputs": [], "x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    assert said_of(deep) == f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"


def test_triton_has_a_word_for_each_kind() -> None:
    assert mismatch("bool") == "attempt to access JSON non-boolean as boolean"
    assert mismatch("float") == "attempt to access JSON non-number as double"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"id": "\xe9"}', r"JSON is not UTF-8 text \(invalid continuation byte at byte 8\)"),
        ('{"id": 1}'.encode("utf-16"), "it begins as UTF-16 or UTF-32 does; send JSON as UTF-8"),
        ('{"id": 1}'.encode("utf-16-le"), "send JSON as UTF-8"),
        ('{"id": 1}'.encode("utf-32-be"), "send JSON as UTF-8"),
    ],
)
def test_text_in_another_coding_is_told_of_with_the_place_in_the_body(
    body: bytes, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_object(body)


def test_a_mark_of_utf_8_before_json_is_passed_over() -> None:
    assert parse_object(b'\xef\xbb\xbf{"id": 1}') == {"id": 1}
    assert repr(parse_object(b'\xef\xbb\xbf{"id": NaN}')) == "{'id': nan}"
    with pytest.raises(InvalidRequest, match=r"Invalid value\. at 0"):
        parse_object(b"\xef\xbb\xbfx")
