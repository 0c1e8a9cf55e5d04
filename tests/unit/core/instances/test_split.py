"""Does a request of more rows than a batch holds run in parts and end as one?"""

import gc

import numpy as np
import pytest

from tests.fakes import Call
from wherry.core.instances.split import split
from wherry.core.values.errors import BadModelOutput, Cancelled, ModelFailed
from wherry.core.values.reply import Reply
from wherry.core.values.request import Budget, InferRequest, InferResponse, Reservation


class Parts:
    """A request split into parts that the test settles."""

    def __init__(self, *rows: str, most: int = 2) -> None:
        self.call = Call(*rows)
        self.cancelled: list[InferRequest] = []
        self.counted: list[object] = []
        self.parts = list(split(self.call.request, most, self.cancel, self.count))

    def count(self, request: InferRequest, outcome: object) -> None:
        assert (request, self.call.answered) == (self.call.request, False)
        self.counted.append(outcome)

    def cancel(self, part: InferRequest) -> None:
        self.cancelled.append(part)
        part.reply.settle(Cancelled("by its sibling"))

    def answer(self, number: int) -> None:
        part = self.parts[number]
        part.reply.settle(InferResponse({"output": part.inputs["text"]}, part.rows))


def test_the_parts_hold_all_rows_in_order_and_what_the_request_asked_for() -> None:
    call = Call(*"abcde", priority=2, deadline=9.0, shape_key="k")
    parts = split(call.request, 2, lambda part: None, lambda request, outcome: None)
    assert [part.inputs["text"] for part in parts] == [["a", "b"], ["c", "d"], ["e"]]
    assert [part.rows for part in parts] == [2, 2, 1]
    assert {(p.priority, p.deadline, p.shape_key, p.id) for p in parts} == {(2, 9.0, "k", "a")}
    assert call.request.parts == parts
    assert {part.whole for part in parts} == {call.request}


def test_rows_come_back_in_order_whichever_part_ends_first() -> None:
    split_up = Parts(*"abcde")
    for number in (2, 0, 1):
        assert not split_up.call.answered
        split_up.answer(number)
    assert split_up.call.rows() == list("abcde")
    assert split_up.counted == split_up.call.outcomes
    assert split_up.cancelled == []


def test_the_first_part_that_fails_is_the_outcome_and_cancels_the_rest() -> None:
    split_up = Parts(*"abcdef")
    split_up.answer(0)
    error = ModelFailed("no")
    split_up.parts[1].reply.settle(error)
    assert split_up.call.error() is error
    assert split_up.cancelled == [split_up.parts[2]]
    assert split_up.counted == split_up.call.outcomes == [error]


def test_parts_that_end_after_the_request_was_cancelled_change_nothing() -> None:
    split_up = Parts(*"abc")
    split_up.call.request.reply.settle(Cancelled("gone"))
    split_up.answer(0)
    split_up.answer(1)
    assert isinstance(split_up.call.error(), Cancelled)


def test_parts_whose_outputs_do_not_fit_together_are_an_error_and_not_a_hang() -> None:
    split_up = Parts(*"abcd")
    for part, width in zip(split_up.parts, (3, 4), strict=True):
        outputs = {"output": np.zeros((2, width))}
        part.reply.settle(InferResponse(dict(outputs), 2))
    error = split_up.call.error()
    assert isinstance(error, BadModelOutput)
    assert "shape" in str(error)


@pytest.mark.parametrize("fails", [False, True])
def test_once_all_has_ended_nothing_but_its_caller_holds_the_request(fails: bool) -> None:
    """Its inputs are counted against max_queue_bytes as long as they are there."""
    budget = Budget(1)
    assert budget.take(1)
    request = InferRequest({"text": [*"abcd"]}, 4, Reply(lambda _: None))
    request.reservations = (Reservation(budget, 1),)
    cancelled: list[bool] = []
    gc.disable()
    try:
        parts = split(
            request,
            2,
            lambda part: cancelled.append(part.reply.settle(Cancelled("by its sibling"))),
            lambda request, outcome: None,
        )
        first, second = parts
        first.reply.settle(ModelFailed("no") if fails else InferResponse({"y": [1, 2]}, 2))
        second.reply.settle(InferResponse({"y": [3, 4]}, 2))
        assert (request.reply.settled, cancelled) == (True, [True] if fails else [])
        del request, parts, first, second
        assert budget.held == 0
    finally:
        gc.enable()
