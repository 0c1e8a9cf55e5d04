"""How are times and rows said to people?"""

import pytest

from wherry.core.values.quantities import duration, number, rows


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 ms"),
        (4e-9, "<0.001 ms"),
        (0.00031234, "0.312 ms"),
        (0.0999999, "100 ms"),
        (0.9994, "999 ms"),
        (0.99951, "1 s"),
        (99.4, "99.4 s"),
        (100.0, "1.67 min"),
        (86400.0, "24 h"),
        (8640000.0, "100 days"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (1.0, "1"), (15.84, "15.8"), (99.96, "100"), (1702.4, "1702"), (1e9, "1e+09")],
)
def test_a_number_keeps_what_is_before_its_point(value: float, said: str) -> None:
    assert number(value) == said


def test_one_row_is_not_rows() -> None:
    assert [rows(n) for n in (0, 1, 1.5, 2)] == ["0 rows", "1 row", "1.5 rows", "2 rows"]
