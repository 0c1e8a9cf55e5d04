"""core/observability/recent_errors.py: the last errors of each kind."""

from wherry.core.observability.recent_errors import KEPT, MOST_TEXT, Failures
from wherry.core.values.errors import Cancelled, ModelFailed, QueueFull


def test_a_flood_of_one_kind_hides_no_other() -> None:
    failures = Failures()
    failures.add(ModelFailed("broken"))
    for size in range(1000):
        failures.add(QueueFull("m", size))

    last = failures.last(16)

    assert failures == {"BACKEND": 1, "REJECTED": 1000}
    assert [(one.kind, one.times) for one in last] == [
        *[(QueueFull, 1000)] * KEPT,
        (ModelFailed, 1),
    ]
    assert "999" in last[0].text
    assert failures.last(2) == last[:2]


def test_a_long_text_is_cut() -> None:
    failures = Failures()
    failures.add(ModelFailed("x" * 10**6))

    assert failures.last(1)[0].text == "x" * MOST_TEXT


def test_a_client_that_left_is_counted_and_is_no_error() -> None:
    failures = Failures()
    failures.add(Cancelled("left"))

    assert failures["CANCELED"] == 1
    assert failures.last(16) == []
