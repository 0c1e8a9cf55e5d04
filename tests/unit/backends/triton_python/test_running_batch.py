"""backends/triton_python/running_batch.py: what becomes of each request of a batch."""

from wherry.backends.triton_python.running_batch import RunningBatch
from wherry.instances.executable import Failure
from wherry.values.reply import Reply
from wherry.values.request import InferRequest


def test_what_has_no_outcome_after_execute_comes_later() -> None:
    requests = [InferRequest({}, rows, Reply(lambda _: None)) for rows in (1, 2, 4)]
    batch = RunningBatch(requests)
    batch.outcomes[0] = Failure("InvalidRequest", "cannot be sent")
    batch.sent(1, 7)
    batch.sent(2, 8)
    batch.settle(2, {"y": ["done"]})

    execution = batch.execution(5, 6, -1)

    assert execution.later == {requests[1]}
    assert execution.outcomes == [batch.outcomes[0], {}, {"y": ["done"]}]
    assert execution.executed_rows == [6]
    assert (execution.input_ns, execution.infer_ns, execution.output_ns) == (5, 6, 0)
