"""frontends/v2/whole_numbers.py: numbers as C reads them."""

from __future__ import annotations

import pytest

from wherry.frontends.v2.whole_numbers import number_before


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12), (" 12", 12), ("+12", 12), ("-1", -1), ("12abc", 12), ("1.0", 1), ("007", 7),
        ("0x10", 0), ("0", 0), ("00", 0), ("", None), ("abc", None), ("-", None), ("+ 1", None),
    ],
)  # fmt: skip
def test_a_number_is_what_stands_first(text: str, number: int | None) -> None:
    assert number_before(text) == number


def test_of_a_long_number_only_the_first_digits_are_read() -> None:
    assert number_before("9" * 10_000) == int("9" * 21)
