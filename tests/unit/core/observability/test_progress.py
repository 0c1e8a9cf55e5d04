"""core/observability/progress.py: how far a long load is, in the log."""

import logging

import pytest

from wherry.core.observability import progress as module
from wherry.core.observability.logging import PROGRESS, FewLines
from wherry.core.observability.progress import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, int | None]]:
    return [
        (one.getMessage(), one.__dict__["done"], one.__dict__.get("total"))
        for one in caplog.records
    ]


def test_all_parts_come_and_a_report_five_times_a_second(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, PROGRESS)
    seen = []
    for part in progress("abcdefg", "reading weights"):
        seen.append(part)
        clock[0] += 0.125
    assert seen == [*"abcdefg"]
    found = reports(caplog)
    assert found == [("reading weights", n, 7) for n in (2, 4, 6)]
    assert module._REPORT_SECONDS == 0.2


def test_a_total_that_is_not_known_is_left_out(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, PROGRESS)
    for _ in progress(n for n in range(2)):
        clock[0] += 1
    for _ in progress((n for n in range(1)), "more", total=4):
        clock[0] += 1
    assert reports(caplog) == [("loading", 1, None), ("loading", 2, None), ("more", 1, 4)]


def test_a_log_has_a_line_of_each_models_stage_every_ten_seconds(clock: list[float]) -> None:
    lines = FewLines()

    def passes(name: str = PROGRESS, message: str = "reading", model: str = "m") -> bool:
        record = logging.makeLogRecord({"name": name, "msg": message, "model": model})
        return lines.filter(record)

    assert [passes(), passes(), passes(message="writing"), passes(model="n")] == [
        True, False, True, True,
    ]  # fmt: skip
    assert [passes("wherry"), passes("wherry")] == [True, True]
    clock[0] += 10
    assert [passes(), passes()] == [True, False]
