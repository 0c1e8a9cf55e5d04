"""How long will a batch take, and how long a request that comes now?"""

from math import inf

import pytest

from tests.fakes import Call
from wherry.core.scheduler.forecast import Forecast
from wherry.core.values.request import InferRequest


def requests(count: int, cost: float = 1.0) -> list[InferRequest]:
    made = [Call(str(n)).request for n in range(count)]
    for one in made:
        one.cost = cost
    return made


def begin(forecast: Forecast, rows: int) -> None:
    forecast.began(requests(rows), 0.0, rows, 0, 0.0, "idle", 0)


def learnt(instances: int = 1) -> Forecast:
    """1 s and 1 s a row."""
    forecast = Forecast(instances)
    for rows in (1, 2, 4, 8):
        begin(forecast, rows)
        forecast.ended(requests(rows), 1.0 + rows)
    return forecast


def test_nothing_is_said_before_anything_is_known() -> None:
    forecast = Forecast()
    begin(forecast, 4)
    assert forecast.batch_seconds(4) == 0.0
    assert forecast.answer_seconds(100, 8) == 0.0


def test_a_free_instance_means_no_wait_unless_a_batch_is_waiting_all_the_same() -> None:
    forecast = learnt()
    assert forecast.waiting_seconds(7, 8) == 0.0
    assert forecast.waiting_seconds(8, 8) == pytest.approx(
        9.0
    )  # what runs is somebody else's, on a shared device


@pytest.mark.parametrize(
    ("ahead", "waiting", "answer"),
    [
        (0, 2.5, 2.5 + 2.0),  # half of what runs, then alone
        (3, 2.5, 2.5 + 5.0),  # with those who wait
        (8, 2.5 + 9.0, 2.5 + 9.0 + 2.0),  # behind a whole batch
        (17, 2.5 + 18.0, 2.5 + 18.0 + 3.0),
    ],
)
def test_a_request_waits_for_what_runs_and_for_whole_batches_before_it(
    ahead: int, waiting: float, answer: float
) -> None:
    forecast = learnt()
    begin(forecast, 4)
    assert forecast.waiting_seconds(ahead, 8) == pytest.approx(waiting)
    assert forecast.answer_seconds(ahead, 8) == pytest.approx(answer)


def test_several_instances_share_what_waits() -> None:
    forecast = learnt(instances=2)
    begin(forecast, 4)
    begin(forecast, 4)
    assert forecast.waiting_seconds(16, 8) == pytest.approx((2.5 + 18.0) / 2)


def test_requests_that_are_batches_of_their_own_count_with_their_rows() -> None:
    forecast = learnt()
    begin(forecast, 8)  # though a batch of the policy's holds one
    assert forecast.waiting_seconds(16, 1) == pytest.approx(4.5 + 18.0)


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("running", [1, 8])
@pytest.mark.parametrize("seconds", [5.0, 20.0, 100.0])
def test_a_glance_never_calls_short_what_is_long(
    instances: int, running: int, seconds: float
) -> None:
    forecast = learnt(instances)
    for _ in range(instances):
        begin(forecast, running)
    short = forecast.rows_within(seconds, 8)
    assert forecast.known_rows_within == short
    for rows in range(400):
        if rows <= short:
            assert forecast.answer_seconds(rows, 8) <= seconds
    assert short > 0 or seconds == 5.0  # a batch alone takes 9 s
    forecast.ended(requests(running), 1.0 + running)
    assert forecast.known_rows_within is None


def test_every_queue_is_short_while_nothing_is_known() -> None:
    assert Forecast().rows_within(1.0, 8) == inf


def test_a_batch_that_teaches_nothing_is_over_all_the_same() -> None:
    forecast = learnt()
    before = forecast.curve.points()
    begin(forecast, 2)
    forecast.ended(requests(2), None)
    assert (forecast.busy, forecast.running_rows) == (0, 0)
    assert forecast.curve.points() == before


def test_rows_of_some_cost_are_counted_by_their_work() -> None:
    forecast = Forecast()
    for _ in range(200):
        begin(forecast, 4)
        forecast.ended(requests(4, cost=10.0), 2.0)
    assert forecast.costs.per_row == pytest.approx(10.0)
    assert forecast.batch_seconds(4) == pytest.approx(2.0)
    assert forecast.explain(0, 8)["work_per_row"] == forecast.costs.per_row


def test_each_size_is_explained_with_how_well_and_since_when_it_is_known() -> None:
    forecast = Forecast()
    assert forecast.explain(0, 8)["curve"] == []
    for seconds in (0.9, 1.1) * 10:
        forecast.learn(4, seconds)
    forecast.learn(8, 2.0)
    four, eight = forecast.explain(0, 8)["curve"]
    assert [four["rows"], four["age_batches"]] == [4, 1]
    assert [eight["rows"], eight["age_batches"]] == [8, 0]
    assert 0.0 < four["error_seconds"] < 0.1, "a batch is 0.1 off, the mean of 20 is not"
    assert eight["error_seconds"] > four["error_seconds"], "it was run once"
