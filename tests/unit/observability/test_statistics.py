"""observability/statistics.py: the responses of streams, each by its place."""

from wherry.observability.statistics import (
    MAX_RESPONSE_PLACES,
    Duration,
    ModelStatistics,
    ResponseCount,
)


def test_responses_are_counted_by_their_place_and_the_time_since_the_one_before() -> None:
    statistics = ModelStatistics()
    count = ResponseCount(statistics, started=10.0)
    count.responded(10.5)
    count.go_on(12.0)  # the reader was slow
    count.responded(12.25)
    count.ended(12.5)
    other = ResponseCount(statistics, started=20.0)
    other.responded(20.25)
    other.ended(20.5, "BACKEND")
    ResponseCount(statistics, started=0.0).ended(1.0, "CANCELED")

    first, second, third = statistics.response_places
    assert first.came == Duration(2, 750_000_000)
    assert first.cancel == Duration(1, 1_000_000_000)
    assert second.came == Duration(1, 250_000_000)
    assert second.fail == Duration(1, 250_000_000)
    assert third.empty_response == Duration(1, 250_000_000)
    assert third.came == Duration()
    assert statistics.responses == 3


def test_of_a_long_stream_the_last_place_counts_the_rest() -> None:
    statistics = ModelStatistics()
    count = ResponseCount(statistics, started=0.0)
    for _ in range(MAX_RESPONSE_PLACES + 9):
        count.responded(0.0)
    assert len(statistics.response_places) == MAX_RESPONSE_PLACES
    assert statistics.response_places[-1].came.count == 10
    assert statistics.responses == MAX_RESPONSE_PLACES + 9
