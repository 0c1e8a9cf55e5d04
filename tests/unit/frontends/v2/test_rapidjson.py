"""frontends/v2/rapidjson.py: where does Triton's JSON library refuse a text?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.frontends.v2.rapidjson import refusal

COMMA = "Missing a comma or"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Recorded of Triton
        ("", "The document is empty. at 0"),
        ("{", "Missing a name for object member. at 1"),
        ("not json", "Invalid value. at 1"),
        ("[" * 200, "Invalid value. at 200"),
        ("{} trailing", "The document root must not be followed by other values. at 3"),
        # By RapidJSON's reader.h
        (" \n", "The document is empty. at 2"),
        ('{"a"', "Missing a colon after a name of object member. at 4"),
        ('{"a": 1', f"{COMMA} '}}' after an object member. at 7"),
        ('{"a": 1,}', "Missing a name for object member. at 8"),
        ("{a: 1}", "Missing a name for object member. at 1"),
        ("[1 2]", f"{COMMA} ']' after an array element. at 3"),
        ("[1,]", "Invalid value. at 3"),
        ("[1,", "Invalid value. at 3"),
        ('{"a": [1}', f"{COMMA} ']' after an array element. at 8"),
        ('"abc', "Missing a closing quotation mark in string. at 4"),
        ('"a\nb"', "Invalid escape character in string. at 2"),
        (r'"a\x"', "Invalid escape character in string. at 2"),
        (r'"\ud800"', "The surrogate pair in string is invalid. at 1"),
        (r'"\udc00\ud800"', "The surrogate pair in string is invalid. at 1"),
        (r'"\u12g4"', "Incorrect hex digit after \\u escape in string. at 1"),
        ("1.", "Miss fraction part in number. at 2"),
        ("1e+", "Miss exponent in number. at 3"),
        ("1e999", "Number too big to be stored in double. at 0"),
        # By its answers to these
        ("[" + "1" * 309 + "]", ""),
        ("[" + "1" * 310 + "]", "Number too big to be stored in double. at 1"),
        ("-2" + "0" * 308, "Number too big to be stored in double. at 0"),
        ("\ufeff[1]", ""),
        ("\ufeff", "The document is empty. at 3"),
        ("\ufeff\ufeff[1]", "Invalid value. at 3"),
        ("-", "Invalid value. at 1"),
        ("01", "The document root must not be followed by other values. at 1"),
        ("tru", "Invalid value. at 3"),
        ("'a'", "Invalid value. at 0"),
        ("[NaN, -Infinity, Inf]", ""),
    ],
)
def test_the_words_and_the_place_are_rapidjsons(text: str, said: str) -> None:
    assert refusal(text.encode()) == said


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_what_is_json_is_taken(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert refusal(text.encode(errors="replace")) == ""


@given(st.text(alphabet='{}[]",:\\ 01e.-tnu', max_size=12))
def test_it_refuses_what_json_refuses(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        assert refusal(text.encode())
    else:
        assert not refusal(text.encode())
