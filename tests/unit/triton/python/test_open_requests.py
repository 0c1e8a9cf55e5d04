"""triton/python/model_requests.py: numbers, and requests that run again."""

from hypothesis import given
from hypothesis import strategies as st

from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse
from wherry.triton.python.model_requests import OpenRequests


def request() -> InferRequest:
    return InferRequest({}, 1, Reply(lambda _: None))


def test_a_request_that_runs_again_keeps_its_number() -> None:
    opened = OpenRequests()
    one = request()
    number = opened.open(one)
    opened.put_back(number)
    assert opened.executing() == []
    assert opened.open(one) == number
    assert opened.executing() == [one]


def test_a_settled_request_that_was_to_run_again_is_forgotten_with_the_next() -> None:
    opened = OpenRequests()
    gone, number = request(), 0
    number = opened.open(gone)
    opened.put_back(number)
    gone.reply.settle(InferResponse({}, 0))
    opened.open(request())
    assert opened.get(number) is None
    assert opened.number_of(gone) is None


def test_only_those_that_were_put_back_are_forgotten_together() -> None:
    opened = OpenRequests()
    first, second = request(), request()
    opened.put_back(opened.open(first))
    opened.open(second)
    opened.forget_put_back()
    assert [one for _, one in opened.all()] == [second]


@given(st.lists(st.tuples(st.sampled_from(["open", "back", "forget"]), st.integers(0, 4))))
def test_numbers_and_requests_stand_for_each_other(events: list[tuple[str, int]]) -> None:
    opened, requests, known = OpenRequests(), [request() for _ in range(5)], set()
    for event, which in events:
        number = opened.number_of(requests[which])
        if event == "open":
            if requests[which] not in opened.executing():  # it runs once at a time
                opened.open(requests[which])
            known.add(which)
        elif number is not None and event == "back":
            opened.put_back(number)
        elif number is not None:
            opened.forget(number)
            known.discard(which)
        assert {requests.index(one) for _, one in opened.all()} == known
        for number, one in opened.all():
            assert opened.get(number) is one
            assert opened.number_of(one) == number
        assert set(map(id, opened.executing())) <= {id(one) for _, one in opened.all()}
