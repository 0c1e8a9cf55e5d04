"""When would a runner with this to do answer a row that comes now?"""

import msgspec
import pytest

from wherry.values.load import Load

#: 1 s and 1 s a row, up to 8 rows.
BATCHES = Load(ready=True, instances=1, full_rows=8, one_seconds=2.0, full_seconds=9.0)
#: Each first response takes 0.5 s, of at most 4 at once.
STEPS = Load(ready=True, instances=1, full_rows=4, one_seconds=0.5, full_seconds=2.0, joins=True)


@pytest.mark.parametrize(
    ("changes", "rows", "seconds"),
    [
        ({}, 1, 2.0),
        ({}, 3, 4.0),
        ({"free_after": 0.5}, 1, 2.5),  # after the rest of what runs
        ({"free_after": 0.5, "running_rows": 8}, 1, 2.5),  # which nothing joins
        ({"free_after": 0.5, "queued_rows": 3}, 1, 5.5),  # with those that wait
        ({"free_after": 0.5, "queued_rows": 8}, 1, 11.5),  # behind a whole batch
        ({"free_after": 0.5, "queued_rows": 17}, 1, 0.5 + 18.0 + 3.0),
        ({"queued_rows": 16, "instances": 2}, 1, 9.0 + 2.0),  # one batch on each
        ({"queued_rows": 3, "full_rows": 1, "full_seconds": 2.0}, 2, 6.0 + 4.0),
    ],
)
def test_an_answer_takes_the_rest_whole_batches_and_its_own(
    changes: dict[str, float], rows: int, seconds: float
) -> None:
    assert msgspec.structs.replace(BATCHES, **changes).answer_seconds(rows) == seconds


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 0.5),
        ({"queued_rows": 2}, 1.5),
        ({"running_rows": 2}, 0.75),  # those with a response slow it down a little
        ({"running_rows": 4, "queued_rows": 4}, 3.0),
        ({"running_rows": 4, "queued_rows": 4, "instances": 2}, 1.75),
    ],
)
def test_a_row_that_joins_others_shares_their_time(
    changes: dict[str, float], seconds: float
) -> None:
    assert msgspec.structs.replace(STEPS, **changes).answer_seconds() == seconds


def test_while_nothing_is_known_nothing_is_predicted() -> None:
    assert Load(ready=True, instances=1, queued_rows=100, full_rows=8).answer_seconds(4) == 0.0


def test_it_is_small_on_the_wire() -> None:
    busy = msgspec.structs.replace(BATCHES, busy=1, queued_rows=1000, free_after=0.01)
    sent = msgspec.msgpack.encode(busy)
    assert len(sent) <= 48
    assert msgspec.msgpack.decode(sent, type=Load) == busy
