"""Which state is a version in, and when is an instance started again? Tables of events."""

import errno

import pytest

from wherry.core.instances.instance_slots import Restart, RestartPolicy, shortage
from wherry.core.instances.life import ModelState, Readiness
from wherry.core.values.errors import LoadFailed, WorkerDied


def policy(budget: int = 5, window: float = 60.0, longest: float = 30.0) -> RestartPolicy:
    return RestartPolicy(budget=budget, window=window, longest=longest)


def test_the_first_death_is_answered_at_once_and_the_delay_grows_to_the_longest() -> None:
    p = policy()
    restarts = [p.died(0.0) for _ in range(20)]
    assert [r.delay for r in restarts[:5]] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert not any(r.away for r in restarts[:5])
    assert all(r.away for r in restarts[5:])
    assert restarts[-1] == Restart(30.0, away=True)
    assert [r.delay for r in restarts] == sorted(r.delay for r in restarts)


def test_time_in_which_it_is_up_refills_the_budget_and_time_in_which_it_is_not_does_not() -> None:
    p = policy()
    for _ in range(6):
        p.died(0.0)
    assert p.died(1000.0).away  # it never came up
    p.came_up(1000.0)
    assert p.died(1090.0) == Restart(0.0)


def test_good_batches_refill_the_budget() -> None:
    """A model that dies of one batch in twenty is worth being started again at once."""
    p = policy(window=1e9)
    for now in range(1000):
        p.came_up(now)
        assert p.died(now + 0.5, good_batches=19) == Restart(0.0)


def test_a_model_that_dies_of_every_second_batch_is_away() -> None:
    p = policy(window=1e9)
    restarts = []
    for now in range(20):
        p.came_up(now)
        restarts.append(p.died(now + 0.5, good_batches=1))
    assert restarts[-1].away


def test_deaths_that_are_explained_cost_nothing_while_there_are_good_batches() -> None:
    p = policy(budget=1, window=1e9)
    for now in range(100):
        p.came_up(now)
        assert p.died(now, good_batches=1, explained=True) == Restart(0.0)


def test_a_model_that_dies_of_whatever_it_is_asked_is_to_blame_itself() -> None:
    p = policy(budget=3, window=1e9)
    assert not any(p.died(0.0, explained=True).away for _ in range(3 + 3))
    assert p.died(0.0, explained=True).away


def test_a_death_that_is_excused_later_was_none() -> None:
    p = policy()
    for _ in range(100):
        p.died(0.0)
        p.excused()
    assert p.died(0.0) == Restart(0.0)


def test_what_is_short_is_waited_for_without_end_and_leaves_the_budget_alone() -> None:
    p = policy()
    restarts = [p.short() for _ in range(5000)]
    assert [r.delay for r in restarts[:3]] == [0.1, 0.2, 0.4]
    assert restarts[-1] == Restart(5.0, away=True)
    assert p.died(0.0) == Restart(0.0)
    p.came_up(0.0)
    assert p.short() == Restart(0.1)


def test_without_a_budget_every_death_is_one_too_many() -> None:
    p = policy(budget=0)
    assert p.died(0.0) == Restart(1.0, away=True)
    assert all(p.died(0.0).delay <= 30.0 for _ in range(5000))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        LoadFailed("OSError: [Errno 24] Too many open files: 'weights.bin'"),
        LoadFailed("MemoryError: "),
    ],
    ids=str,
)
def test_what_the_system_lacks_is_no_fault_of_the_model(error: Exception) -> None:
    assert shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file"),
        LoadFailed("FileNotFoundError: [Errno 2] No such file or directory: 'weights.bin'"),
        LoadFailed("ValueError: [Errno 24 apples]"),
        WorkerDied("worker was killed by SIGKILL"),
        EOFError(),
        ValueError("no weights"),
    ],
    ids=str,
)
def test_other_errors_are(error: Exception) -> None:
    assert not shortage(error)


EVENTS = {
    "loaded": Readiness.loaded,
    "failed": lambda one: one.failed("broken"),
    "back": Readiness.is_back,
    "drain": Readiness.unloading,
    "close": Readiness.closing,
    "closed": Readiness.unloaded,
}


@pytest.mark.parametrize(
    ("events", "state", "reason"),
    [
        ("", "LOADING", "loading"),
        ("loaded", "READY", ""),
        ("failed", "UNAVAILABLE", "broken"),
        ("failed loaded", "UNAVAILABLE", "broken"),
        ("loaded failed", "UNAVAILABLE", "broken"),
        ("loaded failed back", "READY", ""),
        ("back", "LOADING", "loading"),
        ("loaded drain", "UNLOADING", "unloading"),
        ("loaded drain failed", "UNLOADING", "unloading"),
        ("loaded drain back", "UNLOADING", "unloading"),
        ("loaded failed close", "UNAVAILABLE", "broken"),
        ("loaded failed close back", "UNAVAILABLE", "broken"),
        ("close loaded", "UNLOADING", "unloading"),
        ("loaded close closed", "UNAVAILABLE", "unloaded"),
        ("loaded close closed back", "UNAVAILABLE", "unloaded"),
    ],
)
def test_what_an_event_makes_of_a_state(events: str, state: str, reason: str) -> None:
    one = Readiness()
    for event in events.split():
        EVENTS[event](one)
    assert (one.state.value, one.reason) == (state, reason)
    assert one.takes_requests == (one.state in (ModelState.LOADING, ModelState.READY))
