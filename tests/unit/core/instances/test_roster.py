"""Which instances are idle, and which batch has run for too long."""

from math import inf

from tests.fakes import Gate, gated
from wherry.core.instances.instance import Instance
from wherry.core.instances.roster import Roster
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.model import Device
from wherry.core.values.request import Batch


def made(number: int) -> Instance:
    model = gated(Gate())
    return ThreadInstance(f"gated_{number}", Device(), model, model.config())


BATCH = Batch((), 3, "idle")


def test_an_instance_is_idle_until_it_begins_and_counts_once_as_ended() -> None:
    roster, one = Roster(None), made(0)
    roster.add(one, idle=True)
    assert roster.is_quiet()
    roster.begin(one, BATCH, 1.0)
    assert (roster.idle, roster.running()) == ([], [("gated_0", 3, 1.0)])
    assert not roster.is_quiet()
    assert roster.end(one, BATCH, 2.0)
    assert not roster.end(one, BATCH, 3.0)
    assert one.busy_since == 2.0
    assert roster.idle == []
    roster.free(one, idle=True)
    assert (roster.idle, roster.running()) == ([one], [])


def test_an_instance_with_several_batches_is_busy_since_the_oldest_of_them_runs() -> None:
    roster, one, other = Roster(5.0), made(0), Batch((), 4, "full")
    roster.add(one, idle=True)
    roster.begin(one, BATCH, 1.0)
    roster.begin(one, other, 2.0)
    assert roster.running() == [("gated_0", 3, 1.0)]
    assert roster.overruns_at() == 6.0
    assert roster.end(one, BATCH, 3.0)
    assert roster.running() == [("gated_0", 4, 3.0)]
    assert roster.take_overdue(8.0) == [(one, other)]


def test_an_overdue_batch_is_taken_once() -> None:
    roster, (one, other) = Roster(5.0), (made(0), made(1))
    assert roster.overruns_at() == inf
    for instance, begins in ((one, 1.0), (other, 3.0)):
        roster.add(instance, idle=True)
        roster.begin(instance, BATCH, begins)
    assert roster.overruns_at() == 6.0
    assert roster.take_overdue(5.9) == []
    assert roster.take_overdue(6.0) == [(one, BATCH)]
    assert roster.take_overdue(6.0) == []
    assert roster.overruns_at() == 8.0


def test_a_dying_instance_gets_nothing_and_counts_as_busy_until_it_is_removed() -> None:
    roster, one = Roster(None), made(0)
    roster.add(one, idle=True)
    assert roster.retire(one) == ([], [])
    assert roster.idle == []
    assert not roster.is_quiet()
    roster.remove(one)
    assert roster.is_quiet()
    assert one not in roster.up


def test_an_instance_is_free_after_all_that_it_was_given() -> None:
    roster, (one, other) = Roster(None), (made(0), made(1))
    assert roster.free_after(0.0, float) == 0.0
    for instance in (one, other):
        roster.add(instance, idle=True)
    roster.begin(one, BATCH, 10.0)
    assert roster.free_after(10.0, float) == 0.0  # the other one is idle
    roster.begin(other, Batch((), 5, "full"), 10.0)
    assert roster.free_after(11.0, float) == 2.0
    roster.begin(one, Batch((), 4, "full"), 11.0)
    assert roster.free_after(11.0, float) == 4.0  # now the other one is free first
    assert roster.running_rows == 12


def test_a_batch_that_has_taken_longer_than_expected_is_expected_to_take_as_long_again() -> None:
    roster, one = Roster(None), made(0)
    roster.add(one, idle=True)
    roster.begin(one, BATCH, 10.0)
    assert [roster.free_after(now, float) for now in (12.0, 13.0, 14.0, 20.0)] == [1, 0, 1, 7]
