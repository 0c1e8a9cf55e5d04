"""Who may use what an event loop offers."""

import pytest

from wherry.core.workers.link import SocketLease


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (["acquire"], [False]),
        (["offer", "acquire", "acquire"], [True, False]),
        (["offer", "acquire", "return", "acquire"], [True, False, True]),
        (["offer", "reclaim", "acquire"], [True, False]),
        (["offer", "acquire", "reclaim", "return", "acquire"], [True, False, True, False]),
        (["offer", "acquire", "return to loop", "acquire"], [True, True, False]),
        (["offer", "acquire", "return to loop", "reclaim"], [True, True, False]),
        (["offer", "reclaim", "offer", "acquire", "return"], [True, True, False]),
    ],
)
def test_one_thread_at_a_time_owns_it(events: list[str], told: list[bool]) -> None:
    lease = SocketLease()
    said: list[bool] = []
    for event in events:
        if event == "offer":
            lease.offer()
        elif event == "acquire":
            said.append(lease.acquire())
        elif event == "reclaim":
            said.append(lease.reclaim())
        else:
            said.append(lease.release(to_loop=event == "return to loop"))

    assert said == told
