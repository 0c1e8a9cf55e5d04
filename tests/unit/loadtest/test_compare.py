"""Whether a change is more than noise."""

from tests.unit.loadtest.reports import point, report
from wherry.loadtest.compare import Change, compare, unmatched


def verdicts(changes: list[Change]) -> dict[str, str]:
    return {change.metric: change.verdict for change in changes}


def test_a_change_far_beyond_the_noise_has_a_direction() -> None:
    changes = compare(report(point(100, 0.010)), report(point(150, 0.005, seed=1)))
    found = verdicts(changes)
    assert found["requests/s"] == found["p50 ms"] == found["mean ms"] == "better"
    back = verdicts(compare(report(point(150, 0.005)), report(point(100, 0.010, seed=1))))
    assert back["requests/s"] == back["p50 ms"] == "worse"
    by_name = {change.metric: change for change in changes}
    assert abs(by_name["requests/s"].share - 0.5) < 0.05
    low, high = by_name["requests/s"].interval or (0, 0)
    assert 0.4 < low < 0.5 < high < 0.6


def test_the_same_thing_twice_is_noise_nearly_always() -> None:
    wrong = 0
    for seed in range(40):
        found = verdicts(
            compare(report(point(noise=0.1, seed=seed)), report(point(noise=0.1, seed=1000 + seed)))
        )
        wrong += found["requests/s"] != "noise"
    assert wrong <= 8  # 1 in 20 is what 95 % means; few pieces make the intervals a little narrow


def test_noise_between_runs_counts_when_runs_are_repeated() -> None:
    """Each run is steady in itself, and the runs differ by 10 %: one cannot tell 4 % apart."""
    before = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((90, 100, 110))]
    after = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((94, 104, 114))]
    assert verdicts(compare(report(*before), report(*after)))["requests/s"] == "noise"
    one = compare(report(before[1]), report(after[1]))
    assert verdicts(one)["requests/s"] == "better"
    assert one[0].runs == (1, 1)


def test_a_run_that_is_too_short_says_nothing() -> None:
    changes = compare(report(point(100, pieces=5)), report(point(200, pieces=5)))
    assert {change.verdict for change in changes} == {"unknown"}


def test_a_tiny_change_is_of_no_interest_however_certain() -> None:
    found = compare(report(point(1000, noise=0.0001)), report(point(1005, noise=0.0001, seed=2)))
    assert verdicts(found)["requests/s"] == "noise"


def test_points_are_matched_by_their_settings() -> None:
    one = report(point(callers=1), point(callers=2))
    two = report(point(callers=2), point(callers=3))
    assert {change.point for change in compare(one, two)} == {"callers 2"}
    assert unmatched(one, two) == ["only in A: callers 1", "only in B: callers 3"]


def test_comparing_again_gives_the_same_intervals() -> None:
    one, two = report(point(noise=0.2)), report(point(noise=0.2, seed=5))
    assert compare(one, two) == compare(one, two)
