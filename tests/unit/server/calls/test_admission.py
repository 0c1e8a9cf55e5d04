"""What may the requests of one server hold, and when do they give it back?"""

import numpy as np
import pytest

from tests.fakes import Call
from wherry.core.values.errors import RequestTooLarge, TooManyBytes
from wherry.core.values.reply import Reply
from wherry.core.values.request import Columns, InferRequest
from wherry.server.calls.admission import SMALL_BODY, SMALL_BYTES, Admission

MIB = 2**20


def request_of(mebibytes: int) -> InferRequest:
    columns: Columns = {"x": np.zeros((1, mebibytes * MIB), np.uint8)}
    return InferRequest(columns, 1, Reply(lambda _: None))


def test_a_large_request_counts_with_its_columns_and_a_small_one_with_its_share() -> None:
    admission = Admission(max_bytes=4 * MIB)
    large = request_of(3)
    admission.enter(large)
    assert admission.held_bytes == 3 * MIB
    admission.enter(Call("a").request, SMALL_BODY)
    assert admission.held_bytes == 3 * MIB + SMALL_BYTES
    with pytest.raises(TooManyBytes, match="max_queue_bytes") as refused:
        admission.enter(request_of(1))
    assert (refused.value.http_status, refused.value.retry_after) == (503, 1.0)
    assert (admission.in_flight, admission.refused) == (2, 1)


def test_what_is_answered_is_free_once_nothing_holds_the_request() -> None:
    admission = Admission(max_bytes=4 * MIB)
    large = request_of(3)
    admission.enter(large)
    admission.leave()  # its client has left, the batch runs on
    with pytest.raises(TooManyBytes):
        admission.enter(request_of(3))
    del large
    admission.enter(request_of(3))
    assert admission.in_flight == 1


def test_small_requests_are_bounded_too() -> None:
    admission = Admission(max_bytes=4 * MIB)
    for _ in range(64):
        admission.enter(Call("a").request, 10)
    with pytest.raises(TooManyBytes):
        admission.enter(Call("a").request, 10)
    assert admission.in_flight == 64
    for _ in range(64):
        admission.leave()
    assert admission.held_bytes == 0


def test_a_request_that_no_waiting_makes_fit_is_too_large_and_not_refused_for_now() -> None:
    admission = Admission(max_bytes=4 * MIB)
    with pytest.raises(RequestTooLarge, match="max_queue_bytes"):
        admission.enter(request_of(5))
    assert (admission.in_flight, admission.held_bytes) == (0, 0)
