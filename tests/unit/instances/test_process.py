"""The parent's side alone, without a dispatcher."""

import json
import logging
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import PATIENCE
from tests.worker_models import Stubborn, obedient, plus_one
from wherry.instances import process, worker_instance
from wherry.instances.executable import Execution, Failure
from wherry.instances.process import ProcessInstance
from wherry.instances.source import MAIN, import_model, source_of
from wherry.instances.worker_instance import SMALL_BYTES
from wherry.instances.worker_log import LogPump, PipeHandler
from wherry.models.config import SequenceBatching
from wherry.models.model import Device, Model
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import Batch, InferRequest

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow


def instance_of(model: Model, **overrides: Any) -> ProcessInstance:
    config = model.config(**overrides)
    return ProcessInstance(f"{config.name}_0", Device(), model, config)


@pytest.fixture
def instance() -> Iterator[ProcessInstance]:
    instance = instance_of(obedient)
    instance.load()
    yield instance
    instance.unload()


def request(**columns: Any) -> InferRequest:
    return InferRequest(columns, len(next(iter(columns.values()))), Reply(lambda _: None))


def test_a_batch_gives_each_request_its_rows_and_says_where_the_time_went(
    instance: ProcessInstance,
) -> None:
    execution = instance.execute([request(text=["a", "b"]), request(text=["c"])])

    assert [outcome["output"] for outcome in execution.outcomes] == [  # type: ignore[index]
        [f"a in {instance.pid}", f"b in {instance.pid}"],
        [f"c in {instance.pid}"],
    ]
    assert execution.executed_rows == [3]
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0


def test_what_the_model_raises_is_an_outcome_with_its_traceback(instance: ProcessInstance) -> None:
    (outcome,) = instance.execute([request(text=["raise no apples"])]).outcomes

    assert isinstance(outcome, Failure)
    assert outcome.message == "model 'obedient' failed: ValueError: no apples"
    assert "Traceback" in outcome.traceback


@pytest.mark.parametrize("said", ["half a pair: \udc80", "much: " + "x" * 2**20])
def test_an_error_may_say_anything_and_costs_no_worker(
    instance: ProcessInstance, said: str
) -> None:
    order = f"raise_json {json.dumps(said)}"

    (outcome,) = instance.execute([request(text=[order])]).outcomes

    assert isinstance(outcome, Failure)
    assert outcome.message.startswith(f"model 'obedient' failed: ValueError: {said[:6]}")
    assert len(outcome.message) + len(outcome.traceback) < 2**18
    assert isinstance(instance.execute([request(text=["a"])]).outcomes[0], dict)


def test_give_wakes_the_thread_that_waits_in_order(instance: ProcessInstance) -> None:
    batches = [Batch((), n, "") for n in range(3)]
    giver = threading.Thread(target=lambda: deque(map(instance.give, [*batches, None])))
    giver.start()

    assert [instance.wait() for _ in range(4)] == [*batches, None]
    giver.join()


class Clock:
    """Whom an instance tells: here it only says what time it is."""

    def now(self) -> float:
        return 7.0


def gone(pid: int | None) -> None:
    """Kill a worker, and wait for its end, which is not reaped."""
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def eager(instance: ProcessInstance) -> ProcessInstance:
    """An instance that knows the time, as the dispatcher's do: it sends what it is given."""
    instance.answers = Clock()  # type: ignore[assignment]
    return instance


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


def batch(*rows: str) -> Batch:
    requests = tuple(request(text=[row]) for row in rows)
    return Batch(requests, len(requests), "idle")


def test_a_small_batch_runs_before_the_serving_thread_wakes_up(
    eager: ProcessInstance, fifo: str
) -> None:
    given = batch(f"wait {fifo}", "b")
    eager.give(given)
    os.close(os.open(fifo, os.O_WRONLY))  # the model is there, and nobody has waited for it

    assert eager.begun_at == 7.0
    assert eager.wait() is given
    execution = eager.execute(given.requests)
    assert [outcome["output"] for outcome in execution.outcomes] == [  # type: ignore[index]
        [f"wait {fifo} in {eager.pid}"],
        [f"b in {eager.pid}"],
    ]
    assert min(execution.input_ns, execution.infer_ns, execution.output_ns) > 0
    assert eager.begun_at is None  # the next batch is another matter
    (outcome,) = eager.execute([request(text=["next"])]).outcomes
    assert outcome["output"] == [f"next in {eager.pid}"]


def test_a_batch_that_was_begun_is_lost_with_its_worker(eager: ProcessInstance, fifo: str) -> None:
    given = batch(f"wait {fifo}")
    eager.give(given)
    file = os.open(fifo, os.O_WRONLY)
    gone(eager.pid)
    os.close(file)

    assert eager.wait() is given
    with pytest.raises(wherry.WorkerDied, match="was killed by SIGKILL") as caught:
        eager.execute(given.requests)
    assert caught.value.reached


@pytest.mark.parametrize("held_open", [False, True])
def test_a_batch_for_a_worker_that_has_died_is_not_begun(
    eager: ProcessInstance, fifo: str, held_open: bool
) -> None:
    if held_open:  # by a child of the worker: what is sent there is lost without an error
        with pytest.raises(wherry.WorkerDied):
            eager.execute([request(text=[f"fork {fifo}"])])
    else:
        gone(eager.pid)
    given = batch("a")
    eager.give(given)

    assert eager.begun_at is None
    assert eager.wait() is given
    with pytest.raises(wherry.WorkerDied) as caught:
        eager.execute(given.requests)
    assert not caught.value.reached
    if held_open:
        os.close(os.open(fifo, os.O_WRONLY))  # the child goes


def test_what_cannot_be_sent_is_found_out_by_the_serving_thread(eager: ProcessInstance) -> None:
    given = batch("good", "half a character: \ud800")
    eager.give(given)

    assert eager.begun_at is None
    assert eager.wait() is given
    good, bad = eager.execute(given.requests).outcomes
    assert good["output"] == [f"good in {eager.pid}"]  # type: ignore[index]
    assert isinstance(bad, Failure)
    assert bad.error == "InvalidRequest"


def test_a_bug_in_sending_is_the_serving_threads_not_the_givers(
    eager: ProcessInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(process, "_gather", fail)
    given = batch("a")
    eager.give(given)

    assert eager.begun_at is None
    assert eager.wait() is given
    with pytest.raises(RuntimeError):
        eager.execute(given.requests)


def test_a_batch_that_comes_while_another_thread_sends_waits_in_the_inbox(
    eager: ProcessInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batch("a")
    giver = threading.Thread(target=eager.give, args=[batch("b")])

    def meanwhile(requests: object) -> bool:
        other = threading.Thread(target=eager.give, args=[given])
        other.start()
        other.join()  # it does not wait for this one
        return False

    monkeypatch.setattr(eager, "_begin", meanwhile)
    giver.start()
    giver.join()

    assert eager.begun_at is None
    assert eager.wait() is not given
    assert eager.wait() is given


def test_only_what_costs_little_is_sent_by_whoever_gives_it(eager: ProcessInstance) -> None:
    left = request(text=["her caller has left"])
    left.reply.claim()
    streams = InferRequest({"text": ["s"]}, 1, StreamReply(lambda *_: None, lambda _: None))
    for requests in (
        (request(text=["x" * (SMALL_BYTES + 1)]),),
        (request(text=["x" * (SMALL_BYTES - 100)]), request(text=["x"])),
        (request(text=["x"] * 1000),),
        (request(text=[[b"x"] * 1000]),),
        (request(x=np.zeros(SMALL_BYTES, np.float32)),),
        (request(x=[np.zeros(SMALL_BYTES, np.float32)]),),
        (request(json=[{"anything": []}]),),
        (request(text=["fine"]), left),
        (streams,),
        (),
    ):
        eager.give(Batch(requests, len(requests), "idle"))
        assert eager.begun_at is None
        given = eager.wait()
        assert given is not None
        assert given.requests == requests


def test_steps_of_a_sequence_are_sent_when_they_have_all_their_inputs() -> None:
    instance = instance_of(obedient, sequence=SequenceBatching())
    instance.answers = Clock()  # type: ignore[assignment]
    instance.load()
    instance.give(batch("a"))

    assert instance.begun_at is None
    instance.unload()


def test_a_batch_that_comes_after_the_unload_is_nobodys(eager: ProcessInstance) -> None:
    eager.unload()
    eager.give(batch("too late"))

    assert eager.begun_at is None


# An event loop in the place of the serving thread


class Loop:
    """An event loop that takes its turn when the test says so."""

    def __init__(self) -> None:
        self.turns: dict[int, Callable[[], None]] = {}

    def watch(self, file: int, turn: Callable[[], None]) -> bool:
        self.turns[file] = turn
        return True

    def forget(self, file: int) -> None:
        del self.turns[file]

    def turn(self) -> None:
        """There is something to read."""
        ((file, turn),) = self.turns.items()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        assert poll.poll(1000 * PATIENCE)
        turn()


class Answers(Clock):
    """Remembers what came of the batches."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def finished(
        self,
        instance: ProcessInstance,
        batch: Batch,
        requests: Sequence[InferRequest],
        execution: Execution,
        started: float,
    ) -> None:
        self.outcomes += execution.outcomes


@pytest.fixture
def answers(instance: ProcessInstance) -> Answers:
    instance.answers = answers = Answers()  # type: ignore[assignment]
    return answers


def of_loop(loop: Loop, *rows: str) -> Batch:
    given = batch(*rows)
    for one in given.requests:
        one.reader = loop
    return given


@pytest.fixture
def loop(instance: ProcessInstance, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop that reads what the instance's worker answers from now on, however long it takes."""
    monkeypatch.setattr(worker_instance, "OFTEN", PATIENCE)
    loop = Loop()
    first = of_loop(loop, "first")
    instance.give(first)
    assert instance.wait() is first  # it may be the only one for a long time
    instance.execute(first.requests)
    instance.give(of_loop(loop, "second"))
    loop.turn()
    return loop


@pytest.mark.full  # the thread sleeps for PATIENCE
def test_a_loop_reads_answers_while_the_serving_thread_sleeps(
    instance: ProcessInstance, answers: Answers, loop: Loop
) -> None:
    served: list[Batch | None] = []
    thread = threading.Thread(target=lambda: served.append(instance.wait()))
    thread.start()
    for row in "abc":
        instance.give(of_loop(loop, row))
        loop.turn()
    instance.give(None)
    thread.join()

    assert [outcome["output"] for outcome in answers.outcomes] == [
        [f"{row} in {instance.pid}"] for row in ("second", *"abc")
    ]
    assert served == [None]
    assert not loop.turns


def test_a_loop_that_does_not_turn_loses_its_place(
    instance: ProcessInstance, answers: Answers, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_instance, "OFTEN", 0.001)
    given = of_loop(loop, "a")
    instance.give(given)

    assert instance.wait() is given
    (outcome,) = instance.execute(given.requests).outcomes
    assert outcome["output"] == [f"a in {instance.pid}"]  # type: ignore[index]
    assert not loop.turns


@pytest.mark.parametrize("row", ["x" * 100_000, "garbage " + "x" * 100])
def test_what_is_no_small_answer_is_left_to_the_serving_thread(
    instance: ProcessInstance, answers: Answers, loop: Loop, row: str
) -> None:
    given = of_loop(loop, row)
    instance.give(given)
    if loop.turns:  # it was small enough to be sent at once
        loop.turn()

    assert not loop.turns
    assert instance.wait() is given
    if row.startswith("garbage"):
        with pytest.raises(wherry.WorkerDied, match="wrote garbage"):
            instance.execute(given.requests)
    else:
        instance.execute(given.requests)
    assert len(answers.outcomes) == 1


def test_an_array_in_shared_memory_is_left_to_the_serving_thread() -> None:
    instance = instance_of(plus_one)
    instance.answers = answers = Answers()  # type: ignore[assignment]
    instance.load()
    loop = Loop()
    x = np.arange(2000, dtype=np.float32)[np.newaxis]
    for reads in (False, True):
        given = Batch((request(x=x),), 1, "idle")
        given.requests[0].reader = loop
        instance.give(given)
        if reads:
            loop.turn()
        assert instance.wait() is given
        (outcome,) = instance.execute(given.requests).outcomes
        np.testing.assert_array_equal(outcome["output"], x + 1)  # type: ignore[index]
    instance.unload()

    assert not loop.turns
    assert answers.outcomes == []


@pytest.mark.parametrize("thread_sees_it_first", [False, True])
def test_a_death_in_a_loops_place_is_the_serving_threads_matter(
    instance: ProcessInstance, answers: Answers, loop: Loop, fifo: str, thread_sees_it_first: bool
) -> None:
    given = of_loop(loop, f"wait {fifo}")
    instance.give(given)
    file = os.open(fifo, os.O_WRONLY)
    gone(instance.pid)
    os.close(file)
    if not thread_sees_it_first:
        loop.turn()

    assert instance.wait() is given
    with pytest.raises(wherry.WorkerDied, match="was killed by SIGKILL") as caught:
        instance.execute(given.requests)
    assert caught.value.reached
    assert not loop.turns


def test_a_death_that_a_loop_meets_in_the_answer_is_raised_in_the_serving_thread(
    instance: ProcessInstance, answers: Answers, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = wherry.WorkerDied("in the middle of it")

    def run(*_: object) -> None:
        raise died

    monkeypatch.setattr(instance, "run", run)
    instance.give(of_loop(loop, "a"))
    loop.turn()

    with pytest.raises(wherry.WorkerDied) as caught:
        instance.wait()
    assert caught.value is died
    assert not loop.turns


def test_a_turn_that_comes_too_late_reads_nothing(
    instance: ProcessInstance, answers: Answers, loop: Loop
) -> None:
    (turn,) = loop.turns.values()
    given = batch("for a thread")
    instance.give(given)
    turn()

    assert instance.wait() is given
    instance.execute(given.requests)
    assert len(answers.outcomes) == 1


def test_a_death_while_it_waits_is_raised_with_its_cause(instance: ProcessInstance) -> None:
    pid = instance.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    with pytest.raises(wherry.WorkerDied) as caught:
        instance.wait()
    assert str(caught.value) == f"worker obedient_0 (pid {pid}) was killed by SIGKILL"
    assert instance.pid is None


def test_abort_says_why(instance: ProcessInstance) -> None:
    assert instance.abort("it took too long")

    with pytest.raises(wherry.WorkerDied, match="was stopped: it took too long"):
        instance.execute([request(text=["a"])])


def test_unload_may_be_called_twice_and_nothing_works_after_it(instance: ProcessInstance) -> None:
    instance.unload()
    instance.unload()
    instance.give(None)

    assert instance.pid is None
    assert instance.abort("again")


def test_a_worker_that_does_not_end_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    instance = instance_of(Stubborn(), unload_timeout=0.1)
    instance.load()
    instance.unload()

    assert "worker killed: it did not end" in caplog.text


def test_a_pipe_serves_where_there_is_no_eventfd_and_no_pidfd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "eventfd")
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")
    instance = instance_of(plus_one)
    instance.load()
    instance.give(None)

    assert instance.wait() is None
    x = np.arange(100_000, dtype=np.float32)[np.newaxis]
    (outcome,) = instance.execute([request(x=x)]).outcomes
    np.testing.assert_array_equal(outcome["output"], x + 1)  # type: ignore[index]
    instance.unload()


# Where a model comes from


def test_a_model_is_found_by_its_module_and_name() -> None:
    source = source_of(obedient, "obedient")

    assert source.module.name == "tests.worker_models"
    assert import_model(source) is obedient


def test_a_function_that_was_made_a_model_elsewhere_is_found_too() -> None:
    again = wherry.model(obedient.function)

    assert import_model(source_of(again, "obedient")) is obedient


def test_a_main_module_has_another_name_in_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import wherry\n@wherry.model\ndef f(x: list[int]) -> list[int]: return x\n")
    module: Any = type(sys)("__main__")
    module.__file__ = str(script)
    exec(script.read_text(), module.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", module)

    source = source_of(module.f, "f")

    assert (source.module.name, source.module.file) == (MAIN, str(script))
    module.__file__ = None
    with pytest.raises(wherry.ConfigError, match="f of the interactive session cannot be sent"):
        source_of(module.f, "f")


# What it prints


def pumped(*chunks: bytes) -> None:
    read, write = os.pipe()
    pump = LogPump(read, "m", "m_0")
    for chunk in chunks:
        os.write(write, chunk)
        pump.pump()
    os.close(write)
    pump.close()


def test_lines_are_put_together_again_and_a_progress_bar_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        pumped(b"one\ntw", b"o\n\n 10%\r 50%\r100%\n", "thr\u00e9e".encode(), b"\xff")

    assert [r.getMessage() for r in caplog.records] == ["one", "two", "100%", "thr\u00e9e\ufffd"]


def test_a_record_keeps_its_level_logger_and_fields_behind_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = logging.makeLogRecord(
        {"name": "shop", "levelno": 40, "msg": "out of %s", "args": ("apples",), "aisle": object()}
    )
    line = PipeHandler(1).line(record)

    with caplog.at_level(logging.INFO):
        pumped(b"printed without an end" + line, b"\x1enot a record\n")

    printed, logged, broken = caplog.records
    assert printed.getMessage() == "printed without an end"
    assert broken.getMessage() == "\x1enot a record"
    assert (logged.name, logged.levelname, logged.getMessage()) == (
        "shop",
        "ERROR",
        "out of apples",
    )
    fields: Any = logged
    assert (fields.model, fields.instance) == ("m", "m_0")
    assert "object object" in fields.aisle


def test_what_nobody_logs_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("wherry.worker"), "propagate", False)

    pumped(b"hello\n")

    assert capsys.readouterr().err == "[m_0] hello\n"
