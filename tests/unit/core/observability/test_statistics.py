"""What a batch counts, and the responses of streams by their place.

`core/observability/statistics.py`.
"""

from wherry.core.observability.statistics import (
    KEPT,
    MAX_RESPONSE_POSITIONS,
    MOST_TEXT,
    Compute,
    Duration,
    Failures,
    ModelStatistics,
    ResponseCount,
)
from wherry.core.values.errors import Cancelled, ModelFailed, QueueFull
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest


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
    for _ in range(MAX_RESPONSE_POSITIONS + 9):
        count.responded(0.0)
    assert len(statistics.response_places) == MAX_RESPONSE_POSITIONS
    assert statistics.response_places[-1].came.count == 10
    assert statistics.responses == MAX_RESPONSE_POSITIONS + 9


def test_each_request_of_a_batch_took_what_the_batch_took() -> None:
    statistics = ModelStatistics()
    requests = [request(rows=1, enqueued_at=10.0), request(rows=3, enqueued_at=10.25)]
    statistics.executed(requests, [4], "full", 10.5, input_ns=2, infer_ns=70, output_ns=4)
    statistics.succeeded(requests, 11.0)

    assert statistics.compute == Compute(2, input_ns=4, infer_ns=140, output_ns=8)
    assert statistics.batch_sizes == {4: Compute(1, input_ns=2, infer_ns=70, output_ns=4)}
    assert statistics.queue == Duration(2, 750_000_000)
    assert statistics.success == Duration(2, 1_750_000_000)
    assert (statistics.inference_count, statistics.execution_count) == (4, 1)
    assert statistics.cut_reasons == {"full": 1}
    assert [one.compute_ns for one in requests] == [(2, 70, 4)] * 2


def test_a_batch_that_ran_in_parts_is_one_execution_for_each_of_them() -> None:
    statistics = ModelStatistics()
    rows = request(rows=6, enqueued_at=0.0)
    statistics.executed([rows], [6, 3, 3], "full", 0.0, input_ns=3, infer_ns=90, output_ns=6)

    part = Compute(1, input_ns=1, infer_ns=30, output_ns=2)
    assert statistics.batch_sizes == {6: part, 3: Compute(2, 2, 60, 4)}
    assert statistics.compute == Compute(1, 3, 90, 6)
    assert statistics.execution_count == 3


def test_rows_that_ran_in_their_callers_threads_count_once_they_are_folded_in() -> None:
    statistics = ModelStatistics()
    statistics.inlined(40)
    statistics.inlined(60)
    folded = statistics.fold().fold()

    assert (folded.success, folded.queue) == (Duration(2, 100), Duration(2, 0))
    assert folded.compute == Compute(2, infer_ns=100)
    assert folded.batch_sizes == {1: Compute(2, infer_ns=100)}
    assert (folded.inference_count, folded.execution_count) == (2, 2)
    assert folded.last_inference_at > 0


def request(rows: int, enqueued_at: float) -> InferRequest:
    made = InferRequest({}, rows, Reply(lambda _: None))
    made.enqueued_at = enqueued_at
    return made


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
