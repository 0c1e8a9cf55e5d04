"""Which models are loaded and unloaded, as their files come, change and go?"""

from __future__ import annotations

import gc
import json
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wherry
from tests import fakes
from tests.fakes import TIMEOUT, until
from tests.repositories import CONFIG, Gate, Plus, make, save, save_ensemble
from wherry import Runtime
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.values.errors import ConfigError, LoadFailed, ModelNotFound, ModelNotReady
from wherry.testing import ManualClock
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.control import Changes, ModelControl, ModelStatus, RepositoryWatch
from wherry.triton.repository.layout import Fingerprint
from wherry.triton.repository.schema import fields_of
from wherry.triton.repository.triton_config import TritonConfig

KNOWN = ", ".join(fields_of(TritonConfig))


@contextmanager
def controlled(
    *repositories: Path,
    clock: Callable[[], float] = time.monotonic,
    device_memory: Mapping[str, int] | None = None,
    **options: Any,
) -> Iterator[ModelControl]:
    with Runtime(clock=clock, device_memory=device_memory) as runtime:
        control = ModelControl(runtime, repositories, **{"make_model": make, **options})
        try:
            control.start()
            yield control
        finally:
            control.freeze()
            runtime.close()
            control.close()


def ask(control: ModelControl, name: str, x: int = 0) -> int:
    spec = control.runtime.model(name).signature.inputs[0].name
    inputs: dict[str, Any] = {spec: np.array([x], np.int32)}
    answer = control.runtime.infer(name, **inputs)
    return int(answer["OUT" if spec == "IN" else "Y"][0])


def join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def ready(control: ModelControl) -> list[str]:
    return [f"{one.name}:{one.version}" for one in control.index(ready_only=True)]


def test_in_mode_none_everything_is_loaded_and_nothing_may_change(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    save(tmp_path, "b", 2)

    with controlled(tmp_path) as control:
        assert ask(control, "a") == 1
        assert ask(control, "b") == 2
        assert control.index() == [
            ModelStatus("a", "1", "READY", ""),
            ModelStatus("b", "1", "READY", ""),
        ]
        for change in (control.load, control.unload):
            with pytest.raises(ModelNotReady, match="explicit model load / unload is not allowed"):
                change("a")


def test_without_a_repository_the_index_shows_the_models_of_the_runtime(tmp_path: Path) -> None:
    model = Plus(str(tmp_path / "a"), "1", TritonConfig(name="a"))
    save(tmp_path, "a")
    with Runtime(model) as runtime:
        control = ModelControl(runtime)

        assert control.index() == [ModelStatus("a", "1", "READY", "")]
        with pytest.raises(ModelNotReady):
            control.load("a")


def test_the_index_has_models_of_code_from_their_load_to_after_their_end() -> None:
    gate = fakes.Gate()

    class Slow(wherry.Model):
        def load(self, device: wherry.Device) -> None:
            gate.hold(["load"])

        def execute(self, text: list[str]) -> list[str]:
            return text

    with Runtime() as runtime:
        control = ModelControl(runtime)
        loading = threading.Thread(target=runtime.load, args=[Slow()])
        loading.start()
        gate.started()
        assert control.index() == [ModelStatus("slow", "1", "LOADING")]
        gate.open()
        loading.join()
        assert control.index() == [ModelStatus("slow", "1", "READY")]
        runtime.unload("slow")
        assert control.index() == [ModelStatus("slow", "1", "UNAVAILABLE", "unloaded")]


def test_in_mode_explicit_a_model_is_there_while_it_is_wanted(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")

    with controlled(tmp_path, mode="explicit", load=["b"]) as control:
        assert control.index() == [ModelStatus("a"), ModelStatus("b", "1", "READY", "")]
        control.load("a")
        assert ready(control) == ["a:1", "b:1"]
        control.unload("a")
        with pytest.raises(ModelNotFound, match="'a' has no available versions"):
            ask(control, "a")
        control.load("a")
        assert ask(control, "a", 2) == 3
        control.unload("never heard of")


def test_models_of_a_repository_sleep_and_an_explicit_load_wakes_one(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")

    with controlled(
        tmp_path, mode="explicit", load=["*"], device_memory={"cpu": 1 << 40}
    ) as control:
        assert ready(control) == ["a:1", "b:1"]
        models = {one.name: one.runner for one in control.runtime.models()}
        assert not models["a"].instances
        assert not models["b"].instances
        control.load("a")
        models = {one.name: one.runner for one in control.runtime.models()}
        assert models["a"].instances
        assert not models["b"].instances
        assert ask(control, "b", 2) == 3


def test_a_star_is_every_model(tmp_path: Path) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b")

    with controlled(tmp_path, mode="explicit", load=["*"]) as control:
        assert ready(control) == ["a:1", "b:1"]


def test_unload_returns_at_once_and_what_runs_is_finished(tmp_path: Path) -> None:
    save(tmp_path, "a", config=CONFIG.replace("fake", "gate"))

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(ask(control, "a", 4)))
        caller.start()
        Gate.started.acquire()

        control.unload("a")

        assert control.index() == [ModelStatus("a", "1", "UNLOADING", "")]
        retiring = next(t for t in threading.enumerate() if t.name == "wherry-unload-a")
        Gate.may_finish.release()
        caller.join()
        retiring.join()
        assert answers == [5]
        assert control.index() == [ModelStatus("a", "1", "UNAVAILABLE", "unloaded")]


def test_a_runtime_that_ends_waits_for_what_an_unloaded_model_still_runs(tmp_path: Path) -> None:
    save(tmp_path, "a", config=CONFIG.replace("fake", "gate"))

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(ask(control, "a", 4)))
        caller.start()
        Gate.started.acquire()
        control.unload("a")

        assert not control.runtime.drain(0.0)
        Gate.may_finish.release()
        assert control.runtime.drain(None)
        caller.join()
        assert answers == [5]


def test_a_model_is_replaced_at_once_and_what_the_old_one_runs_is_finished(tmp_path: Path) -> None:
    save(tmp_path, "a", config=CONFIG.replace("fake", "gate"))

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(ask(control, "a", 4)))
        caller.start()
        Gate.started.acquire()
        save(tmp_path, "a", 10)

        control.load("a")  # for as long as the old one runs this would wait, or it would fail

        assert ask(control, "a", 4) == 14
        assert not answers
        Gate.may_finish.release()
        caller.join()
        assert answers == [5]


@pytest.mark.slow
def test_loading_again_leaves_no_gap(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    stop = threading.Event()
    answers: set[int] = set()

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:

        def call() -> None:
            while not stop.is_set():
                answers.add(ask(control, "a"))

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        for number in range(2, 12):
            save(tmp_path, "a", number)
            control.load("a")
            assert ask(control, "a") == number
        stop.set()
        for caller in callers:
            caller.join()
    assert answers <= set(range(1, 12))


def test_what_cannot_be_loaded_again_leaves_the_old_one_serving(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        save(tmp_path, "a", "broken")
        with pytest.raises(
            ConfigError, match="load failed for model 'a': version 1 is at"
        ) as caught:
            control.load("a")
        assert "invalid literal for int" in str(caught.value)
        save(tmp_path, "a", 1, config="max_batch_sise: 3")
        with pytest.raises(ConfigError, match=r"a/config\.pbtxt:1: max_batch_sise: unknown field"):
            control.load("a")
        assert ask(control, "a") == 1
        assert control.index() == [ModelStatus("a", "1", "READY", "")]
        assert control.not_ready() == {}


def test_why_a_model_is_not_there_stands_in_the_index_without_its_folder(tmp_path: Path) -> None:
    save(tmp_path, "a")
    (tmp_path / "a" / "1" / "number").unlink()

    with controlled(tmp_path, mode="explicit") as control:
        with pytest.raises(ConfigError):
            control.load("a")
        (row,) = control.index()
    assert (row.name, row.version, row.state) == ("a", "1", "UNAVAILABLE")
    assert "No such file or directory: 'a/1/number'" in row.reason
    assert str(tmp_path) not in row.reason


@pytest.mark.parametrize("name", ["missing", "", "..", "../a", "a/1", "\0"])
def test_a_model_that_is_not_there_cannot_be_loaded(tmp_path: Path, name: str) -> None:
    save(tmp_path / "repository", "b")
    save(tmp_path, "a")

    with controlled(tmp_path / "repository", mode="explicit") as control:
        with pytest.raises(ModelNotFound, match="failed to poll from model repository"):
            control.load(name)
        assert control.index() == [ModelStatus("b")]


def test_a_config_stands_in_place_of_the_whole_file(tmp_path: Path) -> None:
    save(tmp_path, "a")
    config = {"backend": "fake", "max_batch_size": 3}

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        control.load("a", json.dumps(config))

        loaded = control.runtime.model("a")
        assert loaded.config.max_batch_size == 3
        assert loaded.signature.inputs == ()
        control.load("a")
        assert control.runtime.model("a").config.max_batch_size == 8


def test_a_patch_changes_what_it_names(tmp_path: Path) -> None:
    save(tmp_path, "a")

    with controlled(tmp_path, mode="explicit") as control:
        control.load("a", patch={"max_batch_size": 3})

        loaded = control.runtime.model("a")
        assert loaded.config.max_batch_size == 3
        assert [spec.name for spec in loaded.signature.inputs] == ["X"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "config: it is not JSON"),
        ("[]", "config: expected an object"),
        ('{"max_batch_sise": 3}', "did you mean 'max_batch_size'"),
        ('{"max_batch_size": "x"}', "expected a whole number, not 'x'"),
        ('{"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}}', "8 is more"),
        ('{"name": "b"}', "'b' is not the folder's name"),
        ('{"backend": "nothing"}', "unknown backend 'nothing'"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(tmp_path: Path, config: str, why: str) -> None:
    save(tmp_path, "a")

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        with pytest.raises(ConfigError, match=f"failed (to load|for model) 'a'.*{why}|{why}"):
            control.load("a", config)
        assert ask(control, "a") == 1


def test_files_stand_in_place_of_the_folder(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    config = {"backend": "fake", "max_batch_size": 8, "input": [], "output": []}
    tensor = {"data_type": "TYPE_INT32", "dims": [1]}
    config |= {"input": [{"name": "X", **tensor}], "output": [{"name": "Y", **tensor}]}

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        control.load("a", config, files={"7/number": b"70"})
        assert ask(control, "a") == 70
        assert ready(control) == ["a:7"]
        folder = Path(control.runtime.model("a").model.folder)  # type: ignore[attr-defined]
        assert folder.is_dir()

        control.load("a")
        assert ready(control) == ["a:1"]
        join("wherry-replace-a")
        assert not folder.exists()
        control.load("new", config, files={"1/number": b"5"})
        folder = Path(control.runtime.model("new").model.folder)  # type: ignore[attr-defined]
        assert ask(control, "new") == 5
        control.unload("new")
        join("wherry-unload-new")
        assert not folder.exists()


@pytest.mark.parametrize(
    "path", ["../escaped", "//x", "1/../../x", "", "1//number", ".hidden", "1/\0", "1/."]
)
def test_a_file_does_not_leave_its_folder(tmp_path: Path, path: str) -> None:
    with controlled(tmp_path, mode="explicit") as control:
        with pytest.raises(ConfigError, match="is not a file of its folder"):
            control.load("a", {"backend": "fake"}, files={path: b"x"})
        with pytest.raises(ConfigError, match="not a name of a model"):
            control.load("../a", {"backend": "fake"}, files={"1/number": b"1"})
        with pytest.raises(ConfigError, match="files need a config"):
            control.load("a", files={"1/number": b"1"})


def test_several_versions_are_served_and_those_that_are_gone_are_not(tmp_path: Path) -> None:
    both = CONFIG + "version_policy { all { } }"
    save(tmp_path, "a", 10, config=both, version=1)
    save(tmp_path, "a", 20, config=both, version=2)

    with controlled(tmp_path, mode="explicit", load=["a"]) as control:
        assert ready(control) == ["a:1", "a:2"]
        assert ask(control, "a") == 20
        save(tmp_path, "a", 30, version=3)  # and latest is the policy now
        control.load("a")
        assert ready(control) == ["a:3"]
        assert ask(control, "a") == 30


def test_an_ensemble_brings_its_members(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    save(tmp_path, "b", 10)
    save_ensemble(tmp_path, "e1", "a", "b")
    save_ensemble(tmp_path, "e2", "e1", "a")

    with controlled(tmp_path, mode="explicit") as control:
        control.load("e2")
        assert ready(control) == ["a:1", "b:1", "e1:1", "e2:1"]
        assert ask(control, "e2") == 12

        control.unload("b")
        assert "its member 'b' is not there" in control.runtime.model("e1").not_ready_reason()
        control.load("b")
        assert ready(control) == ["a:1", "b:1", "e1:1", "e2:1"]

        control.unload("e2", dependents=True)
        assert ready(control) == ["b:1"]  # it was loaded by its own name


def test_a_member_that_another_ensemble_needs_stays(tmp_path: Path) -> None:
    save(tmp_path, "a", 1)
    save(tmp_path, "b", 10)
    save_ensemble(tmp_path, "e1", "a", "b")
    save_ensemble(tmp_path, "e2", "a")

    with controlled(tmp_path, mode="explicit", load=["e1", "e2"]) as control:
        control.unload("e1", dependents=True)

        assert ready(control) == ["a:1", "e2:1"]


def test_an_ensemble_of_a_version_that_its_member_does_not_have_is_not_loaded(
    tmp_path: Path,
) -> None:
    save(tmp_path, "a", 1, version=1)
    save(tmp_path, "a", 3, version=3, config=f"{CONFIG} version_policy {{ all {{ }} }}")
    save_ensemble(tmp_path, "e", "a")
    config = tmp_path / "e" / "config.pbtxt"
    written = config.read_text()
    with controlled(tmp_path, mode="explicit") as control:
        for version, answer in ((1, 1), (3, 3), (2, None), (-1, 3)):
            config.write_text(written.replace("model_version: -1", f"model_version: {version}"))
            if answer is None:
                with pytest.raises(ConfigError, match="version 2 is not loaded, but 1, 3"):
                    control.load("e")
            else:
                control.load("e")
                assert ask(control, "e") == answer


def test_an_ensemble_that_does_not_fit_its_members_tells_all_of_it(tmp_path: Path) -> None:
    save_ensemble(tmp_path, "e1", "a", "b")
    save_ensemble(tmp_path, "e2", "e3")
    save_ensemble(tmp_path, "e3", "e2")

    with controlled(tmp_path, mode="explicit") as control:
        with pytest.raises(ConfigError, match=r"its member 'a': .*; e1: its member 'b': "):
            control.load("e1")
        with pytest.raises(ConfigError, match="circle: e2 -> e3 -> e2"):
            control.load("e2")


def test_all_that_fails_at_the_start_is_told_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b", "broken")
    save(tmp_path, "c", config="nothing: 1")

    with (
        pytest.raises(LoadFailed, match="2 models could not be loaded: b, c") as caught,
        controlled(tmp_path),
    ):
        pass
    b, c = caught.value.__notes__
    assert b.startswith("b: load failed for model 'b': version 1 is at UNAVAILABLE state: ")
    assert c.endswith("c/config.pbtxt:1: nothing: unknown field 'nothing'; known are: " + KNOWN)
    logged = [record for record in caplog.records if record.message == "model not loaded"]
    assert [record.model for record in logged] == ["b", "c"]  # type: ignore[attr-defined]
    assert "self.number = int(" in logged[0].traceback  # type: ignore[attr-defined]
    assert not hasattr(logged[1], "traceback")


def test_a_server_that_goes_on_without_a_model_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "a")
    save(tmp_path, "b", "broken")

    with controlled(tmp_path, exit_on_error=False) as control:
        assert ready(control) == ["a:1"]
        assert list(control.not_ready()) == ["b"]
        assert [row.state for row in control.index()] == ["READY", "UNAVAILABLE"]
        control.strict_readiness = False
        assert control.not_ready() == {}
        control._started = False  # Triton listens once its first models are loaded
        assert list(control.not_ready()) == ["b"]
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "model not loaded"
    ]


def test_a_server_that_goes_on_without_a_repository_serves_nothing_and_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "one", "a")
    folders = tmp_path / "one", tmp_path / "nowhere"

    with controlled(*folders, exit_on_error=False, strict_readiness=False) as control:
        assert list(control.runtime.registry.models()) == []
        assert "no such folder" in control.not_ready()["*"]
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "no model is served"
    ]
    with pytest.raises(ConfigError, match="no such folder"), controlled(*folders):
        pass


def test_the_index_says_why_a_name_in_two_repositories_is_served_from_neither(
    tmp_path: Path,
) -> None:
    for repository in ("one", "two"):
        save(tmp_path / repository, "a")
    save(tmp_path / "two", "b")

    with controlled(tmp_path / "one", tmp_path / "two", exit_on_error=False) as control:
        a, b = control.index()
    assert (a.state, b.state) == ("UNAVAILABLE", "READY")
    assert a.reason == "model appears in two or more repositories"


def test_a_name_that_comes_into_a_second_repository_is_unloaded_by_the_next_load(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    save(one, "a", 1)
    save(one, "b", 1)

    with controlled(one, two, mode="explicit", load=["a", "b"]) as control:
        save(two, "a", 2)
        assert ask(control, "a") == 1  # nobody has looked yet
        with pytest.raises(ConfigError, match=r"failed to load 'a'.*or more repositories: 1 an"):
            control.load("a")
        assert ready(control) == ["b:1"]
        assert control.index()[0].reason == "model appears in two or more repositories"
        assert control.not_ready() == {}
        shutil.rmtree(one / "a")
        control.load("a")
        assert ask(control, "a") == 2


def test_an_unload_waits_for_the_load_of_the_model_and_of_the_ensembles_that_need_it(
    tmp_path: Path,
) -> None:
    sample = 'inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }'
    config = CONFIG.replace("fake", "gate") + f"model_warmup {{ {sample} }}"
    save(tmp_path, "a", config=config)
    save_ensemble(tmp_path, "e", "a")

    with controlled(tmp_path, mode="explicit") as control:
        unloaded = threading.Event()

        def unload() -> None:
            control.unload("a")
            unloaded.set()

        loading = threading.Thread(target=control.load, args=["e"])
        loading.start()
        Gate.started.acquire()
        unloading = threading.Thread(target=unload)
        unloading.start()
        assert not unloaded.is_set()
        Gate.may_finish.release()
        loading.join()
        unloading.join()
        assert "a:1" not in ready(control)
        assert control.not_ready() == {}  # whoever unloads a member unloads its ensembles


def test_a_server_is_not_ready_before_anybody_has_looked_at_its_repository(tmp_path: Path) -> None:
    with Runtime() as runtime:
        control = ModelControl(runtime, [tmp_path], strict_readiness=False)
        assert control.not_ready() == {"*": "loading"}
        control.start()
        assert control.not_ready() == {}


def test_what_is_not_served_is_told_from_what_is_not_known(tmp_path: Path) -> None:
    config = f"{CONFIG} version_policy {{ specific {{ versions: [1, 3] }} }}"
    for version in (1, 3):
        save(tmp_path, "a", config=config, version=version)
    save(tmp_path, "broken", "broken")
    (tmp_path / "empty").mkdir()

    def said(name: str, version: str | None = None) -> str:
        with pytest.raises(ModelNotFound) as caught:
            control.runtime.model(name, version)
        return str(caught.value)

    with controlled(tmp_path, mode="explicit", load=["*"], exit_on_error=False) as control:
        assert said("nobody", "1") == "Request for unknown model: 'nobody' is not found"
        assert said("a", "2") == "Request for unknown model: 'a' version 2 is not found"
        for name in ("broken", "empty"):
            assert said(name) == f"Request for unknown model: '{name}' has no available versions"
        control.load("a", patch={"version_policy": {"specific": {"versions": [3]}}})
        assert said("a", "1") == "Request for unknown model: 'a' version 1 is not at ready state"
        control.unload("a")
        assert said("a", "1") == "Request for unknown model: 'a' has no available versions"


def test_a_server_stays_ready_while_a_client_has_a_model_loaded(tmp_path: Path) -> None:
    sample = 'inputs { key: "X" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }'
    config = CONFIG.replace("fake", "gate") + f"model_warmup {{ {sample} }}"
    save(tmp_path, "a", config=config)

    with controlled(tmp_path, mode="explicit") as control:
        loading = threading.Thread(target=control.load, args=["a"])
        loading.start()
        Gate.started.acquire()
        assert control.index() == [ModelStatus("a", "1", "LOADING", "")]
        assert control.not_ready() == {}
        Gate.may_finish.release()
        loading.join()
        assert ready(control) == ["a:1"]


def test_a_repository_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"), controlled(tmp_path / "x"):
        pass


def test_models_are_loaded_side_by_side_but_not_too_many(tmp_path: Path) -> None:
    for number in range(9):
        save(tmp_path, f"m{number}")
    together = threading.Barrier(3, timeout=TIMEOUT)
    running: list[str] = []
    most = 0

    def make_together(folder: str, *args: Any, **options: Any) -> RepositoryModel:
        nonlocal most
        running.append(folder)
        most = max(most, len(running))
        together.wait()
        running.remove(folder)
        together.wait()
        return make(folder, *args, **options)

    with Runtime() as runtime:
        control = ModelControl(runtime, [tmp_path], load_threads=3, make_model=make_together)
        control.start()
        assert len(runtime.models()) == 9
    assert most == 3


def test_a_load_that_failed_is_tried_again_if_that_is_wanted(tmp_path: Path) -> None:
    save(tmp_path, "a", "broken")
    tries = 0

    def make_late(folder: str, *args: Any, **options: Any) -> RepositoryModel:
        nonlocal tries
        tries += 1
        if tries == 3:
            save(tmp_path, "a", 3)
        return make(folder, *args, **options)

    with Runtime() as runtime:
        control = ModelControl(runtime, [tmp_path], load_retries=2, make_model=make_late)
        control.start()
        assert ask(control, "a") == 3
    assert tries == 3


def test_what_has_no_effect_is_said_at_each_load_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, "a", config=CONFIG + 'instance_group { host_policy: "p" }')

    with controlled(tmp_path) as control:
        ask(control, "a")
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        "instance_group.host_policy has no effect: instances are not bound to host policies"
    ]


def test_settings_of_the_operator_win_over_the_file(tmp_path: Path) -> None:
    save(tmp_path, "a")

    with controlled(tmp_path, settings=lambda name: {"instances": 2 if name == "a" else 1}) as c:
        assert len(c.runtime.model("a").runner.instances) == 2


def test_polling_loads_what_is_new_and_lets_go_what_is_gone(tmp_path: Path) -> None:
    clock = ManualClock()
    save(tmp_path, "a", 1)
    save(tmp_path, "b", 1)

    with controlled(
        tmp_path, mode="poll", poll_seconds=15, settle_seconds=2, clock=clock
    ) as control:
        save(tmp_path, "a", 22)
        save(tmp_path, "c", 3)
        (tmp_path / "b").rename(tmp_path / ".b")

        assert control.poll() == 2
        assert ready(control) == ["a:1"]
        assert ask(control, "a") == 1
        clock.advance(1)
        save(tmp_path, "c", 333)
        assert control.poll() == 2
        clock.advance(1)
        assert control.poll() == 2  # c changed a second ago
        assert ask(control, "a") == 22
        assert ready(control) == ["a:1"]
        clock.advance(1)
        assert control.poll() == 15
        assert ready(control) == ["a:1", "c:1"]
        assert ask(control, "c") == 333
        with pytest.raises(ModelNotReady):
            control.load("a")


def test_polling_keeps_the_old_model_when_the_new_one_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    save(tmp_path, "a", 1)

    with controlled(tmp_path, mode="poll", settle_seconds=2, clock=clock) as control:
        save(tmp_path, "a", "broken")
        save(tmp_path, "b", "broken, too")
        for _ in range(3):
            control.poll()
            clock.advance(2)

        assert ask(control, "a") == 1
        assert list(control.not_ready()) == ["b"]
        errors = [r.model for r in caplog.records if r.message == "model not loaded"]  # type: ignore[attr-defined]
        assert sorted(errors) == ["a", "b"]  # once each, not at every look
        save(tmp_path, "b", 5)
        control.poll()
        clock.advance(2)
        control.poll()
        assert control.not_ready() == {}


def test_polling_goes_on_by_itself(tmp_path: Path) -> None:
    loaded = threading.Event()

    def made(folder: str, *args: Any, **options: Any) -> RepositoryModel:
        loaded.set()
        return make(folder, *args, **options)

    with Runtime() as runtime:
        control = ModelControl(
            runtime,
            [tmp_path],
            mode="poll",
            poll_seconds=0.01,
            settle_seconds=0.01,
            make_model=made,
        )
        control.start()
        save(tmp_path, "a")
        assert loaded.wait(TIMEOUT)
        control.close()


def test_a_repository_that_cannot_be_read_for_a_while_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks, loaded = threading.Semaphore(0), threading.Event()
    repository, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    repository.mkdir()

    class Watched(ModelControl):
        def poll(self) -> float:
            looks.release()
            return super().poll()

    def made(folder: str, *args: Any, **options: Any) -> RepositoryModel:
        loaded.set()
        return make(folder, *args, **options)

    with Runtime() as runtime:
        control = Watched(
            runtime,
            [repository],
            mode="poll",
            poll_seconds=0.01,
            settle_seconds=0.01,
            make_model=made,
        )
        control.start()
        repository.rename(elsewhere)
        until(lambda: bool(caplog.records))
        while looks.acquire(blocking=False):
            pass
        for _ in range(3):
            assert looks.acquire(timeout=TIMEOUT)
        elsewhere.rename(repository)
        save(repository, "a")
        assert loaded.wait(TIMEOUT)
        control.close()
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (told.message, told.exc_info) == ("polling failed", None)


def test_what_is_asked_of_a_few_threads_is_answered_by_them(tmp_path: Path) -> None:
    names: set[str] = set()
    outcomes: list[int | Exception] = []
    done = threading.Semaphore(0)
    error = ValueError()

    def call(number: int) -> int:
        names.add(threading.current_thread().name)
        if number == 3:
            raise error
        return number

    def tell(outcome: int | Exception) -> None:
        outcomes.append(outcome)
        done.release()

    with controlled(tmp_path) as control:
        for number in range(20):
            control.in_thread(lambda number=number: call(number), tell, loads=number % 2 == 0)  # type: ignore[misc]
        for _ in range(20):
            done.acquire()
    assert names == {"wherry-control", "wherry-control-load"}
    assert error in outcomes
    assert len(outcomes) == 20


class Circle(Plus):
    """Holds itself, as models with callbacks or caches do."""

    def load(self, device: wherry.Device) -> None:
        super().load(device)
        self.itself = self


def test_an_unloaded_model_gives_its_memory_back_without_waiting_for_the_collector(
    tmp_path: Path,
) -> None:
    save(tmp_path, "a")
    gc.disable()
    try:
        with controlled(
            tmp_path,
            mode="explicit",
            load=["a"],
            make_model=lambda *version, **options: Circle(*version),
        ) as control:
            first = weakref.ref(control.runtime.model("a").model)
            control.load("a")
            join("wherry-replace-a")
            assert first() is None
            second = weakref.ref(control.runtime.model("a").model)
            control.unload("a")
            join("wherry-unload-a")
            assert second() is None
    finally:
        gc.enable()


@pytest.fixture
def _collector_looks_at_this_test_only() -> None:
    """Each unload has it look through the whole heap, that of all the tests before included."""
    gc.freeze()


@pytest.mark.usefixtures("_collector_looks_at_this_test_only")
def test_many_loads_leave_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path, "a")
    alive: list[LoadedModel] = []

    with controlled(tmp_path, mode="explicit") as control:
        before = threading.active_count()
        for number in range(30):
            save(tmp_path, "a", number)
            control.load("a")
            assert ask(control, "a") == number
            alive = control.runtime.models()
            control.unload("a")
        join("wherry-unload-a")
        assert len(alive) == 1
        assert control.runtime.models() == []
        assert threading.active_count() == before


def test_an_ensemble_answers_from_the_cache_until_one_of_its_members_is_loaded_again(
    tmp_path: Path,
) -> None:
    save(tmp_path, "a", 1)
    save_ensemble(tmp_path, "e1", "a")
    save_ensemble(tmp_path, "e2", "e1")
    config = tmp_path / "e2" / "config.pbtxt"
    config.write_text(config.read_text() + " response_cache { enable: true }")

    with Runtime(cache_bytes=1 << 20) as runtime:
        control = ModelControl(runtime, [tmp_path], mode="explicit", load=["e2"], make_model=make)
        control.start()
        assert [ask(control, "e2", 5) for _ in range(3)] == [6, 6, 6]
        counted = runtime.model("e2").statistics
        assert (counted.cache_hit.count, counted.cache_miss.count) == (2, 1)
        assert runtime.model("a").statistics.success.count == 1
        save(tmp_path, "a", 2)
        control.load("a")
        assert ask(control, "e2", 5) == 7
        control.close()


OLD: Fingerprint = (("model.py", 1, 1),)
NEW: Fingerprint = (("model.py", 2, 2),)


def test_files_that_are_loaded_are_left_alone() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    assert watch.look({"a": OLD}, 100.0) == Changes([], [])
    assert not watch.is_settling


def test_changed_files_are_loaded_when_they_have_not_changed_for_the_settling_time() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    assert watch.look({"a": NEW}, 0.0) == Changes([], [])
    assert watch.is_settling
    assert watch.look({"a": NEW}, 1.9) == Changes([], [])
    assert watch.look({"a": NEW}, 2.0) == Changes(["a"], [])
    assert not watch.is_settling
    assert watch.look({"a": NEW}, 9.0) == Changes([], [])  # loaded, or tried in vain


def test_another_change_begins_the_settling_time_anew() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    watch.look({"a": OLD}, 0.0)
    assert watch.look({"a": NEW}, 1.5) == Changes([], [])
    assert watch.look({"a": NEW}, 3.0) == Changes([], [])
    assert watch.look({"a": NEW}, 3.5) == Changes(["a"], [])


def test_a_change_that_is_taken_back_is_none() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({"a": OLD})
    watch.look({"a": NEW}, 0.0)
    assert watch.look({"a": OLD}, 5.0) == Changes([], [])
    assert not watch.is_settling


def test_what_is_gone_is_unloaded_once_and_loaded_when_it_comes_back() -> None:
    watch = RepositoryWatch(0.0)
    watch.start({"a": OLD, "b": OLD})
    assert watch.look({}, 0.0) == Changes([], ["a", "b"])
    assert watch.look({}, 1.0) == Changes([], [])
    watch.look({"a": OLD}, 2.0)
    assert watch.look({"a": OLD}, 2.0) == Changes(["a"], [])


def test_what_goes_before_it_has_settled_was_never_there() -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    watch.look({"a": OLD}, 0.0)
    assert watch.look({}, 3.0) == Changes([], [])
    assert not watch.is_settling


FILES = st.dictionaries(st.sampled_from("ab"), st.sampled_from([OLD, NEW]))


@given(st.lists(st.tuples(FILES, st.integers(0, 3)), max_size=12))
def test_what_was_told_last_is_what_the_files_were_when_they_had_settled(
    looks: list[tuple[dict[str, Fingerprint], int]],
) -> None:
    watch = RepositoryWatch(2.0)
    watch.start({})
    now, loaded = 0, dict[str, Fingerprint]()
    for files, passed in looks:
        now += passed
        changes = watch.look(files, now)
        assert set(changes.unload) == loaded.keys() - files.keys()
        assert not set(changes.load) & {name for name in loaded if loaded[name] == files.get(name)}
        for name in changes.unload:
            del loaded[name]
        loaded.update({name: files[name] for name in changes.load})
    final = {"a": OLD, "b": NEW}
    watch.look(final, now)
    changes = watch.look(final, now + 2)
    loaded.update({name: final[name] for name in changes.load})
    assert loaded == final
