"""What becomes of a stream's responses: the pace of its reader, and what is counted."""

import pytest

from tests.fakes import Call, ManualClock
from wherry.core.instances.instance import Loadable
from wherry.core.instances.stream_run import ModelStreams, StreamRun
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.instance_table import BatchRun, BatchSlot
from wherry.core.values.errors import Cancelled, WherryError
from wherry.core.values.execution import Failure
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Batch, Columns, InferRequest

ROW: Columns = {"output": ["x"]}


class Machine(Loadable, BatchSlot):
    """The instance, and what the run tells of its requests."""

    def __init__(self) -> None:
        super().__init__("m_0", Device())
        self.failures: list[tuple[str, WherryError]] = []

    def load(self) -> None: ...
    def serve(self) -> None: ...
    def stop(self) -> None: ...
    def unload(self) -> None: ...

    def fail(self, request: InferRequest, error: WherryError) -> bool:
        self.failures.append((request.id, error))
        return request.reply.settle(error)

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self.fail(request, failure.as_exception())


def begun(*calls: Call, window: int = 2) -> tuple[StreamRun, Machine, ManualClock, ModelStatistics]:
    machine, clock, statistics = Machine(), ManualClock(), ModelStatistics()
    requests = [call.request for call in calls]
    for request in requests:
        assert isinstance(request.reply, StreamReply)
        request.reply.window = window
    run = StreamRun(
        ModelStreams(
            ModelConfig(name="m", stall_timeout=5.0),
            statistics,
            clock,
            machine.fail,
            machine.failed,
        ),
        machine,
        BatchRun(Batch(tuple(requests), len(requests), "idle"), requests, clock.now),
    )
    return run, machine, clock, statistics


def read(call: Call) -> None:
    assert isinstance(call.request.reply, StreamReply)
    call.request.reply.consumed()


def test_a_lone_reader_holds_back_its_stream_until_it_reads() -> None:
    call, goes_on = Call("a", stream=True), list[str]()
    run, _, _, _ = begun(call)
    assert run.respond(0, ROW)
    assert run.respond(0, ROW)

    assert not run.has_room()
    run.when_room(lambda: goes_on.append("now"))
    assert not goes_on
    read(call)
    assert goes_on == ["now"]
    read(call)
    assert goes_on == ["now"], "once"
    assert run.respond(0, ROW)


def test_a_stream_goes_on_when_its_reader_leaves() -> None:
    call, goes_on = Call("a", stream=True), list[str]()
    run, _, _, _ = begun(call, window=1)
    run.respond(0, ROW)
    run.when_room(lambda: goes_on.append("now"))
    call.request.reply.settle(Cancelled("gone"))
    assert goes_on == ["now"]
    assert not run.respond(0, ROW)


def test_a_response_that_nobody_waited_with_ends_its_stream() -> None:
    call = Call("a", stream=True)
    run, machine, _, _ = begun(call, window=1)
    assert run.respond(0, ROW)
    assert not run.respond(0, ROW)
    ((_, error),) = machine.failures
    assert "left 1 responses unread" in str(error)


def test_readers_of_a_shared_batch_hold_nobody_back() -> None:
    calls = Call("a", stream=True), Call("b", stream=True)
    run, machine, _, _ = begun(*calls, window=1)
    for _ in range(3):
        assert run.has_room()
        run.wait_for_room()
        assert run.respond(0, ROW)
    assert not machine.failures
    assert [len(call.responses) for call in calls] == [3, 0]


def test_the_time_a_response_is_held_back_is_the_readers() -> None:
    call = Call("a", stream=True)
    run, machine, clock, statistics = begun(call, window=1)
    clock.now = 1.0
    run.respond(0, ROW)  # after 1 s
    clock.now = 3.0
    run.when_room(lambda: None)  # the next came after 2 s more
    clock.now = 60.0
    read(call)
    run.respond(0, ROW)
    assert machine.busy_since == 60.0
    run.settle(0, None)
    came = [place.came.ns for place in statistics.response_places]
    assert came == [10**9, 2 * 10**9, 0]


@pytest.mark.parametrize("left", [False, True])
def test_what_the_model_raised_ends_the_stream(left: bool) -> None:
    call = Call("a", stream=True)
    run, machine, _, _ = begun(call)
    run.respond(0, ROW)
    if left:
        call.request.reply.settle(Cancelled("gone"))
    run.settle(0, Failure("ModelFailed", "broke"))
    assert isinstance(call.error(), Cancelled) == left
    assert [str(error) for _, error in machine.failures] == ["broke"]
