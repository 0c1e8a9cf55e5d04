"""Models in the style of Triton's Python backend, which lie in tests/python_repository."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wherry
from wherry.triton.backends.load import backend_for
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.repository.json_form import patched
from wherry.triton.repository.pbtxt import parse
from wherry.triton.repository.triton_config import TritonConfig

REPOSITORY = Path(__file__).parent / "python_repository"


def python_model(name: str, folder: str = "", **patch: Any) -> RepositoryModel:
    """The model in that folder (else of its name), its configuration patched as JSON would."""
    where = REPOSITORY / (folder or name)
    file = where / "config.pbtxt"
    config = parse(file.read_text(), str(file)) if file.exists() else TritonConfig()
    return backend_for(str(where), "1", patched(config, {"name": name, **patch}))


def written_model(
    tmp_path: Path, code: str, name: str = "written", **patch: Any
) -> RepositoryModel:
    """A model of this code."""
    folder = tmp_path / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(code)
    return backend_for(str(folder.parent), "1", patched(TritonConfig(), {"name": name, **patch}))


@contextmanager
def running(*models: Any) -> Iterator[wherry.Runtime]:
    """A Runtime with these: names in the repository, or models."""
    made = [python_model(one) if isinstance(one, str) else one for one in models]
    with wherry.Runtime(*made) as runtime:
        yield runtime
