"""server/content/base64_text.py: base64, strictly."""

import base64
import os

import pytest

from wherry.server.calls.offload import SLICE_BYTES
from wherry.server.content.base64_text import decoded


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, 4, 1000, SLICE_BYTES, SLICE_BYTES * 3 // 4 + 1, 10**6]
)
def test_bytes_go_there_and_back(size: int) -> None:
    data = os.urandom(size)
    assert decoded(base64.b64encode(data).decode()) == data


LONG = base64.b64encode(bytes(10**6)).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "padding"),
        ("ab=c", "padding"),
        ("abc=abcd", "padding"),
        ("a===", "adding|data|pad"),
        ("ab\nc", "newlines"),
        ("aGVs bG8=", "padding"),
        ("aGVsbG8=\n\n\n\n", "newlines"),
        ("ab-_", "characters of URLs"),
        ("ab$!", "only base64"),
        ("äbcd", "ASCII"),
        (LONG + LONG, "padding|after"),
        (LONG[: SLICE_BYTES - 4] + "AAA=" + LONG, "behind its padding"),
        (LONG[:-4] + "ab\n=", "newlines"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decoded(text)
