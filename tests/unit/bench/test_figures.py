"""What records mean: the window, percentiles, throughput, the time line."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.reports import answer
from wherry.bench.figures import (
    OK,
    MeasuredWindow,
    Recorder,
    Table,
    figures,
    spread,
    timeline,
    window,
)


def table(rows: list[tuple[float, float]], outcome: str = OK, late: float = 0.0) -> Table:
    """Requests by (intended, ended)."""
    recorder = Recorder()
    for intended, ended in sorted(rows, key=lambda row: row[1]):
        recorder.add(intended, intended + late, ended, outcome, 2)
    return Table.of(recorder)


def test_the_warm_up_is_left_out_of_latency_and_throughput() -> None:
    slow_at_first = [(100 + 0.1 * n, 100.5 + 0.1 * n) for n in range(10)]
    then_quick = [(101 + 0.1 * n, 101.01 + 0.1 * n) for n in range(10)]
    seen = window(table([*slow_at_first, *then_quick]), 100, 102, warmup=1, duration=2)
    assert seen == MeasuredWindow(100, 101, 102)
    told = figures(table([*slow_at_first, *then_quick]), seen, open_load=False, streams=False)
    assert told.latency is not None
    assert told.latency.max == pytest.approx(0.01)
    assert told.ok == 10
    # Five that were sent in the warm-up ended in the window: the server did that work then.
    assert told.requests_per_second == pytest.approx(15)
    assert told.rows_per_second == pytest.approx(30)


def test_latency_counts_from_the_intended_start() -> None:
    told = figures(
        table([(0.0, 1.0)], late=0.9), MeasuredWindow(0, 0, 2), open_load=True, streams=False
    )
    assert told.latency is not None
    assert told.lateness is not None
    assert told.latency.p50 == pytest.approx(1.0)
    assert told.lateness.p50 == pytest.approx(0.9)


def test_an_answer_after_the_end_is_in_the_latency_and_not_in_the_throughput() -> None:
    told = figures(
        table([(0.5, 0.6), (0.9, 3.0)]), MeasuredWindow(0, 0, 1), open_load=False, streams=False
    )
    assert told.requests_per_second == 1
    assert told.latency is not None
    assert told.latency.max == pytest.approx(2.1)


def test_errors_are_counted_by_kind_the_most_frequent_first() -> None:
    recorder = Recorder()
    for n, outcome in enumerate(["timeout", "HTTP 503", "HTTP 503", OK]):
        recorder.add(n, n, n + 0.5, outcome, 1)
    told = figures(Table.of(recorder), MeasuredWindow(0, 0, 5), open_load=False, streams=False)
    assert list(told.errors.items()) == [("HTTP 503", 2), ("timeout", 1)]
    assert (told.ok, told.failed, told.error_share) == (1, 3, 0.75)


def test_a_run_without_answers_has_figures_all_the_same() -> None:
    empty = Table.of(Recorder())
    seen = window(empty, 10, 12, warmup=1, duration=None)
    told = figures(empty, seen, open_load=True, streams=True)
    assert (told.ok, told.failed, told.latency, told.first_token) == (0, 0, None, None)
    assert [piece.requests_per_second for piece in timeline(empty, seen)] == [0.0] * 20


def test_a_run_that_ended_within_its_warm_up_says_so() -> None:
    short = table([(0.0, 0.2)])
    seen = window(short, 0, 0.3, warmup=1, duration=5)
    told = figures(short, seen, open_load=False, streams=False)
    assert not told.warmup_excluded
    assert told.ok == 1


def test_streams_have_their_first_token_and_the_gaps_of_their_own_requests_only() -> None:
    recorder = Recorder()
    recorder.add(0.0, 0.0, 1.0, OK, 1, answer(0.9, 0, 2, [9.0]))  # in the warm-up
    recorder.add(2.0, 2.0, 2.5, OK, 1, answer(2.1, 7, 5, [0.1] * 4))
    recorder.add(2.0, 2.0, 2.9, "timeout", 1, answer(2.9, 0, 3, [5.0] * 2))
    told = figures(Table.of(recorder), MeasuredWindow(0, 1.5, 3.5), open_load=False, streams=True)
    assert told.first_token is not None
    assert told.inter_token is not None
    assert told.tokens_per_second_of_a_stream is not None
    assert told.first_token.p50 == pytest.approx(0.1)
    assert told.inter_token.count == 4
    assert told.inter_token.max == pytest.approx(0.1)
    assert told.tokens_per_second_of_a_stream.p50 == pytest.approx(10)
    assert told.tokens_out_per_second == pytest.approx(2.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_spread_is_ordered_and_within_its_values(values: list[float]) -> None:
    found = spread(np.array(values))
    assert found is not None
    ordered = [found.min, found.p50, found.p90, found.p95, found.p99, found.p999, found.max]
    assert ordered == sorted(ordered)
    assert (found.min, found.max, found.count) == (min(values), max(values), len(values))


def test_percentiles_are_those_that_their_names_say() -> None:
    found = spread(np.arange(10_001) / 100)
    assert found is not None
    quantiles = [found.p50, found.p90, found.p95, found.p99, found.p999]
    assert quantiles == pytest.approx([50, 90, 95, 99, 99.9])


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), min_size=1, max_size=100),
    st.floats(0, 10),
)
def test_the_time_line_holds_every_answer_once(
    rows: list[tuple[float, float]], warmup: float
) -> None:
    made = table([(start, start + seconds) for start, seconds in rows])
    seen = window(made, 0, 100, warmup=warmup, duration=None)
    pieces = timeline(made, seen)
    counted = sum(piece.requests_per_second * piece.seconds for piece in pieces)
    at_the_very_end = int((made.ended >= seen.stop).sum())
    assert counted == pytest.approx(len(rows) - at_the_very_end, abs=at_the_very_end + 1e-6)
    assert pieces[-1].in_flight in range(len(rows) + 1)
    assert all(a.at + a.seconds == pytest.approx(b.at) for a, b in itertools.pairwise(pieces))


def test_in_flight_is_what_has_been_sent_and_not_answered() -> None:
    made = table([(0.0, 0.95), (0.05, 0.15), (0.45, 0.95), (0.9, 1.0)])
    pieces = timeline(made, MeasuredWindow(0, 0, 1.0))
    assert [piece.in_flight for piece in pieces][:6] == [2, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(("length", "last"), [(1.03, 0.13), (0.97, 0.07), (0.02, 0.02)])
def test_a_short_rest_belongs_to_the_piece_before_it(length: float, last: float) -> None:
    made = table([(0.0, length)])
    pieces = timeline(made, MeasuredWindow(0, 0, length))
    assert pieces[-1].seconds == pytest.approx(last)
    assert pieces[-1].at + pieces[-1].seconds == pytest.approx(length)


def recorder(*outcomes: str, start: float = 0.0) -> Recorder:
    made = Recorder()
    for n, outcome in enumerate(outcomes):
        at = start + n
        made.add(at, at, at + 0.5, outcome, 2, answer(at + 0.25, 3, 4, [0.125] * n))
    return made


def test_merged_recorders_keep_each_others_errors_apart() -> None:
    one, two = recorder("a", OK), recorder("b", "a", OK, start=10)
    one.merge(two)
    table = Table.of(one)
    assert [table.outcomes[index] for index in table.outcome] == ["a", OK, "b", "a", OK]
    assert list(table.intended) == [0, 1, 10, 11, 12]
    assert list(table.gaps) == [0, 1, 0, 1, 2]
    assert len(table.gap_seconds) == sum(table.gaps)
    assert one.failures == 3


def test_a_server_with_a_new_error_each_time_does_not_fill_the_memory() -> None:
    made = recorder(*(f"error {n}" for n in range(5000)))
    assert len(made.outcomes) <= 201
    assert made.failures == 5000
    other = recorder(*(f"other {n}" for n in range(300)))
    made.merge(other)
    assert made.failures == 5300
    assert len(made.outcomes) <= 201


def test_the_display_sees_some_latencies_of_all_that_came_since_it_last_looked() -> None:
    made = Recorder()
    for n in range(100):
        made.add(0.0, 0.0, float(n), OK, 1)
    assert made.latencies(97, 10) == [97, 98, 99]
    assert made.latencies(100, 10) == []
    some = made.latencies(0, 7)
    assert len(some) <= 7
    assert some[0] < 10
    assert some[-1] > 80
