"""What an application of Ray Serve is told of an app file, before Ray is there."""

import asyncio
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wherry
from wherry.core.values.errors import ConfigError, LoadFailed
from wherry.deploy.on_ray_serve import ModelsByRequest, ongoing_requests

APP = """
import wherry

@wherry.model(max_batch_size=32, instances=2)
def one(text: list[str]) -> list[str]:
    return text

@wherry.model(max_batch_size=16)
def two(text: list[str]) -> list[str]:
    return text

@wherry.pipeline
async def both(text: str) -> str:
    return text

runtime = wherry.Runtime(one)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ray_app", raising=False)
    path = tmp_path / "ray_app.py"
    path.write_text(APP)
    return str(path)


@pytest.mark.parametrize(
    ("target", "overrides", "requests"),
    [
        ("{}:one", {}, 128),
        ("{}:one", {"one": {"max_batch_size": 64, "instances": 1}}, 128),
        ("{}", {}, 2 * (64 + 16 + 1)),
        ("{}:both", {}, 32),
    ],
)
def test_a_replica_may_have_two_full_batches_for_each_instance(
    app: str, target: str, overrides: dict[str, dict[str, int]], requests: int
) -> None:
    assert ongoing_requests([target.format(app)], overrides) == requests


def test_models_that_are_not_loaded_at_once_do_not_count(app: str) -> None:
    assert ongoing_requests([app], {}, 1) == 128
    assert ongoing_requests([app], {}, 2) == 2 * (64 + 16)


def test_a_runtime_says_nothing_of_its_batches(app: str) -> None:
    with pytest.raises(ConfigError, match="max_ongoing_requests"):
        ongoing_requests([f"{app}:runtime"], {})


@pytest.mark.slow
def test_the_package_imports_ray_only_where_it_is_used() -> None:
    code = (
        "import sys, wherry.deploy.on_ray_serve\n"
        "assert callable(wherry.deploy.ray_serve)\n"
        "assert not {'ray', 'starlette'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


Load = Callable[[str], Awaitable[Any]]


def multiplexed(max_num_models_per_replica: int) -> Callable[[Load], Load]:
    """As Ray Serve has it: one load at a time, and before it the least recent model's `__del__`."""

    def of(load: Load) -> Load:
        models: OrderedDict[str, Any] = OrderedDict()
        lock = asyncio.Lock()

        async def loaded(name: str) -> Any:
            if name not in models:
                async with lock:
                    if len(models) >= max_num_models_per_replica:
                        await models.popitem(last=False)[1].__del__()
                    models[name] = await load(name)
            models.move_to_end(name)
            return models[name]

        return loaded

    return of


@pytest.fixture
def by_request(monkeypatch: pytest.MonkeyPatch) -> tuple[wherry.Runtime, ModelsByRequest]:
    """Of three models at most two, of which one cannot be loaded."""
    ray, serve = ModuleType("ray"), ModuleType("ray.serve")
    vars(serve)["multiplexed"] = multiplexed
    vars(ray)["serve"] = serve
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)

    def model(name: str) -> wherry.Model:
        return wherry.model(name=name)(echo)

    class Broken(wherry.Model):
        def load(self, device: wherry.Device) -> None:
            raise ValueError("no such weights")

        def execute(self, text: list[str]) -> list[str]:
            return text

    runtime = wherry.Runtime()
    models = [model("a"), model("b"), model("c"), Broken()]
    return runtime, ModelsByRequest(runtime, models, 2, drain_timeout=30)


def echo(text: list[str]) -> list[str]:
    return text


def test_a_model_is_loaded_for_its_request_and_the_oldest_makes_room(
    by_request: tuple[wherry.Runtime, ModelsByRequest],
) -> None:
    runtime, models = by_request

    async def main() -> None:
        for name, there in [("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("", "ac")]:
            async with models.loaded(name):
                assert runtime.names() == set(there)
                if name:
                    assert await runtime.ainfer(name, name) == name

    with runtime:
        asyncio.run(main())


def test_a_model_leaves_when_its_requests_are_answered(
    by_request: tuple[wherry.Runtime, ModelsByRequest],
) -> None:
    runtime, models = by_request

    async def main() -> None:
        async with models.loaded("a"), models.loaded("b"):
            other = asyncio.create_task(enter("c"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert runtime.names() == {"a", "b"}
            again = asyncio.create_task(enter("a"))  # it must be loaded anew, after it has left
        await other
        await again

    async def enter(name: str) -> None:
        async with models.loaded(name):
            assert await runtime.ainfer(name, name) == name

    with runtime:
        asyncio.run(main())


def test_a_model_that_cannot_be_loaded_fails_its_request_only(
    by_request: tuple[wherry.Runtime, ModelsByRequest],
) -> None:
    runtime, models = by_request

    async def main() -> None:
        with pytest.raises(LoadFailed, match="no such weights"):
            async with models.loaded("broken"):
                pass
        async with models.loaded("a"):
            assert runtime.names() == {"a"}

    with runtime:
        asyncio.run(main())
