"""Which models did the targets give, and which of them are others now?"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from wherry.cli.reload.sources import WHOLE, Sources
from wherry.models.model import Model
from wherry.runtime.engines import ENGINES
from wherry.runtime.targets import is_repository, module_name

#: Name and version.
Key = tuple[str, str]


class SavedModel(NamedTuple):
    """A model with what its code looked like when it was loaded."""

    model: Model
    digest: str


class ModelChanges(NamedTuple):
    """What a target's models have become."""

    load: dict[Key, SavedModel]
    #: The same as before, in a module that was imported again.
    same: list[Model]
    gone: list[Key]


def changes(before: dict[Key, SavedModel], now: dict[Key, SavedModel]) -> ModelChanges:
    """Compare the models of a target with those that are served of it."""
    load: dict[Key, SavedModel] = {}
    same = []
    for key, one in now.items():
        if key in before and before[key].digest == one.digest:
            same.append(one.model)
        else:
            load[key] = one
    return ModelChanges(load, same, [key for key in before if key not in now])


def file_of(target: str) -> Path | None:
    """The file that a target imports; None for one that has no code of the user's. Nothing is
    imported, but for the packages around it."""
    where = target.partition(":")[0]
    if where in ENGINES or is_repository(target):
        return None
    if where.endswith(".py") or "/" in where:
        return Path(where).resolve()
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None or not spec.has_location else Path(spec.origin or "").resolve()


def folders_of(files: Iterable[Path]) -> list[Path]:
    """The folders in which the imports of these files are looked for."""
    found = [module_name(file)[1] for file in files]
    return list(dict.fromkeys([*found, Path.cwd().resolve()]))


def digest_of(model: Model, file: Path, sources: Sources) -> str:
    """A value that changes when the code of a model does, which the module of this file has."""
    return sources.digest(file, _name_in(file, model))


def _name_in(file: Path, model: Model) -> str:
    """The name of the model, or of its class, in the module of this file."""
    for module in list(sys.modules.values()):
        at = getattr(module, "__file__", None)
        if at and Path(at).name == file.name and Path(at).resolve() == file:
            for name, value in vars(module).items():
                if value is model:
                    return name
            for name, value in vars(module).items():
                if value is type(model):
                    return name
    return WHOLE
