"""Does a request of more rows than a batch holds run in parts and end as one?"""

import numpy as np

from tests.fakes import Call
from wherry.errors import BadModelOutput, Cancelled, ModelFailed
from wherry.instances.split import split
from wherry.request import InferRequest, InferResponse


class Parts:
    """A request split into parts that the test settles."""

    def __init__(self, *rows: str, most: int = 2) -> None:
        self.call = Call(*rows)
        self.cancelled: list[InferRequest] = []
        self.parts = split(self.call.request, most, self.cancel)

    def cancel(self, part: InferRequest) -> None:
        self.cancelled.append(part)
        part.reply.settle(Cancelled("by its sibling"))

    def answer(self, number: int) -> None:
        part = self.parts[number]
        part.reply.settle(InferResponse({"output": part.inputs["text"]}, part.rows))


def test_the_parts_hold_all_rows_in_order_and_what_the_request_asked_for() -> None:
    call = Call(*"abcde", priority=2, deadline=9.0, shape_key="k")
    parts = split(call.request, 2, lambda part: None)
    assert [part.inputs["text"] for part in parts] == [["a", "b"], ["c", "d"], ["e"]]
    assert [part.rows for part in parts] == [2, 2, 1]
    assert {(p.priority, p.deadline, p.shape_key, p.id) for p in parts} == {(2, 9.0, "k", "a")}
    assert call.request.parts == parts


def test_rows_come_back_in_order_whichever_part_ends_first() -> None:
    split_up = Parts(*"abcde")
    for number in (2, 0, 1):
        assert not split_up.call.answered
        split_up.answer(number)
    assert split_up.call.rows() == list("abcde")
    assert split_up.cancelled == []


def test_the_first_part_that_fails_is_the_outcome_and_cancels_the_rest() -> None:
    split_up = Parts(*"abcdef")
    split_up.answer(0)
    error = ModelFailed("no")
    split_up.parts[1].reply.settle(error)
    assert split_up.call.error() is error
    assert split_up.cancelled == [split_up.parts[2]]
    assert len(split_up.call.outcomes) == 1


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
