"""How often does the log have an error of wherry's own?"""

import pytest

from wherry.core.observability.internal_errors import (
    MOST_TRACEBACK,
    OncePerCause,
    log_internal_error,
)


def failed(text: str) -> Exception:
    try:
        raise ZeroDivisionError(text)
    except ZeroDivisionError as error:
        return error


def test_an_error_that_every_request_has_is_logged_once_and_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logged = [log_internal_error(failed("x" * 10**6), path=f"/{n}") for n in range(1000)]
    assert logged == [True] + [False] * 999
    (record,) = caplog.records
    assert record.message == "internal error"
    assert record.__dict__["path"] == "/0"
    assert "in failed" in record.__dict__["traceback"]
    assert len(record.__dict__["traceback"]) < MOST_TRACEBACK + 100


def test_the_first_of_each_cause_is_news_and_then_one_in_a_minute_with_the_number_between() -> None:
    once = OncePerCause()
    assert once.came("a", 0.0) == 0
    assert [once.came("a", 1.0 + n) for n in range(41)] == [None] * 41
    assert once.came("b", 5.0) == 0
    assert once.came("a", 60.0) == 41
    assert once.came("a", 119.9) is None
    assert once.came("a", 120.0) == 1


def test_causes_without_end_are_told_of_as_one_and_not_remembered() -> None:
    once = OncePerCause(most=8)
    told = [once.came(n, n * 1e-6) for n in range(100_000)]
    assert sum(more is not None for more in told) == 8 + 1
    assert len(once._logged) == 9
    assert once.untold() == {None: 100_000 - 9}


def test_old_causes_make_room_for_new_ones() -> None:
    once = OncePerCause(most=8)
    for n in range(1000):
        assert once.came(n, n * 10.0) == 0


def test_what_was_not_told_of_is_told_of_once_in_the_end() -> None:
    once = OncePerCause()
    for n in range(3):
        once.came("a", n)
    once.came("b", 0.0)
    assert once.untold() == {"a": 2}
    assert once.untold() == {}
