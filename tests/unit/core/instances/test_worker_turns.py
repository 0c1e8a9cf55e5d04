"""Which instance's turn is it in a shared worker, and what does its parent see of that?"""

import mmap
import threading
import time

from wherry.core.instances.shared_worker import _Place, _Shared


def places(count: int, *, turns: float) -> tuple[_Shared, list[_Place]]:
    shared = _Shared(mmap.mmap(-1, 4096), time.monotonic() + turns)
    return shared, [_Place(shared, number) for number in range(count)]


def marks(shared: _Shared, count: int) -> list[int]:
    return [shared.running[place] for place in range(count)]


def test_who_runs_is_marked_as_long_as_it_does() -> None:
    shared, (first, second) = places(2, turns=0.0)
    with first:
        assert marks(shared, 2) == [1, 0]
        with second:
            assert marks(shared, 2) == [1, 1]
    assert marks(shared, 2) == [0, 0]


def test_in_turns_one_waits_for_the_other() -> None:
    shared, (first, second) = places(2, turns=1000.0)
    runs, done = threading.Event(), threading.Event()

    def run() -> None:
        with second:
            assert marks(shared, 2) == [0, 1]
            runs.set()
        done.set()

    with first:
        thread = threading.Thread(target=run)
        thread.start()
        assert marks(shared, 2) == [1, 0]
    thread.join()
    assert runs.is_set()
    assert done.is_set()


def test_nobody_waits_for_one_that_has_had_its_turn_for_long() -> None:
    shared, (first, second) = places(2, turns=1000.0)
    with first:
        shared.turn_since -= 3600.0
        with second:
            assert marks(shared, 2) == [1, 1]
        assert shared.turn.locked()
    assert not shared.turn.locked()


def test_what_fails_gives_its_turn_back() -> None:
    shared, (first,) = places(1, turns=1000.0)
    for _ in range(2):
        try:
            with first:
                raise ValueError
        except ValueError:
            assert marks(shared, 1) == [0]
