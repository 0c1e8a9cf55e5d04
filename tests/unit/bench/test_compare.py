"""Whether a change is more than noise. (How sure: test_interval.py.)"""

from tests.unit.bench.reports import point, report
from wherry.bench.compare import Change, compare, unmatched


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
    assert 0 < low < 0.5 < high


def test_the_same_thing_twice_is_no_difference() -> None:
    wrong = 0
    for seed in range(40):
        found = verdicts(
            compare(report(point(noise=0.1, seed=seed)), report(point(noise=0.1, seed=1000 + seed)))
        )
        wrong += set(found.values()) != {"no difference"}
    assert wrong <= 2  # 1 in 20


def test_noise_between_runs_counts_when_runs_are_repeated() -> None:
    """Each run is steady in itself, and the runs differ by 10 %: one cannot tell 4 % apart."""
    before = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((90, 100, 110))]
    after = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((94, 104, 114))]
    found = compare(report(*before), report(*after))
    assert verdicts(found)["requests/s"] == "no difference"
    assert found[0].runs == (3, 3)


def test_in_turns_the_runs_are_pairs_and_what_both_share_is_no_noise() -> None:
    rates = (90, 100, 110, 80, 120)
    before = report(*(point(r, 1 / r, noise=0.001, repeat=n) for n, r in enumerate(rates)))
    after = report(
        *(point(1.1 * r, 1 / r, noise=0.001, repeat=n, seed=9) for n, r in enumerate(rates))
    )
    found = verdicts(compare(before, after, in_turns=True))
    assert found["requests/s"] == "better"
    assert found["mean ms"] == "no difference"
    assert verdicts(compare(before, after))["requests/s"] == "no difference"


def test_a_server_that_takes_twice_the_cpu_is_told_though_its_answers_are_as_fast() -> None:
    before = report(*(point(cores=0.5 + 0.02 * n, repeat=n, seed=n) for n in range(10)))
    after = report(*(point(cores=1.0 + 0.02 * n, repeat=n, seed=90 + n) for n in range(10)))
    by_name = {change.metric: change for change in compare(before, after, in_turns=True)}
    assert by_name.pop("server CPU ms/request").verdict == "worse"
    assert {change.verdict for change in by_name.values()} == {"no difference"}


def test_cpu_time_is_that_of_a_request() -> None:
    """Twice the requests with twice the cores is no more CPU."""
    found = compare(
        report(*(point(100, cores=0.5, repeat=n, seed=n) for n in range(10))),
        report(*(point(200, cores=1.0, repeat=n, seed=n) for n in range(10))),
        in_turns=True,
    )
    changes = {change.metric: change for change in found}
    cpu = changes["server CPU ms/request"]
    assert cpu.verdict == "no difference"
    assert 4.5 < cpu.before < 5.5
    assert changes["requests/s"].verdict == "better"


def test_a_server_elsewhere_has_no_cpu_time_to_compare() -> None:
    changes = compare(report(point(cores=None)), report(point(seed=1)))
    assert "server CPU ms/request" not in {change.metric for change in changes}


def test_the_last_pair_may_lack_its_second_half() -> None:
    before = report(*(point(100, repeat=n, seed=n) for n in range(4)))
    after = report(*(point(100, repeat=n, seed=10 + n) for n in range(3)))
    assert compare(before, after, in_turns=True)[0].runs == (3, 3)


def test_a_figure_that_one_run_lacks_is_unknown_and_not_left_out() -> None:
    runs = [point(cores=0.5, repeat=n, seed=n) for n in range(4)]
    lacking = [*runs[:3], point(cores=0.0, repeat=3, seed=3)]
    for before, after in ((runs, lacking), (lacking, runs)):
        found = {c.metric: c for c in compare(report(*before), report(*after), in_turns=True)}
        assert found["server CPU ms/request"].verdict == "unknown"
        assert abs(found["server CPU ms/request"].share) < 0.2
        assert found["mean ms"].verdict == "no difference"


def test_a_run_that_is_too_short_says_nothing() -> None:
    changes = compare(report(point(100, pieces=5)), report(point(200, pieces=5)))
    assert {change.verdict for change in changes} == {"unknown"}


def test_a_tiny_change_is_of_no_interest_however_certain() -> None:
    found = compare(report(point(1000, noise=0.0001)), report(point(1005, noise=0.0001, seed=2)))
    assert verdicts(found)["requests/s"] == "no difference"


def test_points_are_matched_by_their_settings() -> None:
    one = report(point(callers=1), point(callers=2))
    two = report(point(callers=2), point(callers=3))
    assert {change.point for change in compare(one, two)} == {"callers 2"}
    assert unmatched(one, two) == ["only in A: callers 1", "only in B: callers 3"]


def test_comparing_again_gives_the_same_intervals() -> None:
    one, two = report(point(noise=0.2)), report(point(noise=0.2, seed=5))
    assert compare(one, two) == compare(one, two)
