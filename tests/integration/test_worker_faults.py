"""What does a caller see when a worker process fails, and is everything well again after it?"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import wherry
from tests import worker_models
from tests.fakes import until
from tests.worker_models import Loader, Point, SecondTimeUnlucky, obedient
from wherry.core.instances.process import ProcessInstance
from wherry.core.values.reply import Reply

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow


def runtime(*models: Any) -> wherry.Runtime:
    return wherry.Runtime(*models, isolation="process")


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def meet(fifo: str) -> Callable[[], None]:
    """Wait until the model is at the FIFO, where it stays until the result is called."""
    file = os.open(fifo, os.O_WRONLY)
    return lambda: os.close(file)


def pid_of(answer: str) -> int:
    return int(answer.rpartition(" ")[2])


def is_alive(pid: int) -> bool:
    """Not if it is a zombie, all of it: while another thread ends it still holds its files."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def workers(rt: wherry.Runtime, model: str = "obedient") -> list[ProcessInstance]:
    runner: Any = rt.model(model).runner
    return list(runner.instances)


def restarted(rt: wherry.Runtime) -> int:
    return rt.model("obedient").statistics.worker_restarts


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))


def pass_time(rt: wherry.Runtime, seconds: float) -> None:
    """By the model's clock so much time passes now."""
    runner: Any = rt.model("obedient").runner
    clock = runner._clock
    runner._clock = lambda: clock() + seconds
    runner.tick()


def queue_up(
    rt: wherry.Runtime, callers: ThreadPoolExecutor, model: str, *rows: str
) -> list[Future[Any]]:
    """Have these rows wait in the queue, in this order: they will share a batch."""
    runner: Any = rt.model(model).runner
    waiting = runner.queued_requests
    futures = []
    for number, row in enumerate(rows, waiting + 1):
        futures.append(callers.submit(rt.infer, model, row))
        until(lambda number=number: runner.queued_requests == number)  # type: ignore[misc]
    return futures


# A worker dies


def test_a_worker_killed_in_mid_batch_is_replaced_and_its_batch_is_answered(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with runtime(obedient) as rt:
        first = pid_of(rt.infer("obedient", "a"))
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        waiting = queue_up(rt, callers, "obedient", "b", "c")
        kill(first)
        again = meet(fifo)  # the retry, in the new worker
        release()  # not before that: it would not wait
        again()

        second = pid_of(held.result())
        assert second != first
        assert {pid_of(future.result()) for future in waiting} == {second}
        assert rt.model("obedient").statistics.worker_restarts == 1
        assert rt.model("obedient").not_ready_reason() == ""


# The event loop that owns a worker's sockets


def test_a_worker_that_dies_is_replaced_for_callers_in_a_loop() -> None:
    async def main(rt: wherry.Runtime) -> None:
        first = pid_of(await rt.ainfer("obedient", "a"))
        kill(first)
        assert pid_of(await rt.ainfer("obedient", "b")) != first
        with pytest.raises(wherry.WorkerDied):  # it is tried twice
            await rt.ainfer("obedient", "exit 3")

    with runtime(obedient) as rt:
        asyncio.run(main(rt))


def test_a_callers_event_loop_that_blocks_harms_no_other() -> None:
    """Not even itself, if what it waits for is behind its own request."""

    async def main(rt: wherry.Runtime) -> None:
        own = asyncio.ensure_future(rt.ainfer("obedient", "own"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it is sent by now
        assert rt.infer("obedient", "blocking").startswith("blocking")
        assert (await own).startswith("own")

    with runtime(obedient) as rt:
        asyncio.run(main(rt))


def test_a_callers_event_loop_may_end_before_its_answer() -> None:
    async def leave(rt: wherry.Runtime) -> None:
        asyncio.ensure_future(rt.ainfer("obedient", "nobody waits for it")).add_done_callback(
            lambda _: None
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with runtime(obedient) as rt:
        for _ in range(2):
            asyncio.run(leave(rt))
            assert rt.infer("obedient", "b").startswith("b")


def test_event_loops_and_threads_share_a_worker(callers: ThreadPoolExecutor) -> None:
    async def call(rt: wherry.Runtime, caller: int) -> None:
        for n in range(50):
            row = f"{caller} {n}"
            assert (await rt.ainfer("obedient", row)).startswith(f"{row} in")
            if n % 10 == 0:
                long = f"{caller} {'x' * 50_000}"
                assert (await rt.ainfer("obedient", long)).startswith(long)

    with runtime(obedient) as rt:
        loops = [callers.submit(lambda n=n: asyncio.run(call(rt, n))) for n in range(3)]  # type: ignore[misc]
        rows = list(callers.map(lambda n: rt.infer("obedient", f"t{n}"), range(100)))
        for loop in loops:
            loop.result()
        assert [row.partition(" ")[0] for row in rows] == [f"t{n}" for n in range(100)]


def test_a_model_is_unloaded_while_callers_in_a_loop_wait() -> None:
    async def main(rt: wherry.Runtime) -> None:
        calls = [asyncio.ensure_future(rt.ainfer("obedient", str(n))) for n in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # they are sent by now, or wait in the queue
        await asyncio.to_thread(rt.unload, "obedient")
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(answer).partition(" ")[0] for answer in answers] == [str(n) for n in range(20)]

    with runtime(obedient) as rt:
        asyncio.run(main(rt))


def test_a_caller_that_leaves_while_its_batch_runs_takes_nothing_from_the_next_ones(
    fifo: str,
) -> None:
    """It was sent by its caller's own thread, and nobody waits for its answer any more."""
    with runtime(obedient) as rt:
        loaded: Any = rt.model("obedient")
        left = loaded.request({"text": [f"wait {fifo}"]}, 1, Reply(lambda _: None))
        loaded.submit([left])
        release = meet(fifo)
        assert loaded.runner.cancel(left)
        release()

        assert [rt.infer("obedient", row).partition(" ")[0] for row in "abc"] == ["a", "b", "c"]
        assert isinstance(left.reply.outcome, wherry.Cancelled)


def test_a_request_whose_worker_dies_twice_is_told_so(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with runtime(obedient) as rt:
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        meetings = []
        for _ in range(2):
            meetings.append(meet(fifo))
            kill(workers(rt)[0].pid)
        for release in meetings:  # not before: the second worker would not wait
            release()

        with pytest.raises(wherry.WorkerDied, match=r"worker obedient_0 \(pid \d+\) was killed by"):
            held.result()
        assert "fine" in rt.infer("obedient", "fine")


def test_a_worker_killed_while_idle_is_replaced_without_a_request() -> None:
    with runtime(obedient) as rt:
        first = pid_of(rt.infer("obedient", "a"))
        kill(first)
        until(lambda: rt.model("obedient").statistics.worker_restarts == 1)

        assert pid_of(rt.infer("obedient", "b")) != first


def test_the_other_instance_takes_over_at_once(callers: ThreadPoolExecutor, fifo: str) -> None:
    with wherry.Runtime(isolation="process") as rt:
        rt.load(obedient, instances=2)
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        other = pid_of(rt.infer("obedient", "a"))
        (busy,) = [worker for worker in workers(rt) if worker.pid != other]
        kill(busy.pid)
        again = meet(fifo)
        release()  # not before that: the retry would not wait
        again()

        assert pid_of(held.result()) == other


@pytest.mark.parametrize(
    ("order", "how"),
    [
        ("kill", "was killed by SIGKILL"),
        ("segfault", "was killed by SIGSEGV"),
        ("exit 3", "ended with exit status 3"),
        ("thread_exit", "ended with exit status 7"),
        ("garbage hello", "wrote garbage to its connection, and was killed"),
    ],
)
def test_a_row_that_kills_its_worker_dies_alone_and_its_neighbours_are_answered(
    callers: ThreadPoolExecutor, fifo: str, order: str, how: str
) -> None:
    with runtime(obedient) as rt:
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        good, bad, also_good = queue_up(rt, callers, "obedient", "good", order, "also good")
        release()

        assert good.result().startswith("good in")
        assert also_good.result().startswith("also good in")
        with pytest.raises(wherry.WorkerDied, match=how):
            bad.result()
        held.result()
        assert rt.infer("obedient", "next").startswith("next in")


def test_a_worker_that_closes_its_connection_and_goes_on_is_killed(fifo: str) -> None:
    with runtime(obedient) as rt:
        with pytest.raises(wherry.WorkerDied, match="closed its connection, and was killed"):
            rt.infer("obedient", f"close {fifo}")
        assert rt.infer("obedient", "next").startswith("next in")


def test_a_death_is_seen_although_a_child_of_the_worker_holds_its_descriptors(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with runtime(obedient) as rt:
        with pytest.raises(wherry.WorkerDied, match="SIGKILL"):
            rt.infer("obedient", f"fork {fifo}")
        assert rt.infer("obedient", "next").startswith("next in")
        meet(fifo)()


def test_sys_exit_in_a_model_is_a_failure_and_not_the_end_of_its_worker() -> None:
    with runtime(obedient) as rt:
        first = pid_of(rt.infer("obedient", "a"))

        with pytest.raises(wherry.ModelFailed, match="SystemExit: 4"):
            rt.infer("obedient", "sys_exit 4")
        assert pid_of(rt.infer("obedient", "b")) == first


def test_a_row_that_raises_fails_alone_with_the_workers_traceback(
    callers: ThreadPoolExecutor, fifo: str, caplog: pytest.LogCaptureFixture
) -> None:
    with runtime(obedient) as rt:
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        good, bad = queue_up(rt, callers, "obedient", "good", "raise no apples")
        release()

        assert good.result().startswith("good in")
        with pytest.raises(wherry.ModelFailed, match="ValueError: no apples") as caught:
            bad.result()
        assert "in _raise" in caught.value.__notes__[0]
        held.result()
    (failed,) = [r.__dict__ for r in caplog.records if r.getMessage() == "model failed"]
    assert "in _raise" in failed["traceback"]
    assert (failed["model"], failed["instance"]) == ("obedient", "obedient_0")


# A worker hangs


def test_a_batch_that_runs_too_long_fails_and_its_worker_is_replaced(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with wherry.Runtime(isolation="process") as rt:
        rt.load(obedient, execution_timeout=600.0)
        first = pid_of(rt.infer("obedient", "a"))
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        pass_time(rt, 600.0)

        with pytest.raises(wherry.ExecutionTimeout, match="execution_timeout"):
            held.result()
        assert pid_of(rt.infer("obedient", "b")) != first
        release()


def test_close_ends_a_worker_that_hangs(callers: ThreadPoolExecutor, fifo: str) -> None:
    with runtime(obedient) as rt:
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        rt.model("obedient").runner.close(timeout=0.1)
    release()

    with pytest.raises(wherry.WherryError, match="the server is stopping"):
        held.result()


def test_close_ends_a_worker_that_unloads_for_ever(
    callers: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    rt = runtime(worker_models.Stubborn()).start()
    try:
        assert rt.infer("stubborn", "a") == "a"
        runner: Any = rt.model("stubborn").runner
        closing = callers.submit(runner.close, None)
        until(lambda: runner.life.unloading)
    finally:
        rt.close(timeout=0.1)
    closing.result()

    assert "unload cut short" in caplog.text


def test_a_worker_that_dies_while_the_model_is_unloaded_leaves_no_request_unanswered(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with runtime(obedient) as rt:
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        runner: Any = rt.model("obedient").runner
        (worker,) = workers(rt)
        closing = callers.submit(runner.close)
        until(lambda: runner.life.closing)
        kill(worker.pid)
        release()

        with pytest.raises(wherry.WorkerDied):
            held.result()
        closing.result()


# A worker cannot be started


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("raise no weights", "ValueError: no weights"),
        ("exit 5", r"worker loader_0 \(pid \d+\) ended with exit status 5"),
        ("kill", "was killed by SIGKILL"),
        ("sys_exit 2", "SystemExit: 2"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(order: str, message: str) -> None:
    with wherry.Runtime(isolation="process") as rt:
        with pytest.raises(wherry.LoadFailed, match=f"'loader' could not be loaded: .*{message}"):
            rt.load(Loader(order))
        with pytest.raises(wherry.ModelNotFound):
            rt.infer("loader", "a")


def test_a_failed_load_shows_the_workers_traceback() -> None:
    with wherry.Runtime(isolation="process") as rt, pytest.raises(wherry.LoadFailed) as caught:
        rt.load(Loader("raise no weights"))

    assert caught.value.__cause__ is not None
    assert "in _raise" in caught.value.__cause__.__notes__[0]


def test_a_model_whose_workers_keep_dying_is_given_up_with_the_cause(tmp_path: Path) -> None:
    with wherry.Runtime(isolation="process") as rt:
        rt.load(SecondTimeUnlucky(str(tmp_path / "marker")), crash_budget=1)
        model = rt.model("second_time_unlucky")

        with pytest.raises(wherry.WherryError):
            rt.infer("second_time_unlucky", "kill")
        until(lambda: "exit status 9" in model.not_ready_reason())

        assert "more than 1 times within 60 s" in model.not_ready_reason()
        with pytest.raises(wherry.ModelNotReady, match="exit status 9"):
            rt.infer("second_time_unlucky", "a")


def test_a_model_whose_files_vanish_is_away_and_comes_back_with_them(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with wherry.Runtime(isolation="process") as rt:
        rt.load(SecondTimeUnlucky(str(marker)), crash_budget=0, max_restart_delay=0.2)
        model = rt.model("second_time_unlucky")
        kill(workers(rt, "second_time_unlucky")[0].pid)
        until(lambda: "exit status 9" in model.not_ready_reason())
        with pytest.raises(wherry.ModelNotReady) as refused:
            rt.infer("second_time_unlucky", "a")
        assert refused.value.retry_after is not None

        marker.unlink()
        until(lambda: not model.not_ready_reason())
        assert rt.infer("second_time_unlucky", "a").startswith("a in")


@pytest.mark.parametrize("order", ["abort", "segfault", "kill", "exit 3", "thread_exit"])
def test_poison_is_refused_and_leaves_the_model_ready_for_the_others(order: str) -> None:
    with wherry.Runtime(isolation="process") as rt:
        rt.load(obedient, crash_budget=1)
        for _ in range(10):
            with pytest.raises(wherry.PoisonRequest):
                rt.infer("obedient", order)
            assert rt.infer("obedient", "good").startswith("good in")
        statistics = rt.model("obedient").statistics
        assert (statistics.worker_restarts, statistics.poisoned) == (2, 9)
        assert not rt.model("obedient").not_ready_reason()


def test_a_request_that_hangs_its_workers_is_refused_from_the_third_time_on(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with wherry.Runtime(isolation="process") as rt:
        rt.load(obedient, execution_timeout=600.0)
        for restarts in (1, 2):
            held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
            release = meet(fifo)
            pass_time(rt, 601.0)
            with pytest.raises(wherry.ExecutionTimeout):
                held.result()
            release()
            until(lambda restarts=restarts: restarted(rt) == restarts)  # type: ignore[misc]
        with pytest.raises(wherry.PoisonRequest):
            rt.infer("obedient", f"wait {fifo}")
        assert rt.infer("obedient", "good").startswith("good in")


@pytest.mark.parametrize("what", ["local function", "local class", "argument"])
def test_a_model_that_no_worker_could_import_is_refused_at_once(what: str) -> None:
    @wherry.model
    def local(text: list[str]) -> list[str]:
        return text

    class Local(Loader):
        pass

    models: dict[str, wherry.Model] = {
        "local function": local,
        "local class": Local(),
        "argument": Loader(threading.Lock()),  # type: ignore[arg-type]
    }
    with (
        wherry.Runtime(isolation="process") as rt,
        pytest.raises(wherry.ConfigError, match=r"cannot be sent.*isolation='thread'"),
    ):
        rt.load(models[what])


# What crosses


def test_arrays_of_any_size_cross_and_a_batch_of_them_is_one() -> None:
    with runtime(worker_models.plus_one, worker_models.same) as rt:
        for size in (0, 1, 2000, 150_000, 10_000_000):  # the last is larger than the slab
            x = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(rt.infer("plus_one", x), x + 1)
        rows = [np.full(150_000, i, np.float32) for i in range(100)]
        for row, answer in zip(rows, rt.map("same", rows), strict=True):
            np.testing.assert_array_equal(row, answer)


def test_an_answer_is_the_callers_own_and_not_written_over() -> None:
    with runtime(worker_models.plus_one) as rt:
        answers = [rt.infer("plus_one", np.full(5000, i, np.float32)) for i in range(5)]

        assert [float(answer[0]) for answer in answers] == [1, 2, 3, 4, 5]
        answers[0][:] = 7


def test_rows_of_every_kind_come_back_as_from_a_thread() -> None:
    models: list[Any] = [worker_models.reverse, worker_models.mirror, worker_models.later]
    calls: list[tuple[str, Any]] = [
        ("reverse", np.arange(3, dtype=np.int32)),
        ("mirror", {"x": 1, "y": 2}),
        ("later", "abc"),
    ]
    with runtime(*models) as rt, wherry.Runtime(*models, isolation="thread") as threads:
        for model, value in calls:
            mine, theirs = rt.infer(model, value), threads.infer(model, value)
            assert type(mine) is type(theirs)
            np.testing.assert_equal(mine, theirs)
        assert rt.infer("mirror", Point(1, 2)) == Point(2, 1)
        assert [list(row) for row in rt.map("reverse", [np.arange(n) for n in range(9)])] == [
            list(range(n))[::-1] for n in range(9)
        ]


def test_what_cannot_be_sent_fails_alone_both_ways(callers: ThreadPoolExecutor) -> None:
    with runtime(worker_models.json_row) as rt:
        rows: list[dict[str, Any]] = [{"a": 1}, {"a": object()}, {"bad": True}, {"a": 2**70}]
        futures = [callers.submit(rt.infer, "json_row", row) for row in rows * 4]
        for future in futures[0::4]:
            assert future.result()["row"] == {"a": 1}
            assert future.result()["number"] == 0.5
        for future in futures[1::4]:
            with pytest.raises(wherry.InvalidRequest, match="object is not JSON"):
                future.result()
        for future in futures[2::4]:
            with pytest.raises(wherry.BadModelOutput, match="returned what cannot be sent"):
                future.result()
        for future in futures[3::4]:
            with pytest.raises(wherry.InvalidRequest, match="serialize ints"):
                future.result()


# Streams


def test_a_stream_of_several_callers_gives_each_its_own_responses(
    callers: ThreadPoolExecutor,
) -> None:
    with runtime(worker_models.count) as rt:
        ends = [3, 1, 4, 1, 5, 2]
        streams = [callers.submit(lambda end: list(rt.stream("count", end)), end) for end in ends]

        assert [stream.result() for stream in streams] == [list(range(end)) for end in ends]


def test_a_stream_whose_caller_left_is_stopped_in_the_worker(fifo: str) -> None:
    with runtime(worker_models.endless) as rt:
        stream = rt.stream("endless", fifo)
        assert next(stream) == "more"
        stream.close()  # type: ignore[attr-defined]
        meet(fifo)()  # its generator was closed


def test_a_stream_of_large_arrays_may_be_read_late() -> None:
    with runtime(worker_models.big_stream) as rt:
        assert [row[-1] for row in list(rt.stream("big_stream", 30))] == list(range(30))


def test_a_stream_whose_worker_dies_ends_with_the_cause() -> None:
    with runtime(worker_models.dies_in_stream) as rt:
        stream = rt.stream("dies_in_stream", "exit 3")
        assert next(stream) == "one"
        with pytest.raises(wherry.WorkerDied, match="exit status 3"):
            next(stream)
        assert list(rt.stream("dies_in_stream", "fine")) == ["one"]


@pytest.mark.parametrize("isolated", ["alone", "shared"])
def test_a_stream_whose_worker_dies_before_it_has_begun_runs_again(
    tmp_path: Path, isolated: str, callers: ThreadPoolExecutor
) -> None:
    with runtime(worker_models.dies_once_in_stream) as rt:
        row = f"0 {tmp_path / 'marker'}"
        rows = [row] if isolated == "alone" else [row, row, "9 -"]
        streams = [
            callers.submit(lambda r: list(rt.stream("dies_once_in_stream", r)), row) for row in rows
        ]
        for stream in streams:
            assert stream.result() == ["response 0", "response 1"]


def test_a_stream_that_has_begun_does_not_run_again_and_says_so(tmp_path: Path) -> None:
    with runtime(worker_models.dies_once_in_stream) as rt:
        stream = rt.stream("dies_once_in_stream", f"1 {tmp_path / 'marker'}")
        assert next(stream) == "response 0"
        with pytest.raises(wherry.WorkerDied, match="a stream that has begun is not run again"):
            next(stream)


# A device that cannot be used any more in its process


def test_a_worker_whose_device_is_lost_is_replaced_and_only_the_request_to_blame_fails(
    callers: ThreadPoolExecutor,
) -> None:
    with runtime(worker_models.BreaksDevice()) as rt:
        for _ in range(2):
            rows = ["a", "b", "assert", "c", "d", "e"]
            answers = [callers.submit(rt.infer, "breaks_device", row) for row in rows]
            for row, answer in zip(rows, answers, strict=True):
                if row != "assert":
                    assert answer.result().startswith(f"{row} in")
                    continue
                with pytest.raises(wherry.PoisonRequest, match="dies each time"):
                    answer.result()
        model = rt.model("breaks_device")
        assert model.statistics.worker_deaths["device"] >= 2
        until(lambda: not model.not_ready_reason())


def test_streams_in_steps_end_with_a_lost_device_and_those_that_had_not_begun_run_again() -> None:
    with runtime(worker_models.BreaksDeviceInSteps()) as rt:
        assert list(rt.stream("breaks_device_in_steps", "ab")) == ["a", "b"]
        with pytest.raises(wherry.WorkerDied, match="begun is not run again"):
            list(rt.stream("breaks_device_in_steps", "ab!"))
        assert list(rt.stream("breaks_device_in_steps", "cd")) == ["c", "d"]


def test_a_model_in_a_thread_whose_device_is_lost_is_not_ready_and_says_what_helps() -> None:
    with wherry.Runtime(worker_models.BreaksDevice(), isolation="thread") as rt:
        model = rt.model("breaks_device")
        assert not model.not_ready_reason()
        with pytest.raises(wherry.ModelFailed, match="device-side assert"):
            rt.infer("breaks_device", "assert")
        assert "process, which must be restarted" in model.not_ready_reason()


# What it has started


def test_what_a_model_has_started_ends_with_its_worker_killed_or_not(tmp_path: Path) -> None:
    fifo = str(tmp_path / "held")
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)  # readable once nobody has it open to write
    with runtime(worker_models.StartsProcesses(fifo)) as rt:
        pid = rt.infer("starts_processes", "a")
        with pytest.raises(BlockingIOError):
            os.read(held, 1)
        kill(pid)
        assert rt.infer("starts_processes", "b") != pid
    os.set_blocking(held, True)
    assert os.read(held, 1) == b""
    os.close(held)


def test_shared_memory_of_a_model_is_gone_with_its_worker_killed_or_not() -> None:
    with runtime(worker_models.SharesMemory()) as rt:
        first, _, pid = rt.infer("shares_memory", "a").rpartition(" ")
        kill(int(pid))
        second, _, other = rt.infer("shares_memory", "b").rpartition(" ")
        assert other != pid
        assert second in os.listdir("/dev/shm")
        until(lambda: first not in os.listdir("/dev/shm"))  # its tracker ends after it
    until(lambda: second not in os.listdir("/dev/shm"))


# What it prints


def test_logging_and_printing_arrive_with_model_and_instance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), runtime(obedient) as rt:
        rt.infer("obedient", "log basket is full")
        rt.infer("obedient", "print hello")
    ours = [r for r in caplog.records if getattr(r, "instance", None) == "obedient_0"]
    by_text = {record.getMessage(): record for record in ours}

    full = by_text["basket is full"]
    assert (full.name, full.levelname, full.model, full.basket) == (  # type: ignore[attr-defined]
        "shop.checkout",
        "WARNING",
        "obedient",
        3,
    )
    assert "ValueError: out of apples" in (by_text["sold out"].exc_text or "")
    assert "nobody asked for this" not in by_text
    for text in ("hello", "HELLO", "from C without an end"):
        assert (by_text[text].name, by_text[text].levelname) == ("wherry.worker", "INFO")


def test_a_crash_leaves_its_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        runtime(obedient) as rt,
        pytest.raises(wherry.WorkerDied),
    ):
        rt.infer("obedient", "segfault")

    assert "Fatal Python error: Segmentation fault" in caplog.text
    assert "in _segfault" in caplog.text


def test_a_flood_of_lines_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), runtime(obedient) as rt:
        assert "flood" in rt.infer("obedient", "flood 100000")
        assert "next" in rt.infer("obedient", "next")

    assert len(caplog.records) < 50_000
    dropped = [r for r in caplog.records if r.getMessage() == "lines of a worker dropped"]
    assert dropped


# The end


def test_a_model_is_unloaded_when_its_worker_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with runtime(Loader("fine", str(log))) as rt:
        assert rt.infer("loader", "a") == "fine|cpu"
        (worker,) = workers(rt, "loader")
        assert worker.pid is not None
        assert is_alive(worker.pid)
        assert 5e6 < (worker.rss_bytes or 0) < 1e9

    assert log.read_text() == "unloaded"
    assert worker.pid is None
    assert worker.rss_bytes == 0


SCRIPT = """
import sys, wherry
from pathlib import Path

class Fixed:
    def __init__(self, text): self.text = text

class Answer(wherry.Model):
    def __init__(self, fixed): self.fixed = fixed
    def execute(self, text: list[str]) -> list[str]:
        return [self.fixed.text + row for row in text]

@wherry.model
def wait(fifo: list[str]) -> list[str]:
    while True:
        Path(fifo[0]).read_bytes()

GUARD
    with wherry.Runtime(Answer(Fixed("hi ")), wait, isolation="process") as rt:
        print(rt.infer("answer", "there"), flush=True)
        (instance,) = rt.model("wait").runner.instances
        print(instance.pid, flush=True)
        if len(sys.argv) > 1:
            rt.infer("wait", sys.argv[1])
"""


def script(tmp_path: Path, guard: str = 'if __name__ == "__main__":') -> list[str]:
    path = tmp_path / "my_app.py"
    path.write_text(SCRIPT.replace("GUARD", guard))
    return [sys.executable, str(path)]


def test_models_of_a_script_run_in_its_workers(tmp_path: Path) -> None:
    done = subprocess.run(script(tmp_path), capture_output=True, text=True, check=True)

    assert done.stdout.startswith("hi there\n")
    assert done.stderr == ""


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run(script(tmp_path, "if True:"), capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr


def test_a_worker_does_not_outlive_its_parent_not_even_in_the_models_code(
    tmp_path: Path, fifo: str
) -> None:
    parent = subprocess.Popen([*script(tmp_path), fifo], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "hi there\n"
        worker = int(parent.stdout.readline())
    meet(fifo)()  # it waits there again at once: it is in the model's code
    parent.kill()
    parent.wait()

    until(lambda: not is_alive(worker))


def test_ctrl_c_and_a_shells_sigterm_leave_the_worker_to_its_parent(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with runtime(obedient) as rt:
        first = pid_of(rt.infer("obedient", "a"))
        held = callers.submit(rt.infer, "obedient", f"wait {fifo}")
        release = meet(fifo)
        os.kill(first, signal.SIGINT)
        os.kill(first, signal.SIGTERM)
        release()

        assert pid_of(held.result()) == first
        assert pid_of(rt.infer("obedient", "b")) == first


def test_under_load_no_request_is_lost_while_workers_are_killed(
    callers: ThreadPoolExecutor,
) -> None:
    """Each is answered, once and with its own row: none of them meets two deaths."""
    answered = [0] * 16
    enough = threading.Event()

    def ask(rt: wherry.Runtime, caller: int) -> None:
        while not enough.is_set():
            row = f"{caller} {answered[caller]}"
            assert rt.infer("obedient", row).startswith(f"{row} in ")
            answered[caller] += 1

    with wherry.Runtime(isolation="process") as rt:
        rt.load(obedient, instances=2)
        futures = [callers.submit(ask, rt, caller) for caller in range(16)]
        for kills in range(1, 5):
            kill(workers(rt)[kills % 2].pid)
            until(lambda kills=kills: rt.model("obedient").statistics.worker_restarts == kills)  # type: ignore[misc]
            before = answered.copy()  # whoever goes on from here has outlived this one
            until(
                lambda before=before: (
                    all(map(int.__gt__, answered, before))  # type: ignore[misc]
                    or any(future.done() for future in futures)
                )
            )
        enough.set()
        for future in futures:
            future.result()
        success = rt.model("obedient").statistics.success.count

    assert success == sum(answered)


# Descriptors

SERVE = "ulimit -n 100; exec {python} -m wherry serve {app} --port 0 --ready-fd {ready}"


def test_a_worker_comes_back_although_connections_hold_every_descriptor(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import os, wherry\n@wherry.model\ndef whoami(x: int) -> int:\n    return os.getpid()\n"
    )
    ready, told = os.pipe()
    command = SERVE.format(python=sys.executable, app=app, ready=told)
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(["sh", "-c", command], pass_fds=[told], stderr=log) as server,
        contextlib.ExitStack() as connections,
    ):
        os.close(told)
        with os.fdopen(ready) as file:
            url = file.readline().strip()
        try:
            with wherry.Client(url) as client:
                pid = client.infer("whoami", x=1)
                address = urlsplit(url)
                for _ in range(150):
                    connections.enter_context(
                        socket.create_connection((str(address.hostname), address.port))
                    )
                kill(pid)

                def is_answered() -> bool:
                    # Its connection was idle for longest, and another one may have to wait for
                    # room, or make it for the new worker.
                    with contextlib.suppress(wherry.ModelNotReady, ConnectionError):
                        return bool(client.infer("whoami", x=2) != pid)
                    return False

                until(is_answered)
                assert server.poll() is None
        finally:
            server.terminate()
    assert server.returncode == 0
