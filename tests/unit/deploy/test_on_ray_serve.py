"""What an application of Ray Serve is told of an app file, before Ray is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.deploy.on_ray_serve import ongoing_requests

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


def test_a_runtime_says_nothing_of_its_batches(app: str) -> None:
    with pytest.raises(ConfigError, match="max_ongoing_requests"):
        ongoing_requests([f"{app}:runtime"], {})


def test_the_package_imports_ray_only_where_it_is_used() -> None:
    code = (
        "import sys, wherry.deploy.on_ray_serve\n"
        "assert callable(wherry.deploy.ray_serve)\n"
        "assert not {'ray', 'starlette'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
