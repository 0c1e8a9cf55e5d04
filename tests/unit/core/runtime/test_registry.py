"""What does the registry do with what runs the models, as they come and go?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Model
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.runtime.registry import Registry
from wherry.core.values.errors import ConfigError, LoadFailed, ModelNotFound, ModelNotReady


class Runner:
    """Tells what is done with it; each call asks the registry, which must not hold its lock."""

    def __init__(self, name: str, registry: Registry, told: list[str], fails: bool) -> None:
        self.successor: Any = None
        self._name, self._registry, self._told, self._fails = name, registry, told, fails

    def start(self) -> None:
        self._tell("start")

    def wait_ready(self) -> None:
        self._tell("wait")
        if self._fails:
            raise LoadFailed(f"{self._name} has no weights")

    def drain(self, timeout: float | None) -> bool:
        self._tell("drain")
        return True

    def close(self, timeout: float | None = 10.0) -> None:
        self._tell("close")

    def not_ready_reason(self) -> str:
        return ""

    def _tell(self, what: str) -> None:
        self._registry.models()
        self._told.append(f"{what} {self._name}")


@dataclass(eq=False)
class Loaded:
    """As much of a LoadedModel as the registry needs."""

    name: str
    runner: Runner
    version: str = "1"
    signature: str = "text -> text"
    is_pipeline: bool = False
    calls_others: bool = False
    model: Model = field(default_factory=Model)
    cache: None = None
    config: ModelConfig = field(default_factory=lambda: ModelConfig(name="any"))
    load_seconds: float = 0.0

    @property
    def key(self) -> str:
        return self.name

    def submit(self, requests: Any) -> None: ...


class House:
    """A registry, and what its runners were told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.registry = Registry(cast(Any, "the runtime"), lambda: 0.0)

    def made(self, name: str, *, fails: bool = False, **settings: Any) -> Loaded:
        return Loaded(name, Runner(name, self.registry, self.told, fails), **settings)

    def load(self, *made: Loaded) -> list[Loaded]:
        replaced: list[Any] = []
        self.registry.load(cast(list[LoadedModel], made), None, replaced.append)
        return replaced


def test_models_are_started_together_and_found_when_all_are_ready() -> None:
    house = House()
    a, b = house.made("a"), house.made("b")
    assert house.load(a, b) == []
    assert house.told == ["start a", "start b", "wait a", "wait b"]
    assert cast(Any, house.registry.find("a")) is a
    assert house.registry.names() == {"a", "b"}


def test_a_load_that_fails_closes_all_of_it_and_publishes_none() -> None:
    house = House()
    with pytest.raises(LoadFailed):
        house.load(house.made("a"), house.made("b", fails=True))
    assert house.told[-2:] == ["close a", "close b"]
    for name in ("a", "b"):
        with pytest.raises(ModelNotFound, match="is not found"):
            house.registry.find(name)


def test_two_models_of_one_name_and_version_are_refused_before_they_start() -> None:
    house = House()
    with pytest.raises(ConfigError, match="two models are called 'a'"):
        house.load(house.made("a"), house.made("a"))
    assert house.told == []


@pytest.mark.parametrize(("signature", "goes_on"), [("text -> text", True), ("n -> n", False)])
def test_requests_that_still_reach_a_replaced_model_go_on_to_one_that_takes_the_same(
    signature: str, goes_on: bool
) -> None:
    house = House()
    old, new = house.made("a"), house.made("a", signature=signature)
    house.load(old)
    assert house.load(new) == [old]
    assert (old.runner.successor == new.submit) is goes_on
    assert new.runner.successor is None


def test_models_that_call_others_are_drained_and_closed_before_these() -> None:
    house = House()
    a = house.made("a")
    python = house.made("python", calls_others=True)
    pipeline = house.made("pipeline", calls_others=True, is_pipeline=True)
    house.load(a, python, pipeline)
    house.told.clear()
    assert house.registry.drain(1.0)
    assert house.told == ["drain pipeline", "drain python", "drain a"]
    house.told.clear()
    house.registry.close(1.0)
    assert [one for one in house.told if "close" in one] == [
        "close pipeline",
        "close python",
        "close a",
    ]
    with pytest.raises(ModelNotReady, match="the runtime is closed"):
        house.load(house.made("b"))


def test_a_model_object_calls_through_the_runtime_that_has_it_loaded() -> None:
    house = House()
    first, again = house.made("a"), house.made("b")
    again.model = first.model
    house.load(first, again)
    for name, still in (("a", True), ("b", False)):
        (taken,) = house.registry.take_out(name)
        house.registry.retire(taken)
        assert (first.model._caller is not None) is still


def test_a_question_changes_no_generation_and_calls_no_listener() -> None:
    house = House()
    house.load(house.made("a"))
    before = house.registry.generation
    called: list[int] = []
    house.registry.listeners += (lambda: called.append(1),)

    house.registry.find("a")
    house.registry.names()
    house.registry.routes()
    house.registry.drain(1.0)

    assert (house.registry.generation, called) == (before, [])
