"""The parent's side alone, without a dispatcher: what becomes of a batch that it is given."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT
from tests.worker_models import (
    Keeps,
    KeepsInStream,
    Stubborn,
    big_stream,
    count,
    doubling,
    obedient,
    plus_one,
    says_twice,
    small_files,
)
from wherry.core.instances import process
from wherry.core.instances.model_worker import ModelWorker
from wherry.core.instances.process import ProcessInstance, are_large
from wherry.core.instances.stream_run import ModelStreams, StreamRun
from wherry.core.models.model import Device, Model
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.instance_table import BatchRun
from wherry.core.values.execution import Execution, Failure
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import Batch, InferRequest
from wherry.core.workers import process as worker_process
from wherry.core.workers.link import LARGE_BYTES
from wherry.core.workers.loop import WorkerLoop

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow


class ManualDispatcher:
    """A dispatcher that only notes what it is told."""

    def __init__(self, instance: ProcessInstance) -> None:
        self.instance = instance
        self.told: SimpleQueue[Any] = SimpleQueue()
        #: What time it is, and by how much later whenever it is asked.
        self.time, self.step = 7.0, 0.0

    def next(self) -> Any:
        return self.told.get(timeout=TIMEOUT)

    def now(self) -> float:
        self.time += self.step
        return self.time

    def prepared(self, batch: Batch) -> list[InferRequest]:
        return [request for request in batch.requests if not request.reply.settled]

    def finished(self, instance: ProcessInstance, runs: Sequence[BatchRun]) -> None:
        for run in runs:
            assert instance is self.instance
            assert run.started >= 7.0
            self.told.put(run.execution)

    def crashed(self, instance: ProcessInstance, batch: Batch) -> None:
        self.told.put(sys.exc_info()[1])

    def stream_run(self, instance: ProcessInstance, run: BatchRun) -> StreamRun:
        streams = ModelStreams(
            instance._config, ModelStatistics(), self.now, self.fail, self.failed
        )
        return StreamRun(streams, instance, run)

    def fail(self, request: InferRequest, error: wherry.WherryError) -> bool:
        return request.reply.settle(error)

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self.fail(request, failure.as_exception())

    def streamed(self, run: StreamRun, outcomes: Sequence[Any]) -> None:
        self.told.put(list(outcomes))


class Served:
    """An instance that a thread serves; its messages go through an event loop of its own."""

    def __init__(self, model: Model, **overrides: Any) -> None:
        config = model.config(**overrides)
        self.io = WorkerLoop("io")
        self.instance = ProcessInstance(
            f"{config.name}_0", Device(), model, config, lambda: self.io.calls()
        )
        self.desk = ManualDispatcher(self.instance)
        self.instance.answers = self.desk  # type: ignore[assignment]
        self.instance.load()
        self._ended: SimpleQueue[wherry.WorkerDied | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.instance.serve()
        except wherry.WorkerDied as died:
            self._ended.put(died)
        else:
            self._ended.put(None)

    def outcomes(self, *requests: InferRequest) -> list[Any]:
        """What comes of a batch."""
        self.instance.give([Batch(requests, len(requests), "idle")])
        told = self.desk.next()
        return told.outcomes if isinstance(told, Execution) else told

    def ended(self) -> wherry.WorkerDied | None:
        """How `serve` has ended."""
        return self._ended.get(timeout=TIMEOUT)

    def close(self) -> None:
        self.instance.stop()
        self._thread.join()
        self.instance.unload()
        self.io.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    served: list[Served] = []

    def make(model: Model = obedient, **overrides: Any) -> Served:
        served.append(Served(model, **overrides))
        return served[-1]

    yield make
    for one in served:
        one.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture(scope="module")
def asked() -> Iterator[Served]:
    """One for all tests after which its worker serves on."""
    served = Served(obedient)
    yield served
    served.close()


def request(**columns: Any) -> InferRequest:
    return InferRequest(columns, len(next(iter(columns.values()))), Reply(lambda _: None))


def streaming(**columns: Any) -> tuple[InferRequest, "SimpleQueue[Any]"]:
    """A request that streams, and its responses."""
    responses: SimpleQueue[Any] = SimpleQueue()
    reply: StreamReply[Any] = StreamReply(
        lambda _, response: responses.put(response.outputs), lambda _: None, window=2
    )
    return InferRequest(columns, 1, reply), responses


def in_pid(served: Served, *rows: str) -> dict[str, list[str]]:
    return {"output": [f"{row} in {served.instance.pid}" for row in rows]}


# Batches


def test_a_batch_gives_each_request_its_rows_and_says_where_the_time_went(asked: Served) -> None:
    requests = request(text=["a", "b"]), request(text=["c"])
    asked.instance.give([Batch(requests, 3, "idle")])
    execution = asked.desk.next()

    assert execution.outcomes == [in_pid(asked, "a", "b"), in_pid(asked, "c")]
    assert execution.executed_rows == [3]
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0


def test_what_the_model_raises_is_an_outcome_with_its_traceback(asked: Served) -> None:
    (outcome,) = asked.outcomes(request(text=["raise no apples"]))

    assert isinstance(outcome, Failure)
    assert outcome.message == "model 'obedient' failed: ValueError: no apples"
    assert "Traceback" in outcome.traceback


@pytest.mark.parametrize("said", ["half a pair: \udc80", "much: " + "x" * 2**20])
def test_an_error_may_say_anything_and_costs_no_worker(asked: Served, said: str) -> None:
    (outcome,) = asked.outcomes(request(text=[f"raise_json {json.dumps(said)}"]))

    assert isinstance(outcome, Failure)
    assert outcome.message.startswith(f"model 'obedient' failed: ValueError: {said[:6]}")
    assert len(outcome.message) + len(outcome.traceback) < 2**18
    assert asked.outcomes(request(text=["a"])) == [in_pid(asked, "a")]


def test_a_batch_that_nobody_waits_for_is_not_sent(asked: Served) -> None:
    left = request(text=["exit 1"])
    left.reply.claim()

    assert asked.outcomes(left) == []
    assert asked.outcomes(left, request(text=["a"])) == [in_pid(asked, "a")]


def test_what_cannot_be_sent_fails_alone(asked: Served) -> None:
    bad, alone = request(text=["half a character: \ud800"]), request(text=["\ud800"])

    assert asked.outcomes(request(text=["good"]), bad) == [in_pid(asked, "good")]
    assert asked.outcomes(alone) == []
    assert isinstance(bad.reply.outcome, wherry.InvalidRequest)
    assert isinstance(alone.reply.outcome, wherry.InvalidRequest)


def test_a_bug_of_ours_fails_its_batch_only(asked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(process, "_sizes", fail)
        asked.instance.give([Batch((request(text=["a"]),), 1, "idle")])
        assert isinstance(asked.desk.next(), RuntimeError)
    assert asked.outcomes(request(text=["a"])) == [in_pid(asked, "a")]


@pytest.mark.parametrize("size", [100_000, LARGE_BYTES])
def test_a_batch_fails_for_which_no_memory_is_left(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def short(*_: object) -> None:
        raise OSError(28, "No space left on device")

    served = serve(plus_one)
    x = np.ones((1, size), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr("wherry.core.workers.shared_memory.Region.write", short)
        served.instance.give([Batch((request(x=x),), 1, "idle")])
        assert isinstance(served.desk.next(), OSError)
    (outcome,) = served.outcomes(request(x=x))
    np.testing.assert_array_equal(outcome["output"], x + 1)


@pytest.mark.parametrize("size", [10, 2_000, 100_000, LARGE_BYTES])
def test_arrays_of_any_size_cross_and_several_callers_are_one_batch(
    serve: Callable[..., Served], size: int
) -> None:
    served = serve(plus_one)
    x = np.arange(size, dtype=np.float32)[np.newaxis]

    for _ in range(2):  # the second batch takes the place of the first in the slab
        one, other = served.outcomes(request(x=x), request(x=-x))
        np.testing.assert_array_equal(one["output"], x + 1)
        np.testing.assert_array_equal(other["output"], 1 - x)


def test_several_batches_may_be_with_the_worker_at_once(serve: Callable[..., Served]) -> None:
    served = serve(plus_one)
    arrays = [
        np.full((1, size), number, np.float32)
        for number, size in enumerate((2_000, 100_000, 10, LARGE_BYTES, 2_000, 100_000))
    ]
    for x in arrays:
        served.instance.give([Batch((request(x=x),), 1, "idle")])

    answers = [served.desk.next().outcomes[0]["output"] for _ in arrays]
    for x, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer, x + 1)


def test_a_batch_runs_again_with_the_rows_that_were_sent(serve: Callable[..., Served]) -> None:
    served = serve(doubling, max_batch_size=8)
    requests = [request(x=filled(n)) for n in (1, 2, 1000, 4)]
    served.instance.give(
        [Batch(tuple(requests), 4, "idle"), Batch((request(x=filled(5)),), 1, "idle")]
    )

    outcomes = served.desk.next().outcomes
    assert [one["output"].tolist() for one in (*outcomes[:2], outcomes[3])] == [[2], [4], [8]]
    assert "too large" in outcomes[2].message
    (alone,) = served.desk.next().outcomes  # was with the worker when it asked for the batch
    assert alone["output"].tolist() == [10]


def test_a_model_may_keep_its_inputs(serve: Callable[..., Served]) -> None:
    served = serve(Keeps())
    given = [served.outcomes(request(x=filled(n * n))) for n in range(6)]
    assert [one["output"] for (one,) in given] == [[0], [1], [3], [5], [7], [9]]


def test_a_model_that_streams_may_keep_its_inputs(serve: Callable[..., Served]) -> None:
    served = serve(KeepsInStream())
    for n in range(5):
        one, responses = streaming(x=filled(n * n))
        served.outcomes(one)
        assert responses.get_nowait()["output"] == [max(0, 2 * n - 1)]


def filled(value: float) -> Any:
    return np.full((1, 2000), value, np.float32)


def test_a_large_text_crosses_both_ways(served: Served) -> None:
    row = "x" * 2 * LARGE_BYTES

    assert served.outcomes(request(text=[row])) == [in_pid(served, row)]


def test_what_takes_long_to_encode_is_large() -> None:
    half: dict[str, Any] = {"text": ["x" * (LARGE_BYTES // 2)]}
    large: list[dict[str, Any]] = [
        {"text": ["x" * LARGE_BYTES]},
        {"text": ["x"] * (LARGE_BYTES // 64 + 1)},
        {"text": [[b"x"] * (LARGE_BYTES // 64 + 1)]},
        {"x": np.zeros(LARGE_BYTES, np.float32)},
        {"x": [np.zeros(LARGE_BYTES, np.float32)]},
        {"json": [{"anything": []}]},
    ]

    assert all(are_large([columns]) for columns in large)
    assert not are_large([half])
    assert are_large([half, half])


# Streams


def test_a_stream_of_several_callers_gives_each_its_own_responses(
    serve: Callable[..., Served],
) -> None:
    served = serve(count)
    (one, ones), (other, others) = streaming(to=np.array([1])), streaming(to=np.array([3]))

    assert served.outcomes(one, other) == [None, None]
    assert ones.qsize() == 1
    assert [list(others.get()["output"]) for _ in range(3)] == [[0], [1], [2]]


def test_the_ends_of_a_stream_are_those_of_its_callers_in_their_order(
    serve: Callable[..., Served],
) -> None:
    (large, none), (small, sizes) = streaming(file=[b"1234"]), streaming(file=[b"12"])

    first, second = serve(small_files).outcomes(large, small)
    assert first.error == "RequestTooLarge"
    assert second is None
    assert (none.qsize(), sizes.get_nowait()["output"]) == (0, [2])


def test_a_slow_reader_holds_back_its_stream_and_gets_all_of_it(
    serve: Callable[..., Served],
) -> None:
    served = serve(big_stream)
    one, responses = streaming(n=np.array([10]))
    reply: Any = one.reply
    served.instance.give([Batch((one,), 1, "idle")])

    for number in range(10):
        response = responses.get(timeout=TIMEOUT)
        assert response["output"][0][0] == number
        assert responses.qsize() < 2  # its window
        reply.consumed()
    assert served.desk.next() == [None]


def test_a_reader_that_does_not_read_for_too_long_loses_its_stream(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LOOK", 0.001)
    served = serve(big_stream, stall_timeout=20)
    served.desk.step = 1.0
    one, responses = streaming(n=np.array([10]))

    assert served.outcomes(one) == [None]
    assert responses.qsize() == 2  # its window
    assert isinstance(one.reply.outcome, wherry.Cancelled)
    assert served.instance.busy_since is not None  # it did not count as hung
    assert served.instance.busy_since > 7.0 + 20.0


def test_a_stream_that_cannot_be_sent_fails_alone(serve: Callable[..., Served]) -> None:
    served = serve(says_twice)
    (good, responses), (bad, _) = streaming(text=["a"]), streaming(text=["\ud800"])

    assert served.outcomes(bad, good) == [None]
    assert isinstance(bad.reply.outcome, wherry.InvalidRequest)
    assert responses.qsize() == 2
    (alone, _) = streaming(text=["\ud800"])
    assert served.outcomes(alone) == []
    assert isinstance(alone.reply.outcome, wherry.InvalidRequest)


# Ends


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_batch_that_was_read_is_lost_with_its_worker(served: Served, fifo: str) -> None:
    served.instance.give([Batch((request(text=[f"wait {fifo}"]),), 1, "idle")])
    file = os.open(fifo, os.O_WRONLY)
    kill(served.instance.pid)
    os.close(file)

    died = served.ended()
    assert died is not None
    assert died.reached
    assert "was killed by SIGKILL" in str(died)


def test_a_batch_that_the_worker_has_not_read_did_not_reach_it(served: Served, fifo: str) -> None:
    pid = served.instance.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    served.instance.give([Batch((request(text=["a"]),), 1, "idle")])
    sent = threading.Event()
    served.io.calls().call(lambda _: sent.set(), None)  # after the batch was sent
    assert sent.wait(TIMEOUT)
    kill(pid)

    died = served.ended()
    assert died is not None
    assert not died.reached


def test_a_death_is_seen_although_a_child_of_the_worker_holds_its_sockets(
    served: Served, fifo: str
) -> None:
    served.instance.give([Batch((request(text=[f"fork {fifo}"]),), 1, "idle")])

    died = served.ended()
    assert died is not None
    assert died.reached
    os.close(os.open(fifo, os.O_WRONLY))  # the child goes


def test_an_answer_that_was_sent_before_the_death_arrives(served: Served) -> None:
    assert served.outcomes(request(text=["a"])) == [in_pid(served, "a")]
    kill(served.instance.pid)

    assert served.ended() is not None
    assert served.desk.told.empty()


@pytest.mark.parametrize("text", ["garbage " + "x" * 100, "garbage " + "\0" * 100])
def test_garbage_ends_the_worker(served: Served, text: str) -> None:
    served.instance.give([Batch((request(text=[text]),), 1, "idle")])

    died = served.ended()
    assert died is not None
    assert died.cause == "garbage"


def test_a_death_while_it_waits_is_told_with_its_cause(served: Served) -> None:
    pid = served.instance.pid
    kill(pid)

    assert str(served.ended()) == f"worker obedient_0 (pid {pid}) was killed by SIGKILL"
    assert served.instance.pid is None


def test_abort_says_why(served: Served) -> None:
    assert served.instance.abort("it took too long")

    assert "was stopped: it took too long" in str(served.ended())


def test_a_batch_that_comes_after_the_end_is_not_told_of(served: Served) -> None:
    kill(served.instance.pid)
    assert served.ended() is not None
    served.instance.give([Batch((request(text=["a"]),), 1, "idle")])
    served.instance.unload()
    served.instance.give([Batch((request(text=["b"]),), 1, "idle")])

    assert served.desk.told.empty()


def test_unload_may_be_called_twice_and_nothing_works_after_it(served: Served) -> None:
    served.instance.stop()
    assert served.ended() is None
    served.instance.unload()
    served.instance.unload()
    served.instance.stop()

    assert served.instance.pid is None
    assert served.instance.abort("again")


def test_a_worker_is_killed_that_was_aborted_before_it_was_started() -> None:
    config = obedient.config()
    io = WorkerLoop("io")
    instance = ProcessInstance("obedient_0", Device(), obedient, config, io.calls)
    instance.abort("too late")

    with pytest.raises(wherry.WorkerDied, match="was stopped: too late"):
        instance.load()
    instance.unload()
    io.close()


def test_a_worker_that_does_not_end_is_killed(
    serve: Callable[..., Served],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "LAST_SECONDS", 0.1)
    served = serve(Stubborn(), unload_timeout=0.1)
    served.instance.stop()
    assert served.ended() is None
    served.instance.unload()

    assert "worker killed: it did not end" in caplog.text


class EndsLate:
    """A process that ends by itself at the last moment."""

    pid = 1

    def __init__(self) -> None:
        self.ends: Iterator[Any] = iter([subprocess.TimeoutExpired("worker", 1.0), 0])

    def wait(self, _: float | None = None) -> int:
        end = next(self.ends)
        if isinstance(end, Exception):
            raise end
        return int(end)

    def kill(self) -> None:
        pass


def test_a_worker_that_ends_late_by_itself_was_not_killed(caplog: pytest.LogCaptureFixture) -> None:
    worker_process.await_end(EndsLate())  # type: ignore[arg-type]
    assert caplog.text == ""


def test_a_worker_ends_though_the_loop_of_its_sockets_has_ended() -> None:
    served = Served(obedient)
    served.io.close()
    served.close()

    assert served.instance.pid is None


def test_a_pipe_serves_where_there_is_no_eventfd_and_no_pidfd(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "eventfd")
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")
    served = serve(plus_one)
    x = np.arange(100_000, dtype=np.float32)[np.newaxis]

    (outcome,) = served.outcomes(request(x=x))
    np.testing.assert_array_equal(outcome["output"], x + 1)
    kill(served.instance.pid)
    assert served.ended() is not None


def test_what_is_started_is_given_back_if_something_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("wherry.core.workers.process.subprocess.Popen", short)
    worker = ModelWorker(
        "obedient_0",
        Device(),
        obedient,
        obedient.config(),
        WorkerLoop("io").calls,
        receive=lambda _: None,
        refused=lambda *_: None,
    )

    with pytest.raises(OSError, match="Too many open files"):
        worker.load()
    worker.unload()


# A lone caller, which sends and receives itself


def lent(served: Served) -> Served:
    """After many calls of a lone caller the loop has lent it the sockets."""
    while served.instance.run_in_caller({"text": ["a"]}) is None:
        served.outcomes(request(text=["a"]))
        in_loop(served)
    return served


def in_loop(served: Served) -> None:
    """Wait until the loop has done what it was about to do."""
    done = threading.Event()
    served.io.calls().call(lambda _: done.set(), None)
    assert done.wait(TIMEOUT)


def test_a_lone_caller_is_answered_in_its_thread_after_some_calls(served: Served) -> None:
    assert served.instance.run_in_caller({"text": ["a"]}) is None
    lent(served)
    for text in ("b", "c"):
        assert served.instance.run_in_caller({"text": [text]}) == in_pid(served, text)
    failure = served.instance.run_in_caller({"text": ["raise no apples"]})

    assert isinstance(failure, Failure)
    assert failure.message == "model 'obedient' failed: ValueError: no apples"
    assert served.desk.told.empty()


def test_a_batch_takes_the_sockets_back(served: Served) -> None:
    lent(served)

    assert served.outcomes(request(text=["b"])) == [in_pid(served, "b")]
    assert served.instance.run_in_caller({"text": ["c"]}) is None


def test_a_lone_caller_is_told_what_cannot_be_sent(served: Served) -> None:
    lent(served)
    failure = served.instance.run_in_caller({"text": ["half a pair: \udc80"]})

    assert isinstance(failure, Failure)
    assert failure.error == "InvalidRequest"
    assert served.instance.run_in_caller({"text": ["a"]}) == in_pid(served, "a")


@pytest.mark.parametrize(
    ("order", "cause"), [("exit 3", "exit"), ("kill ", "SIGKILL"), ("garbage xx", "garbage")]
)
def test_the_end_of_the_worker_is_seen_by_its_lone_caller_and_the_loop(
    served: Served, order: str, cause: str
) -> None:
    lent(served)

    assert served.instance.run_in_caller({"text": [order]}) is None
    died = served.ended()
    assert died is not None
    assert died.cause == cause


def test_a_lone_caller_sees_the_end_although_a_child_holds_the_sockets(
    served: Served, fifo: str
) -> None:
    lent(served)

    assert served.instance.run_in_caller({"text": [f"fork {fifo}"]}) is None
    assert served.ended() is not None
    os.close(os.open(fifo, os.O_WRONLY))  # the child goes


def test_an_idle_worker_that_ends_while_its_sockets_are_lent_is_missed(served: Served) -> None:
    lent(served)
    kill(served.instance.pid)

    assert served.ended() is not None


def test_ctrl_c_leaves_the_worker_with_a_row_whose_answer_is_dropped(
    served: Served, fifo: str
) -> None:
    lent(served)
    main = threading.main_thread().ident
    assert main is not None
    files: list[int] = []

    def interrupt() -> None:
        files.append(os.open(fifo, os.O_WRONLY))  # the worker runs the row
        while not served.instance.worker._asleep:
            pass  # else it counts as sent by half
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        served.instance.run_in_caller({"text": [f"wait {fifo}"]})
    thread.join()
    os.close(files[0])

    assert served.outcomes(request(text=["b"])) == [in_pid(served, "b")]


def test_a_worker_leaves_nothing_open_to_warn_of() -> None:
    code = (
        "import wherry; from tests.worker_models import obedient;"
        " overrides = {'obedient': {'isolation': 'process'}}\n"
        "with wherry.Runtime(obedient, overrides=overrides) as runtime:\n"
        "    runtime.infer('obedient', 'a')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONWARNINGS": "always"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "ResourceWarning" not in ran.stderr
