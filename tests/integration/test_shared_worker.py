"""What does a model notice of the others in its worker process: while all goes well, and when one
of them ends it?"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import until
from tests.integration.test_worker_faults import is_alive, kill, meet, pass_time
from tests.worker_models import (
    FailsToUnload,
    Loader,
    Spelled,
    Stubborn,
    batches,
    count,
    dies_in_stream,
    obedient,
    plus_one,
)
from wherry.core.values.errors import MayHaveRun, PoisonRequest
from wherry.core.workers import shared_process

if sys.platform == "win32":
    pytest.skip("worker processes need a Unix system", allow_module_level=True)

pytestmark = pytest.mark.slow


def shared(*models: Any, **settings: Any) -> wherry.Runtime:
    return wherry.Runtime(*models, isolation="shared", **settings)


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def pids(rt: wherry.Runtime, *models: str) -> set[int | None]:
    runners: list[Any] = [rt.model(model).runner for model in models]
    return {instance.pid for runner in runners for instance in runner.instances}


def pid(rt: wherry.Runtime, *models: str) -> int:
    (only,) = pids(rt, *models)
    assert only is not None
    return only


def restarts(rt: wherry.Runtime, model: str) -> int:
    return rt.model(model).statistics.worker_restarts


def test_models_of_all_kinds_share_one_process() -> None:
    overrides = {"obedient": {"instances": 3}}
    with shared(obedient, plus_one, count, Spelled(), overrides=overrides) as rt:
        one = pid(rt, "obedient", "plus_one", "count", "spelled")
        assert {rt.infer("obedient", "x") for _ in range(9)} == {f"x in {one}"}
        large = np.ones(800_000, np.float32)
        assert rt.infer("plus_one", x=large).sum() == 2 * large.size
        assert list(rt.stream("count", to=3)) == [0, 1, 2]
        assert list(rt.stream("spelled", text="abc")) == ["a", "b", "c"]
    assert not is_alive(one)


def test_each_runtime_has_a_process_of_its_own() -> None:
    with shared(obedient) as one, shared(obedient) as other:
        assert pid(one, "obedient") != pid(other, "obedient")


def test_what_is_said_to_be_a_process_is_one() -> None:
    with shared(obedient, batches, overrides={"batches": {"isolation": "process"}}) as rt:
        assert len(pids(rt, "obedient", "batches")) == 2


def test_a_model_leaves_alone_and_the_process_ends_with_the_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with shared(obedient, Loader(log=str(log))) as rt:
        one = pid(rt, "obedient", "loader")
        rt.unload("loader")
        assert log.read_text() == "unloaded"
        assert rt.infer("obedient", "x") == f"x in {one}"
        rt.load(Loader(log=str(log)))
        assert pid(rt, "obedient", "loader") == one
        rt.unload("loader")
        rt.unload("obedient")
        assert not is_alive(one)
        rt.load(obedient)
        assert pid(rt, "obedient") != one


def test_a_model_that_cannot_be_loaded_harms_no_other() -> None:
    with shared(obedient) as rt:
        one = pid(rt, "obedient")
        with pytest.raises(wherry.LoadFailed, match="no such weights"):
            rt.load(Loader("raise no such weights"))
        assert rt.infer("obedient", "x") == f"x in {one}"


def test_a_model_whose_unload_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with shared(obedient, FailsToUnload()) as rt:
        one = pid(rt, "obedient", "fails_to_unload")
        rt.unload("fails_to_unload")
        assert rt.infer("obedient", "x") == f"x in {one}"
        until(lambda: "still needed" in caplog.text)


def test_a_model_that_never_unloads_ends_the_process_and_the_others_come_back() -> None:
    settings = {"stubborn": {"unload_timeout": 0.01}}
    with (
        pytest.MonkeyPatch.context() as patch,
        shared(obedient, Stubborn(), overrides=settings) as rt,
    ):
        patch.setattr(shared_process, "LAST_SECONDS", 0.1)
        one = pid(rt, "obedient")
        rt.unload("stubborn")
        assert rt.infer("obedient", "x") != f"x in {one}"


# The process ends


def test_a_killed_process_comes_back_as_one_with_all_models() -> None:
    with shared(obedient, batches, Spelled()) as rt:
        one = pid(rt, "obedient", "batches", "spelled")
        kill(one)
        until(lambda: [restarts(rt, m) for m in ("obedient", "batches", "spelled")] == [1, 1, 1])
        again = pid(rt, "obedient", "batches", "spelled")
        assert again != one
        assert rt.infer("obedient", "x") == f"x in {again}"
        assert rt.infer("batches", "x") == 1


def test_only_who_ran_is_to_blame() -> None:
    """The death counts against the model whose code ran, and not against the others."""
    settings = {"batches": {"crash_budget": 0}}
    with shared(obedient, batches, overrides=settings) as rt:
        with pytest.raises(PoisonRequest):
            rt.infer("obedient", "exit 3")
        assert rt.infer("batches", "x") == 1  # with no budget it would be away for a second
        assert rt.model("batches").statistics.worker_deaths.keys() == {"neighbour"}
        until(lambda: rt.model("obedient").statistics.worker_deaths == {"exit": 2})


@pytest.mark.parametrize("order", ["exit 3", "kill", "segfault"])
def test_poison_fails_alone_though_others_run_beside_it(
    callers: ThreadPoolExecutor, tmp_path: Path, order: str
) -> None:
    file = tmp_path / "go"
    with shared(obedient, batches) as rt:
        neighbour = callers.submit(rt.infer, "batches", f"until {file}")
        until(Path(f"{file}.runs").exists)
        poison = callers.submit(rt.infer, "obedient", order)
        until(lambda: rt.model("batches").statistics.worker_deaths.total() >= 1)
        assert not neighbour.done()
        file.touch()
        with pytest.raises(PoisonRequest):
            poison.result()
        assert neighbour.result() == 1
        assert rt.infer("obedient", "x") == f"x in {pid(rt, 'obedient', 'batches')}"


def test_a_request_that_is_not_to_run_again_fails_with_its_neighbours_death(
    callers: ThreadPoolExecutor, fifo: str
) -> None:
    with shared(obedient, batches, overrides={"batches": {"run_again": False}}) as rt:
        held = callers.submit(rt.infer, "batches", f"wait {fifo}")
        release = meet(fifo)
        kill(pid(rt, "obedient", "batches"))
        release()
        with pytest.raises(MayHaveRun):
            held.result()
        assert rt.infer("batches", "x") == 1


def test_a_model_that_hangs_ends_the_process_and_its_neighbours_request_is_not_held_against_it(
    callers: ThreadPoolExecutor, tmp_path: Path
) -> None:
    file, never = tmp_path / "go", tmp_path / "never"
    settings = {"obedient": {"execution_timeout": 1000.0}}
    with shared(obedient, batches, overrides=settings) as rt:
        neighbour = callers.submit(rt.infer, "batches", f"until {file}")
        hangs = callers.submit(rt.infer, "obedient", f"until {never}")
        for path in (file, never):
            until(Path(f"{path}.runs").exists)
        Path(f"{file}.runs").unlink()
        pass_time(rt, 2000.0)
        with pytest.raises(wherry.ExecutionTimeout):
            hangs.result()
        until(Path(f"{file}.runs").exists)
        runner: Any = rt.model("batches").runner
        (running,) = [r for i in runner.instances for b in i.batches for r in b.requests]
        assert running.attempts == 0
        file.touch()
        assert neighbour.result() == 1
        assert rt.model("batches").statistics.worker_deaths == {"neighbour": 1}


def test_a_stream_that_has_begun_ends_with_the_process() -> None:
    with shared(obedient, dies_in_stream) as rt:
        stream = rt.stream("dies_in_stream", text="exit 3")
        assert next(stream) == "one"
        with pytest.raises(wherry.WorkerDied, match="exit status 3"):
            next(stream)
        assert rt.infer("obedient", "x").startswith("x")


def test_a_model_whose_load_ends_the_process_fails_alone() -> None:
    with shared(obedient, batches) as rt:
        with pytest.raises(wherry.LoadFailed, match="exit status 9"):
            rt.load(Loader("exit 9"))
        until(lambda: restarts(rt, "obedient") == 1)
        assert rt.infer("obedient", "x") == f"x in {pid(rt, 'obedient', 'batches')}"


def test_a_model_that_ends_the_process_time_and_again_gets_one_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with shared(obedient, batches) as rt:
        for status in (3, 4):
            with pytest.raises(PoisonRequest):
                rt.infer("obedient", f"exit {status}")
        assert rt.infer("batches", "x") == 1
        one = pid(rt, "batches")
        with pytest.raises(PoisonRequest):
            rt.infer("obedient", "exit 5")
        until(lambda: restarts(rt, "obedient") == 6)
        assert rt.infer("batches", "x") == 1
        assert pid(rt, "batches") == one
        assert rt.infer("obedient", "x") != f"x in {one}"
    assert "has one of its own now" in caplog.text


def test_garbage_ends_the_process_and_the_others_come_back() -> None:
    with shared(obedient, batches) as rt:
        with pytest.raises(wherry.WorkerDied):
            rt.infer("obedient", "garbage xxxxxxxxxxxxxxxxxxxx")
        assert rt.infer("batches", "x") == 1


def test_a_death_is_seen_although_a_child_holds_every_descriptor(fifo: str) -> None:
    with shared(obedient, batches) as rt:
        with pytest.raises(wherry.WorkerDied):
            rt.infer("obedient", f"fork {fifo}")
        assert rt.infer("batches", "x") == 1
        meet(fifo)()


# What is shown, and what is loaded


def test_memory_is_counted_once() -> None:
    with shared(obedient, batches, plus_one) as rt:
        one = pid(rt, "obedient", "batches", "plus_one")
        runners: list[Any] = [rt.model(m).runner for m in ("obedient", "batches", "plus_one")]
        instances = [instance for runner in runners for instance in runner.instances]
        pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
        whole = pages * os.sysconf("SC_PAGE_SIZE")
        assert sum(one.rss_bytes for one in instances) == pytest.approx(whole, rel=0.1)
        assert sum(one.worker.held_bytes for one in instances) <= whole


def test_models_sleep_one_by_one() -> None:
    """The budget has room for one of them beside the one that stays."""
    settings = {
        "obedient": {"resident": "always", "memory": 100},
        "batches": {"memory": 100},
        "plus_one": {"memory": 100},
    }
    memory = {"cpu": 1 << 40}
    with shared(obedient, batches, plus_one, overrides=settings, device_memory=memory) as rt:
        one = pid(rt, "obedient")
        assert rt.infer("batches", "x") == 1
        assert pid(rt, "obedient", "batches") == one
        runner: Any = rt.model("batches").runner
        runner.fall_asleep()
        runner.sleep_if_idle()
        assert pids(rt, "batches") == set()
        assert rt.infer("obedient", "x") == f"x in {one}"
        runner.wake()
        assert pid(rt, "obedient", "batches") == one


def test_records_say_whose_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with shared(obedient, batches) as rt:
        rt.infer("obedient", "log sold")
        rt.infer("batches", "log bought")
        until(lambda: "bought" in caplog.text)
    found = {
        record.getMessage(): (vars(record)["model"], vars(record)["instance"])
        for record in caplog.records
        if record.name == "shop.checkout"
    }
    assert found["sold"] == ("obedient", "obedient_0")
    assert found["bought"] == ("batches", "batches_0")


def test_changed_code_is_loaded_beside_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has imported a module would go on with what it has."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "changing.py"
    text = "import wherry\n\n\n@wherry.model\ndef changing(x: int) -> int:\n    return x + {}\n"

    def imported(number: int) -> Any:
        file.write_text(text.format(number))
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()
        return importlib.import_module("changing").changing

    try:
        with shared(obedient, imported(1)) as rt:
            one = pid(rt, "obedient", "changing")
            assert rt.infer("changing", x=1) == 2
            rt.unload("changing")
            rt.load(imported(10))
            assert rt.infer("changing", x=1) == 11
            assert rt.infer("obedient", "x") == f"x in {one}"
    finally:
        sys.modules.pop("changing", None)
