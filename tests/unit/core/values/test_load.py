"""When would a runner with this to do answer a row that comes now?"""

import msgspec
import pytest

from wherry.core.values.load import Load

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


@pytest.mark.parametrize(
    ("load", "changes", "slots", "busy"),
    [
        (BATCHES, {}, 8, 0.0),
        (BATCHES, {"busy": 1, "running_rows": 8}, 8, 1.0),  # these wait for the next batch
        (BATCHES, {"busy": 1, "instances": 2, "queued_rows": 3}, 13, 0.5),
        (BATCHES, {"busy": 1, "queued_rows": 30}, 0, 1.0),
        (STEPS, {"busy": 1, "running_rows": 1}, 3, 0.25),  # a slot each
        (STEPS, {"running_rows": 4, "queued_rows": 2}, 0, 1.5),
        (STEPS, {"instances": 0}, 0, 0.0),
    ],
)
def test_what_is_free_is_the_next_batches_or_the_slots(
    load: Load, changes: dict[str, int], slots: int, busy: float
) -> None:
    now = msgspec.structs.replace(load, **changes)
    assert (now.free_slots, now.busy_share) == (slots, busy)


@pytest.mark.parametrize(
    ("load", "changes", "seconds"),
    [
        (BATCHES, {}, 0.0),
        (BATCHES, {"free_after": 0.5, "queued_rows": 7}, 0.5),
        (BATCHES, {"free_after": 0.5, "queued_rows": 8}, 9.5),
        (STEPS, {}, 0.0),
        (STEPS, {"running_rows": 4, "queued_rows": 2}, 1.5),
    ],
)
def test_a_row_waits_for_what_is_ahead_of_it(
    load: Load, changes: dict[str, float], seconds: float
) -> None:
    assert msgspec.structs.replace(load, **changes).wait_seconds == seconds
