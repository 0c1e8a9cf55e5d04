"""Who may use what an event loop lends."""

import pytest

from wherry.core.workers.link import SocketLoan


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (["borrow"], [False]),
        (["lend", "borrow", "borrow"], [True, False]),
        (["lend", "borrow", "return", "borrow"], [True, False, True]),
        (["lend", "reclaim", "borrow"], [True, False]),
        (["lend", "borrow", "reclaim", "return", "borrow"], [True, False, True, False]),
        (["lend", "borrow", "return to loop", "borrow"], [True, True, False]),
        (["lend", "borrow", "return to loop", "reclaim"], [True, True, False]),
        (["lend", "reclaim", "lend", "borrow", "return"], [True, True, False]),
    ],
)
def test_one_thread_at_a_time_owns_it(events: list[str], told: list[bool]) -> None:
    loan = SocketLoan()
    said: list[bool] = []
    for event in events:
        if event == "lend":
            loan.lend()
        elif event == "borrow":
            said.append(loan.borrow())
        elif event == "reclaim":
            said.append(loan.reclaim())
        else:
            said.append(loan.give_back(to_loop=event == "return to loop"))

    assert said == told
