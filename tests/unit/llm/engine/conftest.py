"""What the tests of the engine share: tiny checkpoints, each made once."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """The models are so small that threads only get in each other's way."""
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint of a family."""
    pytest.importorskip("torch")
    from tests.unit.llm.engine import tiny  # here: the tests of what is pure need no torch

    made: dict[str, Path] = {}

    def find(family: str = "llama") -> Path:
        if family not in made:
            made[family] = tiny.make(tmp_path_factory.mktemp(family) / f"tiny-{family}", family)
        return made[family]

    return find
