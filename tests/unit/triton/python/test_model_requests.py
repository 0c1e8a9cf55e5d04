"""triton/python/model_requests.py: what becomes of each request of a batch."""

from typing import Any

import pytest

from wherry.core.values.execution import Failure
from wherry.core.values.reply import Reply
from wherry.core.values.request import Batch, InferRequest
from wherry.triton.python.model_requests import NothingToSend, RunningBatch
from wherry.triton.python.stub.wire import Outgoing


class Codec:
    """Sends requests of two rows and more."""

    model_name = "written"

    def tensors(self, out: Outgoing, request: InferRequest) -> list[Any]:
        if request.rows < 2:
            raise ValueError("too few rows")
        return ["tensor"]

    def described(self, number: int, request: InferRequest, tensors: list[Any]) -> list[Any]:
        return [number, tensors]


def batch_of(*rows: int) -> RunningBatch:
    requests = [InferRequest({}, count, Reply(lambda _: None)) for count in rows]
    batch = Batch(tuple(requests), sum(rows), "full")
    codec: Any = Codec()
    numbers = range(7, 7 + len(rows))
    return RunningBatch(batch, requests, 1.5, numbers=numbers, codec=codec)


def test_what_has_no_outcome_after_execute_comes_later() -> None:
    run = batch_of(1, 2, 4)

    assert run.build(Outgoing()) == ["execute", [[8, ["tensor"]], [9, ["tensor"]]]]
    run.outcomes[2] = {"y": ["done"]}
    run.leave(1)
    run.end(5, 6, -1)

    execution = run.execution
    assert execution.later == {run.requests[1]}
    unsent, _, done = execution.outcomes
    assert isinstance(unsent, Failure)
    assert unsent.message == "model 'written': too few rows"
    assert done == {"y": ["done"]}
    assert execution.executed_rows == [6]
    assert (execution.input_ns, execution.infer_ns, execution.output_ns) == (5, 6, 0)


def test_a_batch_of_which_nothing_can_be_sent_ends_without_having_run() -> None:
    run = batch_of(1, 1)

    with pytest.raises(NothingToSend):
        run.build(Outgoing())

    run.end()
    execution = run.execution
    assert [type(outcome) for outcome in execution.outcomes] == [Failure, Failure]
    assert (execution.executed_rows, execution.later) == ([], set())


def test_a_batch_that_is_too_large_fails_where_it_would_have_been_sent() -> None:
    run = batch_of(1, 2)
    run.build(Outgoing())
    run.refuse(Failure("RequestTooLarge", "too much"))

    run.end()
    first, second = run.execution.outcomes
    assert isinstance(first, Failure)
    assert isinstance(second, Failure)
    assert (first.error, second.error) == ("InvalidRequest", "RequestTooLarge")


def test_time_behind_another_batch_is_no_time_of_this_one() -> None:
    run = batch_of(2)
    given_ns = run.started_ns

    assert run.ran(given_ns + 100, 50, given_ns - 5) == given_ns + 150
    assert (run.started, run.execution.input_ns) == (1.5, 100)

    run.ran(given_ns + 250_000_100, 50, given_ns + 250_000_000)
    assert (run.started, run.execution.input_ns) == (1.75, 100)
