"""Does a model keep its instances where only `instance_group` has changed?"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import repositories
from tests.fakes import TIMEOUT, until
from tests.repositories import CONFIG, save
from tests.unit.triton.loading.test_control import ask, controlled
from wherry.core.instances.dispatcher import Dispatcher
from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.control import ModelControl
from wherry.triton.repository.json_form import to_json
from wherry.triton.repository.triton_config import TritonConfig

#: What the instances of this test's models have done.
did: Counter[str] = Counter()


class Counting(repositories.Plus):
    """Counts its loads and unloads; a row of 99 waits for the test."""

    started = threading.Semaphore(0)
    may_finish = threading.Semaphore(0)
    fails = False

    def load(self, device: Device) -> None:
        super().load(device)
        did["load"] += 1
        if self.fails:
            raise ValueError("no room")

    def execute(self, **columns: Any) -> dict[str, Any]:
        if 99 in columns["X"]:
            self.started.release()
            self.may_finish.acquire()
        return super().execute(**columns)

    def unload(self) -> None:
        did["unload"] += 1


def made(folder: str, version: str, config: TritonConfig, **options: Any) -> RepositoryModel:
    return Counting(folder, version, config)


@pytest.fixture(autouse=True)
def _from_zero() -> Iterator[None]:
    did.clear()
    yield
    Counting.fails = False


def grouped(repository: Path, groups: str) -> None:
    (repository / "m" / "config.pbtxt").write_text(f"{CONFIG} {groups}")


def cpu(count: int) -> str:
    return f"instance_group {{ count: {count} kind: KIND_CPU }}"


def serving(repository: Path, groups: str) -> AbstractContextManager[ModelControl]:
    save(repository, "m", 1)
    grouped(repository, groups)
    return controlled(repository, mode="explicit", load=["m"], make_model=made)


def load(control: ModelControl, loads: int, unloads: int) -> None:
    """Load m; then so many instances have come up in all, and gone."""
    control.load("m")
    until(lambda: (did["load"], did["unload"]) == (loads, unloads))
    assert ask(control, "m") == 1
    assert len(runner_of(control).life.slots.makers) == loads - unloads


def runner_of(control: ModelControl) -> Dispatcher:
    runner = control.runtime.model("m").runner
    assert isinstance(runner, Dispatcher)
    return runner


def test_further_instances_come_beside_those_that_are_there_and_others_go(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(2)) as control:
        loaded = control.runtime.model("m")
        for groups, loads, unloads in ((4, 4, 0), (1, 4, 3), (1, 4, 3), (3, 6, 3)):
            grouped(tmp_path, cpu(groups))
            load(control, loads, unloads)
            assert control.runtime.model("m") is loaded
            assert loaded.config.instances[0].count == groups
            assert loaded.runner.load().instances == groups
        assert isinstance(loaded.model, RepositoryModel)
        assert [one.count for one in loaded.model.triton.instance_group] == [3]
        assert loaded.model.constructed_with[0][2].instance_group[0].count == 3


def test_groups_may_be_written_in_another_way(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(3)) as control:
        grouped(tmp_path, cpu(1) + 'instance_group { name: "b" count: 2 kind: KIND_CPU }')
        load(control, 3, 0)
        grouped(tmp_path, "instance_group { count: 0 kind: KIND_CPU }")
        load(control, 3, 2)


@pytest.mark.parametrize("other", ["the model's file", "its configuration"])
def test_if_something_else_has_changed_the_model_is_loaded_anew(tmp_path: Path, other: str) -> None:
    with serving(tmp_path, cpu(2)) as control:
        loaded = control.runtime.model("m")
        grouped(tmp_path, cpu(3))
        if other == "the model's file":
            (tmp_path / "m" / "1" / "more").touch()
        else:
            grouped(tmp_path, cpu(3) + 'parameters { key: "k" value { string_value: "v" } }')
        load(control, 5, 2)
        assert control.runtime.model("m") is not loaded


def test_a_load_of_what_has_not_changed_loads_it_anew(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(2)) as control:
        load(control, 4, 2)


def test_the_instances_may_come_with_the_load(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(1)) as control:
        patch = {"instance_group": [{"count": 2, "kind": "KIND_CPU"}]}
        control.load("m", patch=patch)
        assert (did["load"], did["unload"]) == (2, 0)
        model = control.runtime.model("m").model
        assert isinstance(model, RepositoryModel)
        told = to_json(model.triton)
        told["instance_group"][0]["count"] = 1
        control.load("m", json.dumps(told))
        assert (did["load"], did["unload"]) == (2, 1)


def test_an_instance_that_cannot_be_loaded_leaves_all_as_it_was(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(2)) as control:
        grouped(tmp_path, cpu(4))
        Counting.fails = True
        with pytest.raises(ConfigError, match=r"load failed for model 'm'.*no room"):
            control.load("m")
        Counting.fails = False
        assert ask(control, "m") == 1
        assert not control.not_ready()
        assert control.runtime.model("m").config.instances[0].count == 2
        assert len(runner_of(control).life.slots.makers) == 2


def test_an_instance_that_is_too_many_ends_what_it_runs(tmp_path: Path) -> None:
    with serving(tmp_path, cpu(2)) as control, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(ask, control, "m", 99) for _ in range(2)]
        for _ in waiting:
            Counting.started.acquire(timeout=TIMEOUT)
        grouped(tmp_path, cpu(1))
        loading = pool.submit(control.load, "m")
        until(lambda: len(runner_of(control).life.slots.makers) == 1)
        more = pool.submit(ask, control, "m", 5)
        assert did["unload"] == 0
        Counting.may_finish.release(2)
        assert [one.result(TIMEOUT) for one in (*waiting, more)] == [100, 100, 6]
        loading.result(TIMEOUT)
        assert did["unload"] == 1
        assert len(runner_of(control).instances) == 1


def test_of_a_model_of_sequences_no_instance_is_taken_away(tmp_path: Path) -> None:
    sequences = CONFIG.replace("dynamic_batching { }", "sequence_batching { }")
    with serving(tmp_path, cpu(1)) as control:
        config = tmp_path / "m" / "config.pbtxt"
        config.write_text(f"{sequences} {cpu(1)}")
        control.load("m")
        loaded = control.runtime.model("m")
        config.write_text(f"{sequences} {cpu(2)}")
        control.load("m")
        assert control.runtime.model("m") is loaded
        assert len(runner_of(control).instances) == 2
        config.write_text(f"{sequences} {cpu(1)}")
        control.load("m")
        assert control.runtime.model("m") is not loaded


def test_a_model_that_may_sleep_is_loaded_anew(tmp_path: Path) -> None:
    save(tmp_path, "m", 1)
    grouped(tmp_path, cpu(1))
    room: dict[str, Any] = {"device_memory": {"cpu": 1 << 40}}
    with controlled(tmp_path, mode="explicit", load=["m"], make_model=made, **room) as control:
        assert runner_of(control).residence()["resident"] == "when asked"
        grouped(tmp_path, cpu(2))
        control.load("m")
        assert ask(control, "m") == 1
        assert len(runner_of(control).life.slots.makers) == 2
