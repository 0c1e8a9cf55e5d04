"""Rows of requests: added, merged, carried to another process."""

from tests.unit.bench.reports import answer
from wherry.bench.figures import Table
from wherry.bench.record import OK, Recorder


def recorder(*outcomes: str, start: float = 0.0) -> Recorder:
    made = Recorder()
    for n, outcome in enumerate(outcomes):
        at = start + n
        made.add(at, at, at + 0.5, outcome, 2, answer(at + 0.25, 3, 4, [0.125] * n))
    return made


def test_what_was_packed_is_what_is_unpacked() -> None:
    before = recorder(OK, "timeout", OK)
    after = Recorder.unpacked(before.packed())
    assert after.packed() == before.packed()
    assert (len(after), after.failures) == (3, 1)


def test_merged_recorders_keep_each_others_errors_apart() -> None:
    one, two = recorder("a", OK), recorder("b", "a", OK, start=10)
    one.merge(two)
    table = Table.of(one)
    assert [table.outcomes[index] for index in table.outcome] == ["a", OK, "b", "a", OK]
    assert list(table.intended) == [0, 1, 10, 11, 12]
    assert list(table.gaps) == [0, 1, 0, 1, 2]
    assert len(table.gap_seconds) == sum(table.gaps)
    assert one.failures == 3


def test_half_of_a_row_is_none_in_a_recorder_that_goes_on() -> None:
    one, two = Recorder(), recorder(OK, OK)
    two.gap_seconds.extend([9.0, 9.0])  # of a row that comes next
    one.merge(two)
    one.merge(recorder(OK, OK))
    table = Table.of(one)
    assert list(table.gap_seconds) == [0.125, 0.125]
    assert list(table.gaps) == [0, 1, 0, 1]


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
