"""How many bytes may be held at a time?"""

import threading

from wherry.core.values.budget import Budget


def test_a_budget_is_taken_up_to_its_limit_and_given_back() -> None:
    budget = Budget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert repr(budget) == "<Budget: 100 of 100 bytes held, 1 refused>"
    budget.give_back(60)
    assert budget.take(1)
    assert budget.held == 41


def test_what_a_part_takes_counts_in_the_whole() -> None:
    whole = Budget(100)
    part = Budget(50, within=whole)
    assert whole.take(70)
    assert not part.take(40)
    assert (part.held, whole.held) == (0, 70)
    assert part.take(30)
    assert not whole.take(1)
    part.give_back(30)
    assert (part.held, whole.held) == (0, 70)
    assert not part.take(51)
    assert whole.held == 70


def test_other_threads_return_what_the_next_one_takes() -> None:
    whole = Budget(100)
    part = Budget(100, within=whole)
    assert part.take(100)
    threads = [threading.Thread(target=part.return_later, args=(10,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert part.take(100)
    assert (part.held, whole.held) == (100, 100)
