"""core/observability/records.py: how many requests are kept."""

import pytest

from wherry.core.observability import records
from wherry.core.observability.records import Records
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest


def requests(many: int) -> list[InferRequest]:
    return [InferRequest({}, 1, Reply(lambda _: None), id=str(number)) for number in range(many)]


def test_no_more_than_a_picture_shows_is_recorded_in_one_second() -> None:
    now = [5.0]
    kept = Records(lambda: now[0])
    model = kept.of("m", "1")
    for _ in range(30):
        model.ran("m_0", "full", 4.0, (0, 1, 0), requests(32))
    assert sum(len(one.requests) for one in kept.since(0)) == 12 * 32
    assert kept.left_out == 18 * 32

    now[0] = 6.0
    model.ran("m_0", "full", 5.0, (0, 1, 0), requests(32))
    assert [one.number for one in kept.since(12)] == [13]


def test_of_a_large_batch_a_part_is_kept_with_the_rows_of_all() -> None:
    kept = Records(lambda: 1.0)
    kept.of("m", "1").ran("m_0", "full", 0.0, (1, 2, 3), requests(1000))
    (batch,) = kept.since(0)
    assert (len(batch.requests), batch.rows) == (64, 1000)


def test_of_a_long_id_the_beginning_is_kept() -> None:
    kept = Records(lambda: 1.0)
    request = InferRequest({}, 1, Reply(lambda _: None), id="id-" * 200_000)
    kept.of("m", "1").ran("m_0", "idle", 0.0, (0, 0, 0), [request])
    assert len(kept.since(0)[0].requests[0].id) == 128


def test_the_oldest_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEPT", 10)
    kept = Records(lambda: 1.0)
    for _ in range(8):
        kept.of("m", "1").ran("m_0", "idle", 0.0, (0, 0, 0), requests(3))
    assert [one.number for one in kept.since(0)] == [6, 7, 8]
    assert [one.number for one in kept.since(7)] == [8]
    kept.clear()
    assert kept.since(0) == []
