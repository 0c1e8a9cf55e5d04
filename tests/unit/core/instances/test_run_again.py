"""Does a request of a model with `run_again=False` run once at most, whatever happens to it?

Each model appends the ids that it is given to a file, before anything else: what is there has run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.core.models.settings import Isolation, ModelSettings
from wherry.core.values.errors import ExecutionTimeout, MayHaveRun, ModelFailed, WherryError

pytestmark = pytest.mark.slow


def note(ids: list[str]) -> None:
    """Append these, and do what they say."""
    with open(os.environ["WHERRY_TEST_RAN"], "a") as file:
        file.write("".join(f"{one}\n" for one in ids))
    for one in ids:
        if "dies" in one:
            os.kill(os.getpid(), signal.SIGKILL)
        if "device" in one:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if "hangs" in one:
            threading.Event().wait()
        if "fails" in one:
            raise ValueError(one)
        if "memory" in one and len(ids) > 1:
            raise MemoryError


class Once(wherry.Model):
    max_batch_size = 8
    run_again = False

    def execute(self, id: list[str]) -> list[str]:
        note(id)
        return id


class Again(Once):
    run_again = True


class OnceInAStream(wherry.Model):
    run_again = False

    def execute(self, id: str) -> Iterator[str]:
        note([id])
        yield id


class OnceInSteps(wherry.StepModel):
    max_batch_size = 8
    run_again = False

    def start(self, id: str) -> str:
        return id

    def step(self, active: list[str]) -> list[wherry.Step[str]]:
        note(active)
        return [wherry.Step(one, done=True) for one in active]


Ran = Callable[[], Counter[str]]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """How often each id has run."""
    path = tmp_path / "ran"
    path.touch()
    monkeypatch.setenv("WHERRY_TEST_RAN", str(path))
    return lambda: Counter(path.read_text().split())


def outcomes(model: wherry.Model, isolation: Isolation, *ids: str) -> list[Any]:
    """What came of these, of a model that has them in one batch."""
    name = model.config().name
    settings: ModelSettings = {"max_batch_size": len(ids)}
    if not isinstance(model, wherry.StepModel):
        settings["max_queue_delay"] = 10.0

    def ask(id: str) -> Any:
        try:
            return runtime.infer(name, id=id)
        except WherryError as error:
            return error

    with (
        wherry.Runtime(model, isolation=isolation, overrides={name: settings}) as runtime,
        ThreadPoolExecutor(len(ids)) as callers,
    ):
        return list(callers.map(ask, ids))


def test_a_worker_that_dies_ends_its_batch_and_nothing_of_it_runs_again(ran: Ran) -> None:
    found = outcomes(Once(), "process", "a", "dies", "b")
    assert [type(one) for one in found] == [MayHaveRun] * 3
    assert "may have run" in str(found[0])
    assert ran() == {"a": 1, "dies": 1, "b": 1}


def test_a_lost_device_ends_its_batch_and_nothing_of_it_runs_again(ran: Ran) -> None:
    found = outcomes(Once(), "process", "a", "device", "b")
    assert [type(one) for one in found] == [MayHaveRun] * 3
    assert ran() == {"a": 1, "device": 1, "b": 1}


def test_what_follows_a_dead_worker_is_served_by_the_next(ran: Ran) -> None:
    with wherry.Runtime(Once(), isolation="process") as runtime:
        with pytest.raises(MayHaveRun):
            runtime.infer("once", id="dies")
        assert runtime.infer("once", id="next") == "next"
    assert ran() == {"dies": 1, "next": 1}


def test_else_those_beside_it_run_twice(ran: Ran) -> None:
    found = outcomes(Again(), "process", "a", "dies", "b")
    assert [found[0], found[2]] == ["a", "b"]
    assert (ran()["a"], ran()["b"]) == (2, 2)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("bad", ["fails", "memory"])
def test_a_batch_that_fails_is_not_split_and_says_so_to_all_of_it(
    bad: str, isolation: Isolation, ran: Ran
) -> None:
    found = outcomes(Once(), isolation, "a", bad, "b")
    assert [type(one) for one in found] == [ModelFailed] * 3
    assert all(
        "the batch of 3 requests is not run again (run_again=False)" in str(e) for e in found
    )
    assert ran() == {"a": 1, bad: 1, "b": 1}


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_else_a_bad_row_fails_alone_and_the_others_run_again(
    isolation: Isolation, ran: Ran
) -> None:
    found = outcomes(Again(), isolation, "a", "fails", "b")
    assert [found[0], type(found[1]), found[2]] == ["a", ModelFailed, "b"]
    assert max(ran().values()) > 1


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_request_of_many_rows_that_finds_no_memory_is_not_run_in_parts(
    isolation: Isolation, ran: Ran
) -> None:
    with wherry.Runtime(Once(), isolation=isolation) as runtime, pytest.raises(ModelFailed):
        runtime.infer_batch("once", id=["a", "memory"])
    assert ran() == {"a": 1, "memory": 1}


def test_a_stream_without_a_response_yet_is_not_begun_again(ran: Ran) -> None:
    with (
        wherry.Runtime(OnceInAStream(), isolation="process") as runtime,
        pytest.raises(MayHaveRun),
    ):
        list(runtime.stream("once_in_a_stream", id="dies"))
    assert ran() == {"dies": 1}


@pytest.mark.parametrize(("end", "why"), [("dies", "SIGKILL"), ("device", "device"),
                                          ("hangs", "execution_timeout")])  # fmt: skip
def test_requests_in_steps_are_not_begun_again(end: str, why: str, ran: Ran) -> None:
    timeout: ModelSettings = {"execution_timeout": 0.2} if end == "hangs" else {}
    overrides = {"once_in_steps": timeout}
    with (
        wherry.Runtime(OnceInSteps(), isolation="process", overrides=overrides) as runtime,
        pytest.raises(MayHaveRun, match=f"{why}.* may have run"),
    ):
        list(runtime.stream("once_in_steps", id=end))
    assert ran() == {end: 1}


def test_a_batch_that_takes_too_long_is_not_run_again_and_says_why(ran: Ran) -> None:
    timeout: ModelSettings = {"execution_timeout": 0.2}
    with (
        wherry.Runtime(Once(), isolation="process", overrides={"once": timeout}) as runtime,
        pytest.raises(ExecutionTimeout, match="execution_timeout"),
    ):
        runtime.infer("once", id="hangs")
    assert ran() == {"hangs": 1}


def test_a_pipeline_gets_the_error_and_calls_once(ran: Ran) -> None:
    once = wherry.model(run_again=False)(die)

    @wherry.pipeline
    async def calls(id: str) -> str:
        return str(await once.ainfer(id))

    with wherry.Runtime(once, calls, isolation="process") as runtime, pytest.raises(MayHaveRun):
        runtime.infer("calls", id="dies")
    assert ran() == {"dies": 1}


def die(id: str) -> str:
    note([id])
    return id


def test_no_batch_is_given_to_a_worker_that_has_one_as_it_would_not_be_known_whether_it_ran() -> (
    None
):
    with wherry.Runtime(Once(), Again(), isolation="process") as runtime:
        runners: list[Any] = [runtime.model(name).runner for name in ("once", "again")]
        assert [runner.instances[0].takes_ahead for runner in runners] == [False, True]
