"""Model repositories of small fake models: what a test saves, and what runs it.

save(folder, "a", 3)                                     # a: Y = X + 3
ModelControl(runtime, [folder], make_model=make)
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from wherry.core.models.model import Device
from wherry.core.values.errors import ConfigError
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.ensemble import EnsembleModel
from wherry.triton.repository.normalise import is_ensemble
from wherry.triton.repository.triton_config import TritonConfig

CONFIG = """backend: "fake" max_batch_size: 8 dynamic_batching { }
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
"""


class Plus(RepositoryModel):
    """Adds the number in its version's file; "broken" there is a model that cannot be loaded."""

    def load(self, device: Device) -> None:
        self.number = int(Path(self.version_folder, "number").read_text())

    def execute(self, **columns: Any) -> dict[str, Any]:
        return {"Y": columns["X"] + self.number}


class Gate(Plus):
    """Waits for the test."""

    started = threading.Semaphore(0)
    may_finish = threading.Semaphore(0)

    def execute(self, **columns: Any) -> dict[str, Any]:
        self.started.release()
        self.may_finish.acquire()
        return super().execute(**columns)


def make(folder: str, version: str, config: TritonConfig, **options: Any) -> RepositoryModel:
    """In place of triton/backends/load.py."""
    if is_ensemble(config):
        return EnsembleModel(folder, version, config)
    kinds = {"fake": Plus, "gate": Gate}
    if config.backend not in kinds:
        raise ConfigError(f"model {config.name!r}: unknown backend {config.backend!r}")
    return kinds[config.backend](folder, version, config)


def save(
    repository: Path, name: str, number: object = 1, *, config: str = CONFIG, version: int = 1
) -> None:
    folder = repository / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "number").write_text(str(number))
    (repository / name / "config.pbtxt").write_text(config)


def save_ensemble(repository: Path, name: str, *members: str) -> None:
    """IN -> members, one after the other -> OUT."""
    (repository / name).mkdir(parents=True, exist_ok=True)
    tensors = ["IN", *(f"t{i}" for i in range(len(members) - 1)), "OUT"]
    names = [
        ("IN" if m.startswith("e") else "X", "OUT" if m.startswith("e") else "Y") for m in members
    ]
    steps = "".join(
        f'step {{ model_name: "{member}" model_version: -1'
        f' input_map {{ key: "{x}" value: "{tensors[i]}" }}'
        f' output_map {{ key: "{y}" value: "{tensors[i + 1]}" }} }}\n'
        for i, (member, (x, y)) in enumerate(zip(members, names, strict=True))
    )
    (repository / name / "config.pbtxt").write_text(
        f"""platform: "ensemble" max_batch_size: 8
        input {{ name: "IN" data_type: TYPE_INT32 dims: 1 }}
        output {{ name: "OUT" data_type: TYPE_INT32 dims: 1 }}
        ensemble_scheduling {{ {steps} }}"""
    )
