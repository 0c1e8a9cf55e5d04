"""Deadlines in any order come out in theirs, and those of settled requests never."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import Call
from wherry.core.scheduler.deadlines import Deadlines
from wherry.core.values.errors import Cancelled


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.booleans())), st.integers(0, 9)
)
def test_what_is_due_is_taken_once_and_in_order(
    added: list[tuple[int | None, bool]], now: int
) -> None:
    deadlines, open_ones = Deadlines(), list[int]()
    for deadline, settled in added:
        request = Call("a", deadline=deadline).request
        deadlines.add(request)
        if settled:
            request.reply.settle(Cancelled("gone"))
        elif deadline is not None:
            open_ones.append(deadline)
    due = [request.deadline for request in deadlines.take_due(now)]
    assert due == sorted(one for one in open_ones if one <= now)
    assert deadlines.next() == min((one for one in open_ones if one > now), default=inf)
    assert deadlines.take_due(now) == []
