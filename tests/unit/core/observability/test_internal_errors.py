"""How often does the log have an error of wherry's own?"""

import pytest

from wherry.core.observability.internal_errors import log_internal_error
from wherry.core.observability.once import MOST_TRACEBACK


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
