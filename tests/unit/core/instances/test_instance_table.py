"""Which instances are idle, and which batch has run for too long."""

from math import inf

from tests.fakes import Gate, gated
from wherry.core.instances.instance import Instance
from wherry.core.instances.instance_table import InstanceTable
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.model import Device
from wherry.core.values.request import Batch


def made(number: int) -> Instance:
    model = gated(Gate())
    return ThreadInstance(f"gated_{number}", Device(), model, model.config())


BATCH = Batch((), 3, "idle")


def test_an_instance_is_idle_until_it_begins_and_counts_once_as_ended() -> None:
    table, one = InstanceTable(None), made(0)
    table.add(one, idle=True)
    assert table.is_quiet()
    table.begin(one, BATCH, 1.0)
    assert (table.idle, table.running()) == ([], [("gated_0", 3, 1.0)])
    assert not table.is_quiet()
    assert table.end(one, BATCH, 2.0)
    assert not table.end(one, BATCH, 3.0)
    assert one.busy_since == 2.0
    assert table.idle == []
    table.free(one, idle=True)
    assert (table.idle, table.running()) == ([one], [])


def test_an_instance_with_several_batches_is_busy_since_the_oldest_of_them_runs() -> None:
    table, one, other = InstanceTable(5.0), made(0), Batch((), 4, "full")
    table.add(one, idle=True)
    table.begin(one, BATCH, 1.0)
    table.begin(one, other, 2.0)
    assert table.running() == [("gated_0", 3, 1.0)]
    assert table.overruns_at() == 6.0
    assert table.end(one, BATCH, 3.0)
    assert table.running() == [("gated_0", 4, 3.0)]
    assert table.take_overdue(8.0) == [(one, other)]


def test_an_overdue_batch_is_taken_once() -> None:
    table, (one, other) = InstanceTable(5.0), (made(0), made(1))
    assert table.overruns_at() == inf
    for instance, begins in ((one, 1.0), (other, 3.0)):
        table.add(instance, idle=True)
        table.begin(instance, BATCH, begins)
    assert table.overruns_at() == 6.0
    assert table.take_overdue(5.9) == []
    assert table.take_overdue(6.0) == [(one, BATCH)]
    assert table.take_overdue(6.0) == []
    assert table.overruns_at() == 8.0


def test_a_dying_instance_gets_nothing_and_counts_as_busy_until_it_is_removed() -> None:
    table, one = InstanceTable(None), made(0)
    table.add(one, idle=True)
    assert table.retire(one) == ([], [])
    assert table.idle == []
    assert not table.is_quiet()
    table.remove(one)
    assert table.is_quiet()
    assert one not in table.up


def test_an_instance_is_free_after_all_that_it_was_given() -> None:
    table, (one, other) = InstanceTable(None), (made(0), made(1))
    assert table.free_after(0.0, float) == 0.0
    for instance in (one, other):
        table.add(instance, idle=True)
    table.begin(one, BATCH, 10.0)
    assert table.free_after(10.0, float) == 0.0  # the other one is idle
    table.begin(other, Batch((), 5, "full"), 10.0)
    assert table.free_after(11.0, float) == 2.0
    table.begin(one, Batch((), 4, "full"), 11.0)
    assert table.free_after(11.0, float) == 4.0  # now the other one is free first
    assert table.running_rows == 12


def test_a_batch_that_has_taken_longer_than_expected_is_expected_to_take_as_long_again() -> None:
    table, one = InstanceTable(None), made(0)
    table.add(one, idle=True)
    table.begin(one, BATCH, 10.0)
    assert [table.free_after(now, float) for now in (12.0, 13.0, 14.0, 20.0)] == [1, 0, 1, 7]
